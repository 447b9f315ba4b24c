// TableStore::LoadBeside: a checkpoint's index from that of another checkpoint of the same store.
//
// Above it: store_tables. Below it: key_index, segment. Where two checkpoints have most segments in
// common, as two that were taken one soon after the other, the index of one is that of the other
// but for the keys that the remaining segments name. A copy of it, and these footers, take a small
// part of the time that all footers do; the very same index, of which the other reader notes what
// it has otherwise, takes what these keys cost, however large the table is.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <set>

#include "ssd_store/segment.h"
#include "ssd_store/table_store.h"

namespace hps {
namespace {

// Of all records, in segments that only one of the two has: with more of them all is read anew.
constexpr uint64_t kMostOthersPercent = 30;
constexpr uint64_t kKeysOfThread = 8192;  // fewer are not worth another thread
constexpr uint64_t kAhead = 16;  // keys whose entries are asked for before they are looked at

}  // namespace

bool TableStore::CopyIndex(const TableStore& other) {
  for (int shard = 0; shard < KeyIndex::kNumShards; ++shard) {
    const ShardImage image = other.index_->Image(shard);
    if (image.slots == 0) continue;
    unsigned char* entries = index_->Adopt(shard, image);
    if (entries == nullptr) return false;
    std::memcpy(entries, image.entries, image.slots * KeyIndex::kEntryBytes);
  }
  return true;
}

void TableStore::ShareIndex(TableStore* lender, uint64_t most_displaced) {
  for (int shard = 0; shard < KeyIndex::kNumShards; ++shard) {
    lender->displaced_.Reserve(shard, most_displaced);  // it grows, where there is no memory
  }
  lender->num_lent_rows_ = lender->index_->size();
  lender->is_lent_ = true;
  index_ = lender->index_;
}

void TableStore::Prefetch(uint64_t hash, const TableStore* lender) const {
  index_->Prefetch(hash);
  if (lender != nullptr) lender->displaced_.Prefetch(hash);
}

// Of a lender: a key has its record there, or none (kNone), though the index will say otherwise.
void TableStore::NoteDisplaced(uint64_t hash, uint64_t location) {
  if (displaced_.Find(hash) != KeyIndex::kNone) return;
  HPS_CHECK(location != kAbsent);
  uint64_t previous;
  HPS_CHECK(displaced_.Put(hash, location == KeyIndex::kNone ? kAbsent : location, &previous));
}

// Age and place of what the index names, against record `record` of `segment`.
bool TableStore::IsNewer(uint64_t location, const Segment& segment, uint64_t record) const {
  const WantedRecord place = Decode(location);
  const Segment& own = *segments_[place.segment];
  if (&own == &segment) return place.record >= record;
  return IsOlder(segment.info, own.info);
}

// After all others are learned: most rows of a segment that is gone have been moved by then.
Status TableStore::ForgetSegment(uint32_t ordinal, TableStore* lender,
                                 std::vector<std::weak_ptr<Segment>>* retired) {
  const std::shared_ptr<Segment> segment = segments_[ordinal];
  if (segment->live == 0) {
    superseded_.insert(segment->info.number);
    RemoveSegment(ordinal, retired);
    return Status::Ok();
  }
  std::shared_ptr<File> file;
  HPS_RETURN_IF_ERROR(context_->cache->Open(segment->info.number, segment->path, &file));
  FooterVisitor visitor;
  visitor.keys = [&](uint64_t, const uint64_t* keys, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) Prefetch(MixKey(keys[i + kAhead]), lender);
      const uint64_t hash = MixKey(keys[i]);
      const uint64_t location = index_->Find(hash);
      if (location == KeyIndex::kNone || Decode(location).segment != ordinal) continue;
      if (lender != nullptr) lender->NoteDisplaced(hash, location);
      index_->Erase(hash);
      Unname(location, nullptr);
    }
  };
  HPS_RETURN_IF_ERROR(ReadFooter(file.get(), *segment, visitor));
  context_->bytes_read += segment->info.FooterBytes();
  RemoveSegment(ordinal, retired);
  return Status::Ok();
}

// Of what the index names, against entry `record` of a segment that the checkpoint has; what a
// segment holds that it has not is older than anything that it has.
bool TableStore::IsNewerThan(const Segment& segment, uint64_t record, uint64_t location,
                             const std::vector<bool>& is_gone) const {
  const uint32_t own = Decode(location).segment;
  return (own >= is_gone.size() || !is_gone[own]) && IsNewer(location, segment, record);
}

void TableStore::LearnTombstones(const Segment& segment, const Tombstone* tombstones,
                                 uint64_t count, const std::vector<bool>& is_gone,
                                 TableStore* lender) {
  for (uint64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) Prefetch(MixKey(tombstones[i + kAhead].key), lender);
    const uint64_t hash = MixKey(tombstones[i].key);
    const uint64_t location = index_->Find(hash);
    if (location == KeyIndex::kNone) continue;
    if (IsNewerThan(segment, tombstones[i].position, location, is_gone)) continue;
    if (lender != nullptr) lender->NoteDisplaced(hash, location);
    index_->Erase(hash);
    Unname(location, nullptr);
  }
}

// Of a segment that both have, after all older ones were learned.
Status TableStore::LearnTombstonesAgain(uint64_t number, const std::vector<bool>& is_gone,
                                        TableStore* lender) {
  const auto found = std::find_if(segments_.begin(), segments_.end(), [=](const auto& segment) {
    return segment != nullptr && segment->info.number == number;
  });
  HPS_CHECK(found != segments_.end());
  const std::shared_ptr<Segment> segment = *found;
  std::shared_ptr<File> file;
  HPS_RETURN_IF_ERROR(context_->cache->Open(number, segment->path, &file));
  FooterVisitor visitor;
  visitor.tombstones = [&](const Tombstone* tombstones, uint64_t count) {
    LearnTombstones(*segment, tombstones, count, is_gone, lender);
  };
  context_->bytes_read += segment->info.FooterBytes();
  return ReadFooter(file.get(), *segment, visitor);
}

// Keys of one shard, of which other threads have others. False if there is no memory left.
bool TableStore::LearnShard(const Learning& learning, const KeyItem* items, uint64_t count,
                            std::vector<Change>* changes) {
  Segment& segment = *segments_[learning.ordinal];
  TableStore* const lender = learning.lender;
  for (uint64_t i = 0; i < std::min(kAhead, count); ++i) Prefetch(items[i].hash, lender);
  for (uint64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) Prefetch(items[i + kAhead].hash, lender);
    const auto [hash, record] = items[i];
    uint64_t previous = index_->Find(hash);
    if (previous != KeyIndex::kNone && IsNewerThan(segment, record, previous, *learning.is_gone)) {
      continue;
    }
    if (lender != nullptr) lender->NoteDisplaced(hash, previous);
    if (!index_->Put(hash, Location(segment, record), &previous)) return false;
    ++(*changes)[learning.ordinal].live;
    if (!learning.deaths->empty()) segment.deaths[record] = (*learning.deaths)[record];
    if (previous != KeyIndex::kNone) Unname(previous, changes);
  }
  return true;
}

// `is_gone`: of ordinals, those of segments that the checkpoint has not.
Status TableStore::LearnSegment(const SegmentInfo& info, const std::vector<bool>& is_gone,
                                TableStore* lender) {
  const std::shared_ptr<Segment> segment = SealedSegment(info);
  const uint32_t ordinal = AddSegment(segment);
  if (!AddChunks(ordinal, info.num_records)) return OutOfPlaces();
  std::shared_ptr<File> file;
  HPS_RETURN_IF_ERROR(context_->cache->Open(info.number, segment->path, &file));
  HPS_RETURN_IF_ERROR(CheckSegmentHeader(file.get(), *segment, schema_, context_->store_id));
  std::vector<uint32_t> deaths;
  HPS_RETURN_IF_ERROR(ReadDeaths(file.get(), *segment, &deaths));
  segment->deaths.assign(deaths.size(), kNeverDies);
  std::atomic<bool> has_memory{true};
  ThreadPool pool(static_cast<int>(
      std::clamp<uint64_t>(info.num_records / kKeysOfThread, 1, context_->num_threads)));
  FooterVisitor visitor;
  std::vector<KeyItem> items;
  visitor.keys = [&](uint64_t first, const uint64_t* keys, uint64_t count) {
    items.resize(count);
    const KeyIndex::ShardStarts starts = SortByShard(first, keys, count, items.data());
    ThreadChanges changes(pool.num_threads(), std::vector<Change>(segments_.size()));
    DealOut(&pool, KeyIndex::kNumShards, [&](size_t shard, int worker) {
      const uint64_t size = starts[shard + 1] - starts[shard];
      const Learning learning{ordinal, &deaths, &is_gone, lender};
      if (!LearnShard(learning, &items[starts[shard]], size, &changes[worker])) has_memory = false;
    });
    AddChanges(changes);
  };
  visitor.tombstones = [&](const Tombstone* tombstones, uint64_t count) {
    LearnTombstones(*segment, tombstones, count, is_gone, lender);
  };
  HPS_RETURN_IF_ERROR(ReadFooter(file.get(), *segment, visitor));
  context_->bytes_read += info.FooterBytes();
  return has_memory ? Status::Ok() : OutOfMemory();
}

Status TableStore::LoadBeside(TableStore* other, bool shares, const TableCheckpoint& checkpoint,
                              std::vector<std::weak_ptr<Segment>>* retired, bool* is_loaded) {
  context_->lock->AssertHeld();
  *is_loaded = false;
  std::map<uint64_t, const SegmentInfo*> missing;
  uint64_t num_records = 0;
  uint64_t num_others = 0;
  for (const SegmentInfo& info : checkpoint.segments) {
    missing[info.number] = &info;
    num_records += info.num_records;
    num_others += info.num_records;
  }
  std::set<uint64_t> gone;
  for (const std::shared_ptr<const Segment>& segment : other->Segments()) {
    if (!segment->is_sealed) return Status::Ok();
    const bool is_common = missing.erase(segment->info.number) > 0;
    if (is_common) {
      num_others -= segment->info.num_records;
    } else {
      num_others += segment->info.num_records;
      gone.insert(segment->info.number);
    }
  }
  if (num_others * 100 > num_records * kMostOthersPercent) return Status::Ok();
  Reset(retired);
  // Nobody asks the other reader while its index changes.
  const std::unique_lock<std::shared_mutex> lock(other->mutex_);
  if (other->is_lent_) return Status::Ok();
  for (const std::shared_ptr<Segment>& segment : other->segments_) {
    segments_.push_back(segment == nullptr ? nullptr : std::make_shared<Segment>(*segment));
  }
  chunks_ = other->chunks_;
  free_chunks_ = other->free_chunks_;
  followed_ = other->identity_;
  TableStore* const lender = shares ? other : nullptr;
  if (shares) {
    ShareIndex(other, num_others);
  } else if (!CopyIndex(*other)) {
    return OutOfMemory();
  }
  std::vector<bool> is_gone(segments_.size());
  for (uint32_t ordinal = 0; ordinal < segments_.size(); ++ordinal) {
    is_gone[ordinal] =
        segments_[ordinal] != nullptr && gone.count(segments_[ordinal]->info.number) > 0;
  }
  // A compaction that the other checkpoint fell into has copied records that were gone there: what
  // says so lies in segments that both have, with larger numbers than the output.
  uint64_t first_output = UINT64_MAX;
  for (const SegmentInfo& info : checkpoint.segments) {  // the oldest first
    if (missing.count(info.number) > 0) {
      HPS_RETURN_IF_ERROR(LearnSegment(info, is_gone, lender));
      if (info.generation > 0) first_output = std::min(first_output, info.number);
    } else if (info.num_tombstones > 0 && info.number > first_output) {
      HPS_RETURN_IF_ERROR(LearnTombstonesAgain(info.number, is_gone, lender));
    }
  }
  for (uint32_t ordinal = 0; ordinal < is_gone.size(); ++ordinal) {
    if (is_gone[ordinal]) HPS_RETURN_IF_ERROR(ForgetSegment(ordinal, lender, retired));
  }
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment != nullptr) CountExpired(segment.get());
  }
  // Otherwise it is built anew, which says what is wrong.
  *is_loaded = index_->size() == checkpoint.num_rows;
  return Status::Ok();
}

}  // namespace hps
