// TableStore's verbs: append, erase, look-up, seal, and the tables' accounts.
//
// Above it: table_store.h. Below it: key_index, segment. Loading a checkpoint is table_load.cc's.
#include "ssd_store/table_store.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "common/check.h"

namespace hps {
namespace {

constexpr uint64_t kAhead = 16;           // keys between a prefetch and its use
constexpr uint64_t kKeysOfThread = 4096;  // fewer are not worth another thread

// Keys of an append by shard, each with its record.
struct InstallPart {
  const KeyItem* items = nullptr;
  KeyIndex::ShardStarts starts{};
};

}  // namespace

Status TableStore::OutOfMemory() const {
  return Status(StatusCode::kStore,
                "table '" + schema_.name + "': the system has no memory left for the store's index",
                ENOMEM);
}

Status TableStore::OutOfPlaces() const {
  return Status(StatusCode::kStore,
                "table '" + schema_.name + "': its segments hold " +
                    std::to_string(chunks_.size() << kChunkBits) +
                    " records, dead ones too, and the store's index can name no more; compact the "
                    "store, or spread the rows over more tables",
                EOVERFLOW);
}

// The bound on a table's space counts segments, so a small table must have small ones.
uint64_t TableStore::SegmentBytesFor(uint64_t num_rows) const {
  const uint64_t least = std::min(kLeastSegmentBytes, context_->segment_bytes);
  return std::clamp(num_rows * RowSpace() / kSegmentShare, least, context_->segment_bytes);
}

uint64_t TableStore::CapacityFor(uint64_t num_rows) const {
  const uint64_t records = SegmentBytesFor(num_rows) / (schema_.row_bytes + kChecksumBytes);
  return std::clamp<uint64_t>(records, 1, kMostRecords);
}

uint64_t TableStore::FullBytesFor(uint64_t num_rows) const {
  SegmentInfo full;
  full.has_deaths = schema_.has_deaths;
  full.num_records = CapacityFor(num_rows);
  return full.FileBytes(schema_.row_bytes);
}

// Of tombstones, or of more records than the table, which has shrunk, would have in a segment now:
// compaction can have it only once it is sealed.
bool TableStore::IsWriterFull() const {
  const uint64_t rows = num_rows();
  const uint64_t most =
      std::clamp<uint64_t>(SegmentBytesFor(rows) / kTombstoneBytes, 1, kMostTombstones);
  return writer_->num_tombstones() >= most ||
         writer_->segment()->info.num_records > CapacityFor(rows);
}

Status TableStore::OpenSegment() {
  auto segment = std::make_shared<Segment>();
  HPS_RETURN_IF_ERROR(context_->take_number(&segment->info.number));
  segment->info.sequence = segment->info.number;
  segment->info.has_deaths = schema_.has_deaths;
  segment->path = context_->folder + "/" + FileName(kSegmentPrefix, segment->info.number);
  segment->row_bytes = schema_.row_bytes;
  HPS_RETURN_IF_ERROR(
      SegmentWriter::Create(context_->files, segment, schema_, context_->store_id, &writer_));
  context_->CountOverhead(kSegmentHeaderBytes);
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  writer_ordinal_ = AddSegment(std::move(segment));
  return Status::Ok();
}

uint32_t TableStore::AddSegment(std::shared_ptr<Segment> segment) {
  const auto free = std::find(segments_.begin(), segments_.end(), nullptr);
  const auto ordinal = static_cast<uint32_t>(free - segments_.begin());
  if (free == segments_.end()) {
    segments_.push_back(std::move(segment));
  } else {
    *free = std::move(segment);
  }
  return ordinal;
}

bool TableStore::AddChunks(uint32_t ordinal, uint64_t num_records) {
  Segment& segment = *segments_[ordinal];
  while (segment.chunks.size() * kChunkRecords < num_records) {
    const ChunkPlace place{ordinal, static_cast<uint32_t>(segment.chunks.size())};
    if (free_chunks_.empty()) {
      if ((chunks_.size() + 1) << kChunkBits >= context_->most_places) return false;
      segment.chunks.push_back(static_cast<uint32_t>(chunks_.size()));
      chunks_.push_back(place);
    } else {
      segment.chunks.push_back(free_chunks_.back());
      chunks_[free_chunks_.back()] = place;
      free_chunks_.pop_back();
    }
  }
  return true;
}

// Each thread sorts a part of the rows' keys by shard; then shards take theirs in order, each by
// one thread. A shard at a time stays in a core's cache, which keys as they come do not.
Status TableStore::InstallRows(ThreadPool* pool, const char* rows, uint64_t first, uint64_t count) {
  const uint64_t row_bytes = schema_.row_bytes;
  if (items_ == nullptr) items_.reset(new KeyItem[kInstalledKeys]);
  std::vector<InstallPart> parts(pool->num_threads());
  pool->Run([&](int worker) {
    const uint64_t start = count * worker / parts.size();
    const uint64_t end = count * (worker + 1) / parts.size();
    parts[worker].items = &items_[start];
    const auto item = [&](uint64_t i) {
      return KeyItem{MixKey(RowKey(rows + (start + i) * row_bytes)), first + start + i};
    };
    parts[worker].starts = KeyIndex::SortByShard(end - start, item, &items_[start]);
  });
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  Segment& open = *segments_[writer_ordinal_];
  if (schema_.has_deaths) {
    open.deaths.resize(first + count);
    for (uint64_t i = 0; i < count; ++i) open.deaths[first + i] = RowDeath(rows + i * row_bytes);
  }
  open.info.num_records = first + count;
  if (!AddChunks(writer_ordinal_, first + count)) return OutOfPlaces();
  ThreadChanges changes(parts.size(), std::vector<Change>(segments_.size()));
  std::atomic<bool> has_memory{true};
  DealOut(pool, KeyIndex::kNumShards, [&](size_t shard, int worker) {
    for (const InstallPart& part : parts) {
      const uint64_t size = part.starts[shard + 1] - part.starts[shard];
      const KeyItem* items = part.items + part.starts[shard];
      if (!PutShard(items, size, &changes[worker])) has_memory = false;
    }
  });
  AddChanges(changes);
  return has_memory ? Status::Ok() : OutOfMemory();
}

void TableStore::AddChanges(const ThreadChanges& changes) {
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i] == nullptr) continue;
    for (const std::vector<Change>& counts : changes) {
      segments_[i]->live += counts[i].live;
      segments_[i]->expired += counts[i].expired;
    }
  }
}

// items[i].location is a record of the open segment.
bool TableStore::PutShard(const KeyItem* items, uint64_t count, std::vector<Change>* changes) {
  const Segment& segment = *segments_[writer_ordinal_];
  for (uint64_t i = 0; i < std::min(kAhead, count); ++i) index_->Prefetch(items[i].hash);
  for (uint64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) index_->Prefetch(items[i + kAhead].hash);
    uint64_t previous = KeyIndex::kNone;
    const uint64_t location = Location(segment, items[i].location);
    if (!index_->Put(items[i].hash, location, &previous)) return false;
    Change& change = (*changes)[writer_ordinal_];
    ++change.live;
    change.expired += IsExpired(location);
    if (previous != KeyIndex::kNone) Unname(previous, changes);
  }
  return true;
}

Status TableStore::Append(const char* rows, uint64_t count) {
  context_->lock->AssertHeld();
  const uint64_t row_bytes = schema_.row_bytes;
  ThreadPool pool(static_cast<int>(std::clamp<uint64_t>(
      std::min(count, kInstalledKeys) / kKeysOfThread, 1, context_->num_threads)));
  while (count > 0) {
    const uint64_t capacity = SegmentCapacity();
    if (writer_ != nullptr) {
      const uint64_t used = writer_->segment()->info.num_records;
      if (used > 0 && used + count > capacity) HPS_RETURN_IF_ERROR(Seal());
    }
    if (writer_ == nullptr) HPS_RETURN_IF_ERROR(OpenSegment());
    Segment& segment = *writer_->segment();
    const uint64_t first = segment.info.num_records;
    const uint64_t size = std::min(count, std::max<uint64_t>(1, capacity - first));
    HPS_RETURN_IF_ERROR(writer_->Append(&pool, &pieces_, rows, size));
    context_->bytes_written += size * segment.stride();
    context_->bytes_appended += size * segment.stride();
    for (uint64_t done = 0; done < size;) {
      const uint64_t piece = std::min(kInstalledKeys, size - done);
      HPS_RETURN_IF_ERROR(InstallRows(&pool, rows + done * row_bytes, first + done, piece));
      done += piece;
    }
    rows += size * row_bytes;
    count -= size;
  }
  return Status::Ok();
}

// A tombstone never goes into a segment that is older, by its number, than a compaction's output:
// so a number tells which outputs were copied when its rows were gone already.
Status TableStore::EnsureTombstonesFit() {
  if (writer_ != nullptr && writer_->segment()->info.number >= newest_output_) return Status::Ok();
  HPS_RETURN_IF_ERROR(Seal());
  return OpenSegment();
}

bool TableStore::EraseNamed(uint64_t key) {
  const uint64_t location = index_->Erase(MixKey(key));
  if (location == KeyIndex::kNone) return false;
  const bool was_there = !IsExpired(location);
  Unname(location, nullptr);
  writer_->AddTombstone(key);
  return was_there;
}

// The keys are gone already. If a full disk refuses the footer, its tombstones wait in memory for
// the next seal; an error after that is of the sync, and stops the store.
Status TableStore::SealIfFull() {
  if (!IsWriterFull()) return Status::Ok();
  const Status sealed = Seal();
  return writer_ != nullptr ? Status::Ok() : sealed;
}

Status TableStore::Erase(const uint64_t* keys, uint64_t count, uint8_t* found) {
  context_->lock->AssertHeld();
  std::memset(found, 0, count);
  if (writer_ == nullptr || writer_->segment()->info.number < newest_output_) {
    std::vector<uint8_t> stored(count);
    Contains(keys, count, stored.data());
    if (std::find(stored.begin(), stored.end(), 1) == stored.end()) return Status::Ok();
  }
  HPS_RETURN_IF_ERROR(EnsureTombstonesFit());
  for (uint64_t first = 0; first < count; first += kLockedKeys) {
    const uint64_t end = std::min(count, first + kLockedKeys);
    writer_->ReserveTombstones(end - first);
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    for (uint64_t i = first; i < end; ++i) {
      if (i + kAhead < count) index_->Prefetch(MixKey(keys[i + kAhead]));
      found[i] = EraseNamed(keys[i]);
    }
  }
  return SealIfFull();
}

Status TableStore::Fetch(const uint64_t* keys, uint64_t count, char* rows, uint8_t* found) const {
  HPS_CHECK(count <= UINT32_MAX);
  std::vector<WantedRecord> wanted;
  wanted.reserve(count);
  FetchSource source{context_->files, context_->cache, {}, context_->num_threads};
  {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    source.segments.resize(segments_.size());
    for (uint64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) PrefetchFind(MixKey(keys[i + kAhead]));
      const uint64_t location = Find(MixKey(keys[i]));
      found[i] = location != KeyIndex::kNone && !IsExpired(location);
      if (!found[i]) continue;
      wanted.push_back(Decode(location));
      wanted.back().row = static_cast<uint32_t>(i);
    }
    for (const WantedRecord& next : wanted) {
      if (source.segments[next.segment] == nullptr) {
        source.segments[next.segment] = segments_[next.segment];
      }
    }
  }
  uint64_t bytes_read = 0;
  const Status fetched = FetchRecords(source, std::move(wanted), keys, rows, &bytes_read);
  context_->bytes_read += bytes_read;
  return fetched;
}

void TableStore::Contains(const uint64_t* keys, uint64_t count, uint8_t* found) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  for (uint64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) PrefetchFind(MixKey(keys[i + kAhead]));
    const uint64_t location = Find(MixKey(keys[i]));
    found[i] = location != KeyIndex::kNone && !IsExpired(location);
  }
}

KeyIndex::ShardStarts TableStore::SortByShard(uint64_t first, const uint64_t* keys, uint64_t count,
                                              KeyItem* items) {
  const auto item = [=](uint64_t i) { return KeyItem{MixKey(keys[i]), first + i}; };
  return KeyIndex::SortByShard(count, item, items);
}

bool TableStore::HoldsAll(const Segment& segment) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  return segment.is_sealed && segment.live == segment.info.num_records && segment.expired == 0;
}

void TableStore::Places(const uint64_t* keys, uint64_t count, RecordPlace* places) const {
  HPS_CHECK(count <= UINT32_MAX);
  const std::unique_ptr<KeyItem[]> items(new KeyItem[count]);
  SortByShard(0, keys, count, items.get());
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  for (uint64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) PrefetchFind(items[i + kAhead].hash);
    const uint64_t location = Find(items[i].hash);
    RecordPlace* const place = &places[items[i].location];
    *place = RecordPlace();
    if (location == KeyIndex::kNone || IsExpired(location)) continue;
    const WantedRecord wanted = Decode(location);
    *place = {segments_[wanted.segment]->info.number, wanted.record};
  }
}

uint64_t TableStore::num_rows() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  return (is_lent_ ? num_lent_rows_ : index_->size()) - NumExpired();
}

TableFigures TableStore::Figures() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  TableFigures figures;
  figures.num_rows = (is_lent_ ? num_lent_rows_ : index_->size()) - NumExpired();
  figures.index_bytes = index_->memory_bytes() + chunks_.capacity() * sizeof(ChunkPlace) +
                        free_chunks_.capacity() * sizeof(uint32_t);
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment == nullptr) continue;
    ++figures.num_segments;
    figures.live_bytes += segment->live * RowSpace();
    figures.expired_bytes += segment->expired * RowSpace();
    // The open one's footer has no tombstones yet, as far as the lock tells.
    figures.segment_bytes += segment->is_sealed
                                 ? segment->info.FileBytes(segment->row_bytes)
                                 : kSegmentHeaderBytes + segment->info.num_records * RowSpace();
    figures.index_bytes += sizeof(Segment) + segment->chunks.capacity() * sizeof(uint32_t) +
                           segment->deaths.capacity() * sizeof(uint32_t);
  }
  return figures;
}

TableSnapshot TableStore::Snapshot() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  HPS_CHECK(!is_lent_);
  TableSnapshot snapshot;
  std::vector<TableSnapshot::Part> parts(segments_.size());
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i] == nullptr) continue;
    parts[i].segment = segments_[i];
    parts[i].live.resize((segments_[i]->info.num_records + 63) / 64);
  }
  index_->ForEachLocation([&](uint64_t location) {
    if (IsExpired(location)) return;
    const WantedRecord place = Decode(location);
    parts[place.segment].live[place.record / 64] |= uint64_t{1} << (place.record % 64);
  });
  snapshot.num_rows = index_->size() - NumExpired();
  snapshot.row_bytes = schema_.row_bytes;
  for (TableSnapshot::Part& part : parts) {
    if (part.segment != nullptr) snapshot.parts.push_back(std::move(part));
  }
  return snapshot;
}

Status TableStore::Seal() {
  context_->lock->AssertHeld();
  if (writer_ == nullptr) return Status::Ok();
  HPS_RETURN_IF_ERROR(writer_->Seal());
  context_->CountOverhead(writer_->segment()->info.FooterBytes());
  {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    writer_->segment()->is_sealed = true;
  }
  const std::shared_ptr<File> file = writer_->file();
  writer_.reset();
  return context_->sync_later(file);
}

TableCheckpoint TableStore::ToCheckpoint() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  TableCheckpoint checkpoint;
  checkpoint.schema = schema_;
  checkpoint.num_rows = index_->size();
  checkpoint.num_expired = NumExpired();
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment == nullptr) continue;
    HPS_CHECK(segment->is_sealed);
    checkpoint.segments.push_back(segment->info);
  }
  std::sort(checkpoint.segments.begin(), checkpoint.segments.end(), IsOlder);
  return checkpoint;
}

}  // namespace hps
