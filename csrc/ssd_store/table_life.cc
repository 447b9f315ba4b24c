// TableStore's part in the life of rows: which records are expired, and how their bytes go.
//
// Above it: table_store.h. Below it: key_index, segment. A record whose period of death has come is
// expired: no verb finds it, but the index names it until it is buried, which is an erase like any
// other. So it still hides the older records of its key, and nothing depends on when it goes. Four
// bytes a record are kept in memory, so that look-ups and counts read no row for it.
#include <algorithm>
#include <mutex>
#include <utility>

#include "ssd_store/table_store.h"

namespace hps {

bool TableStore::IsExpired(uint64_t location) const {
  if (!schema_.has_deaths) return false;
  const WantedRecord place = Decode(location);
  return IsDeadBy(segments_[place.segment]->deaths[place.record]);
}

uint32_t TableStore::Unname(uint64_t location, std::vector<Change>* changes) {
  const WantedRecord place = Decode(location);
  Segment& segment = *segments_[place.segment];
  Change alone;
  Change& change = changes == nullptr ? alone : (*changes)[place.segment];
  --change.live;
  uint32_t death = kNeverDies;
  if (schema_.has_deaths) {
    std::swap(death, segment.deaths[place.record]);
    change.expired -= IsDeadBy(death);
  }
  if (changes == nullptr) {
    segment.live += alone.live;
    segment.expired += alone.expired;
  }
  return death;
}

uint64_t TableStore::NumExpired() const {
  uint64_t num_expired = 0;
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment != nullptr) num_expired += segment->expired;
  }
  return num_expired;
}

// kNeverDies is the smallest number, which a subtraction makes the largest.
void TableStore::CountExpired(Segment* segment) const {
  static_assert(kNeverDies == 0);
  uint64_t num_expired = 0;
  for (const uint32_t death : segment->deaths) num_expired += death - 1 < period_;
  segment->expired = num_expired;
}

void TableStore::SetPeriod(uint32_t period, uint32_t horizon) {
  context_->lock->AssertHeld();
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  period_ = period;
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment == nullptr) continue;
    if (horizon > period) {
      for (uint32_t& death : segment->deaths) {
        if (death <= period || death > horizon) continue;
        death = kDiesEarly;
        has_early_ = true;
      }
    }
    CountExpired(segment.get());
  }
}

// What the index does not name has kNeverDies, too, so that rows which never die are the rest.
void TableStore::CountDeaths(uint32_t period, uint64_t* counts, uint64_t num_counts) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  std::fill(counts, counts + num_counts, 0);
  uint64_t num_mortal = 0;
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment == nullptr) continue;
    for (const uint32_t death : segment->deaths) {
      num_mortal += death != kNeverDies;
      if (death > period) ++counts[std::min<uint64_t>(death - period, num_counts - 1)];
    }
  }
  counts[0] = index_->size() - num_mortal;
}

std::shared_ptr<Segment> TableStore::FindEarly() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment == nullptr || !segment->is_sealed) continue;
    const std::vector<uint32_t>& deaths = segment->deaths;
    if (std::find(deaths.begin(), deaths.end(), kDiesEarly) != deaths.end()) return segment;
  }
  return nullptr;
}

// A compaction that runs meanwhile takes records along with their marks, so that one segment is
// looked for after the other.
Status TableStore::BuryEarly() {
  context_->lock->AssertHeld();
  if (!has_early_) return Status::Ok();
  HPS_RETURN_IF_ERROR(Seal());  // so that each key is in a footer
  while (const std::shared_ptr<Segment> segment = FindEarly()) {
    std::shared_ptr<File> file;
    HPS_RETURN_IF_ERROR(context_->cache->Open(segment->info.number, segment->path, &file));
    Status buried;
    FooterVisitor visitor;
    visitor.keys = [&](uint64_t first, const uint64_t* keys, uint64_t count) {
      if (buried.ok()) buried = Bury(*segment, first, keys, count, /*only_early=*/true);
    };
    HPS_RETURN_IF_ERROR(ReadFooter(file.get(), *segment, visitor));
    HPS_RETURN_IF_ERROR(std::move(buried));
    context_->bytes_read += segment->info.FooterBytes();
  }
  has_early_ = false;
  return Status::Ok();
}

// Of a table that was just loaded. Periods of death of records that the index does not name are
// dropped.
Status TableStore::LoadDeaths(ThreadPool* pool) {
  if (!schema_.has_deaths) return Status::Ok();
  std::vector<Status> found(segments_.size());
  std::vector<std::vector<uint32_t>> read(segments_.size());
  DealOut(pool, segments_.size(), [&](size_t ordinal, int) {
    const Segment* segment = segments_[ordinal].get();
    if (segment == nullptr) return;
    std::shared_ptr<File> file;
    found[ordinal] = context_->cache->Open(segment->info.number, segment->path, &file);
    if (found[ordinal].ok()) found[ordinal] = ReadDeaths(file.get(), *segment, &read[ordinal]);
  });
  for (size_t ordinal = 0; ordinal < segments_.size(); ++ordinal) {
    HPS_RETURN_IF_ERROR(std::move(found[ordinal]));
    if (segments_[ordinal] == nullptr) continue;
    segments_[ordinal]->deaths.assign(read[ordinal].size(), kNeverDies);
    context_->bytes_read += read[ordinal].size() * kDeathBytes;
  }
  index_->ForEachLocation([&](uint64_t location) {
    const WantedRecord place = Decode(location);
    segments_[place.segment]->deaths[place.record] = read[place.segment][place.record];
  });
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment != nullptr) CountExpired(segment.get());
  }
  return Status::Ok();
}

void TableStore::Names(const uint64_t* keys, uint64_t count, uint8_t* named) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  for (uint64_t i = 0; i < count; ++i) {
    named[i] = index_->Find(MixKey(keys[i])) != KeyIndex::kNone;
  }
}

std::vector<std::shared_ptr<Segment>> TableStore::ToBury(double threshold, uint64_t below) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  std::vector<std::shared_ptr<Segment>> segments;
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment == nullptr || segment->expired == 0 || !segment->is_sealed) continue;
    const SegmentInfo& info = segment->info;
    const uint64_t dead = info.num_records - segment->live + segment->expired;
    const double share = static_cast<double>(dead * RowSpace()) /
                         static_cast<double>(info.FileBytes(segment->row_bytes));
    const bool is_excluded = set_aside_.count(info.number) > 0 || info.number >= below;
    if (share > threshold && !is_excluded) segments.push_back(segment);
  }
  return segments;
}

Status TableStore::Bury(const Segment& segment, uint64_t first, const uint64_t* keys,
                        uint64_t count, bool only_early) {
  context_->lock->AssertHeld();
  // A checkpoint that was loaded meanwhile has other segments.
  const auto is_own = [&] {
    return std::any_of(segments_.begin(), segments_.end(),
                       [&](const auto& other) { return other.get() == &segment; });
  };
  const auto is_expired = [&](uint64_t i) {
    const uint32_t death = segment.deaths[first + i];
    return only_early ? death == kDiesEarly : IsDeadBy(death);
  };
  for (uint64_t start = 0; start < count; start += kLockedKeys) {
    const uint64_t end = std::min(count, start + kLockedKeys);
    uint64_t num_expired = 0;
    {
      const std::shared_lock<std::shared_mutex> lock(mutex_);
      if (!is_own()) return Status::Ok();
      for (uint64_t i = start; i < end; ++i) num_expired += is_expired(i);
    }
    if (num_expired == 0) continue;
    HPS_RETURN_IF_ERROR(EnsureTombstonesFit());
    writer_->ReserveTombstones(num_expired);
    {
      const std::unique_lock<std::shared_mutex> lock(mutex_);
      for (uint64_t i = start; i < end; ++i) {
        if (!is_expired(i)) continue;
        if (index_->Find(MixKey(keys[i])) == Location(segment, first + i)) EraseNamed(keys[i]);
      }
    }
    HPS_RETURN_IF_ERROR(SealIfFull());
  }
  return Status::Ok();
}

}  // namespace hps
