// Scattered reads: what the page cache holds is taken at once, the rest is merged into longer
// reads, most of them past the page cache, and all asked for before any is waited for.
//
// Above it: row_fetch.h. Below it: file_cache, file_system's batch reads, segment's format. The
// figures behind the constants are in docs/decisions/0005-reading-from-ssd.md.
#include "ssd_store/row_fetch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <system_error>
#include <thread>

namespace hps {
namespace {

// In memory a gap costs its copying, on disk it saves another read.
constexpr uint64_t kMostCachedGap = 4096;
constexpr uint64_t kMostCachedBytes = uint64_t{64} << 10;
constexpr uint64_t kMostGap = uint64_t{32} << 10;
constexpr uint64_t kMostReadBytes = uint64_t{512} << 10;
constexpr size_t kMostOpenFiles = 128;  // of one batch at once
constexpr uint64_t kDeliveredAtOnce = 96;
constexpr uint64_t kRecordsOfThread = 2048;  // fewer are not worth another thread

// A run of wanted records close enough to share a read.
uint64_t EndOfRun(const WantedRecord* wanted, uint64_t first, uint64_t end, uint64_t most_skipped,
                  uint64_t most_records) {
  uint64_t next = first + 1;
  while (next < end && wanted[next].record - wanted[next - 1].record <= most_skipped &&
         wanted[next].record - wanted[first].record < most_records) {
    ++next;
  }
  return next;
}

// Decides whether asking the page cache is worth a call: after a few misses only one record in
// kSkipped is tried, until one is there.
class CacheGuess {
 public:
  bool IsWorthATry() const { return credit_ > 0; }
  // After a hit another one is likely, and asking first would double the calls.
  bool IsLikely() const { return is_likely_; }
  void Hit() {
    is_likely_ = true;
    credit_ = std::min(credit_ + 4, 32);
  }
  void Miss() {
    is_likely_ = false;
    credit_ -= 4;
  }
  // Records to pass over; then one more try.
  uint64_t Skip() {
    credit_ = 1;
    return kSkipped;
  }

 private:
  static constexpr uint64_t kSkipped = 128;
  int credit_ = 16;
  bool is_likely_ = false;
};

class RowFetch {
 public:
  RowFetch(const FetchSource& source, const uint64_t* keys, char* rows)
      : source_(source), keys_(keys), rows_(rows), cached_(new char[kMostCachedBytes]) {}

  // Records of at most kMostOpenFiles segments, sorted by place.
  Status Fetch(const WantedRecord* wanted, uint64_t count) {
    places_.clear();
    rest_.clear();
    reads_.clear();
    runs_.clear();
    for (uint64_t first = 0; first < count;) {
      uint64_t end = first + 1;
      while (end < count && wanted[end].segment == wanted[first].segment) ++end;
      Place place;
      place.segment = source_.segments[wanted[first].segment].get();
      HPS_RETURN_IF_ERROR(
          source_.cache->Open(place.segment->info.number, place.segment->path, &place.file));
      const uint64_t rest = rest_.size();
      HPS_RETURN_IF_ERROR(TakeCached(place, wanted + first, end - first));
      if (rest_.size() > rest) {
        HPS_RETURN_IF_ERROR(source_.cache->OpenDirect(place.segment->info.number,
                                                      place.segment->path, &place.direct));
        PlanReads(place, rest);
      }
      places_.push_back(std::move(place));
      first = end;
    }
    return source_.files->ReadBatch(
        reads_.data(), reads_.size(), [this](uint64_t read, const char* bytes) {
          const Run& run = runs_[read];
          return Deliver(places_[run.place], &rest_[run.first], run.count, bytes);
        });
  }

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Place {
    const Segment* segment = nullptr;
    std::shared_ptr<File> file;
    std::shared_ptr<File> direct;  // the same, past the page cache; none where that cannot be
  };
  struct Run {
    uint32_t place = 0;
    uint32_t count = 0;
    uint64_t first = 0;  // in rest_
  };

  static uint64_t OffsetOf(const Place& place, uint64_t record) {
    return place.segment->info.RecordOffset(record, place.segment->row_bytes);
  }

  // Delivers what the page cache holds; the others go to rest_.
  Status TakeCached(const Place& place, const WantedRecord* wanted, uint64_t count) {
    const uint64_t stride = place.segment->stride();
    const uint64_t most_skipped = kMostCachedGap / stride + 1;
    const uint64_t most_records = kMostCachedBytes / stride;
    for (uint64_t first = 0; first < count;) {
      uint64_t end = std::min(count, first + 1);
      bool is_cached = false;
      if (most_records > 0 && guess_.IsWorthATry()) {
        end = EndOfRun(wanted, first, count, most_skipped, most_records);
        const uint64_t size = (wanted[end - 1].record - wanted[first].record + 1) * stride;
        const uint64_t offset = OffsetOf(place, wanted[first].record);
        is_cached = (guess_.IsLikely() || place.file->IsCached(offset, size)) &&
                    place.file->ReadCached(offset, size, cached_.get());
        if (is_cached) {
          guess_.Hit();
          bytes_read_ += size;
          HPS_RETURN_IF_ERROR(Deliver(place, wanted + first, end - first, cached_.get()));
        } else {
          guess_.Miss();
        }
      } else {
        end = std::min(count, first + guess_.Skip());
      }
      if (!is_cached) rest_.insert(rest_.end(), wanted + first, wanted + end);
      first = end;
    }
    return Status::Ok();
  }

  // How to read a run from its first record on. What the page cache begins to hold is read through
  // it (it may not be on disk yet), and so are some of the others: what is wanted again and again
  // comes to stay, and what is wanted once costs the memory little and the processor less.
  File* Choose(const Place& place, uint64_t record) {
    if (place.direct == nullptr) return place.file.get();
    const bool is_cached = place.file->IsCached(OffsetOf(place, record), place.segment->stride());
    return is_cached || source_.cache->Admits() ? place.file.get() : place.direct.get();
  }

  // Reads for rest_ from `first` on, all of which lie in `place`, the next of places_.
  void PlanReads(const Place& place, uint64_t first) {
    const uint64_t stride = place.segment->stride();
    const uint64_t most_records = std::max<uint64_t>(1, kMostReadBytes / stride);
    while (first < rest_.size()) {
      const uint64_t end =
          EndOfRun(rest_.data(), first, rest_.size(), kMostGap / stride + 1, most_records);
      const uint64_t start = rest_[first].record;
      const uint64_t size = (rest_[end - 1].record - start + 1) * stride;
      reads_.push_back({Choose(place, start), OffsetOf(place, start), size});
      runs_.push_back(
          {static_cast<uint32_t>(places_.size()), static_cast<uint32_t>(end - first), first});
      bytes_read_ += size;
      first = end;
    }
  }

  // Copies records to their rows and checks them; `bytes` starts with the first of them. A row
  // whose record is damaged has been written: its batch fails.
  Status Deliver(const Place& place, const WantedRecord* wanted, uint64_t count,
                 const char* bytes) const {
    const uint64_t row_bytes = place.segment->row_bytes;
    const uint64_t stride = place.segment->stride();
    std::array<uint64_t, kDeliveredAtOnce> numbers;
    std::array<const char*, kDeliveredAtOnce> records;
    std::array<char*, kDeliveredAtOnce> rows;
    std::array<uint32_t, kDeliveredAtOnce> checksums;
    const uint64_t start = wanted[0].record;
    for (uint64_t first = 0; first < count; first += kDeliveredAtOnce) {
      const uint64_t size = std::min(kDeliveredAtOnce, count - first);
      for (uint64_t i = 0; i < size; ++i) {
        const WantedRecord& next = wanted[first + i];
        numbers[i] = next.record;
        records[i] = bytes + (next.record - start) * stride;
        rows[i] = rows_ + next.row * row_bytes;
        __builtin_prefetch(rows[i], 1);
      }
      RecordChecksums(*place.segment, numbers.data(), records.data(), rows.data(), size,
                      checksums.data());
      for (uint64_t i = 0; i < size; ++i) {
        HPS_RETURN_IF_ERROR(CheckRecord(*place.segment, numbers[i], records[i], checksums[i],
                                        &keys_[wanted[first + i].row]));
      }
    }
    return Status::Ok();
  }

  const FetchSource& source_;
  const uint64_t* keys_;
  char* rows_;
  std::unique_ptr<char[]> cached_;
  CacheGuess guess_;
  std::vector<Place> places_;
  std::vector<WantedRecord> rest_;  // not in the page cache, by place
  std::vector<BatchRead> reads_;
  std::vector<Run> runs_;  // what each read brings
  uint64_t bytes_read_ = 0;
};

// Fetches wanted[count], sorted by place, as many files at once as may be open.
Status FetchShare(const FetchSource& source, const WantedRecord* wanted, uint64_t count,
                  const uint64_t* keys, char* rows, std::atomic<uint64_t>* bytes_read) {
  RowFetch fetch(source, keys, rows);
  Status status;
  for (uint64_t first = 0; status.ok() && first < count;) {
    uint64_t end = first + 1;
    size_t num_files = 1;
    for (; end < count; ++end) {
      if (wanted[end].segment == wanted[end - 1].segment) continue;
      if (++num_files > kMostOpenFiles) break;
    }
    status = fetch.Fetch(&wanted[first], end - first);
    first = end;
  }
  *bytes_read += fetch.bytes_read();
  return status;
}

}  // namespace

Status FetchRecords(const FetchSource& source, std::vector<WantedRecord> wanted,
                    const uint64_t* keys, char* rows, uint64_t* bytes_read) {
  SortByPlace(&wanted);
  const uint64_t num_shares = std::clamp<uint64_t>(wanted.size() / kRecordsOfThread, 1,
                                                   static_cast<uint64_t>(source.num_threads));
  std::atomic<uint64_t> total{0};
  std::vector<Status> done(num_shares);
  const auto fetch = [&](uint64_t share) {
    const uint64_t first = wanted.size() * share / num_shares;
    const uint64_t end = wanted.size() * (share + 1) / num_shares;
    done[share] = FetchShare(source, wanted.data() + first, end - first, keys, rows, &total);
  };
  std::vector<std::thread> helpers;
  uint64_t next = 1;
  try {
    for (; next < num_shares; ++next) helpers.emplace_back(fetch, next);
  } catch (const std::system_error&) {
    // The system grants no more threads: this one does the rest.
  }
  fetch(0);
  for (; next < num_shares; ++next) fetch(next);
  for (std::thread& helper : helpers) helper.join();
  *bytes_read += total;
  for (Status& status : done) HPS_RETURN_IF_ERROR(std::move(status));
  return Status::Ok();
}

}  // namespace hps
