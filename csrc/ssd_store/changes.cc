// Which segments are one checkpoint's alone, and what their footers name.
//
// Above it: changes.h. Below it: table_store, segment, file_cache.
#include "ssd_store/changes.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include "ssd_store/file_cache.h"
#include "ssd_store/segment.h"

namespace hps {
namespace {

using Segments = std::vector<std::shared_ptr<const Segment>>;
using Numbers = std::set<uint64_t>;
using VisitKeys = std::function<void(uint64_t first, const uint64_t* keys, uint64_t count)>;

constexpr uint64_t kKeysAtOnce = 16384;

Numbers NumbersOf(const Segments& segments) {
  Numbers numbers;
  for (const auto& segment : segments) numbers.insert(segment->info.number);
  return numbers;
}

// Calls visit(first, keys, count, places) for keys[count], some at a time.
template <typename Visit>
void WithPlaces(const TableStore& table, const uint64_t* keys, uint64_t count, Visit visit) {
  std::vector<RecordPlace> places(std::min(count, kKeysAtOnce));
  for (uint64_t first = 0; first < count; first += kKeysAtOnce) {
    const uint64_t size = std::min(kKeysAtOnce, count - first);
    table.Places(keys + first, size, places.data());
    visit(first, keys + first, size, places.data());
  }
}

Status ReadKeys(FileCache* cache, const Segment& segment, const VisitKeys& visit,
                std::vector<uint64_t>* tombstones) {
  std::shared_ptr<File> file;
  HPS_RETURN_IF_ERROR(cache->Open(segment.info.number, segment.path, &file));
  FooterVisitor visitor;
  visitor.keys = visit;
  if (tombstones != nullptr) {
    visitor.tombstones = [tombstones](const Tombstone* found, uint64_t count) {
      for (uint64_t i = 0; i < count; ++i) tombstones->push_back(found[i].key);
    };
  }
  return ReadFooter(file.get(), segment, visitor);
}

// The rows of a segment that only the later checkpoint has; the keys of its other records, which
// were superseded, or have gone again, are among the others.
Status AddRows(const TableStore& after, FileCache* cache, std::shared_ptr<const Segment> segment,
               Changes* changes) {
  TableSnapshot::Part part;
  const uint64_t number = segment->info.number;
  const uint64_t num_records = segment->info.num_records;
  const bool is_whole = after.HoldsAll(*segment);  // as most are of what was updated just now
  part.live.assign((num_records + 63) / 64, is_whole ? ~uint64_t{0} : 0);
  if (is_whole) {
    if (num_records % 64 != 0) part.live.back() >>= 64 - num_records % 64;
    changes->rows.num_rows += num_records;
    if (segment->info.num_tombstones > 0) {
      HPS_RETURN_IF_ERROR(ReadKeys(cache, *segment, {}, &changes->others));
    }
    part.segment = std::move(segment);
    changes->rows.parts.push_back(std::move(part));
    return Status::Ok();
  }
  const auto visit = [&](uint64_t start, const uint64_t* keys, uint64_t count) {
    WithPlaces(after, keys, count,
               [&](uint64_t first, const uint64_t* some, uint64_t size, const RecordPlace* places) {
                 for (uint64_t i = 0; i < size; ++i) {
                   const uint64_t record = start + first + i;
                   if (places[i].segment == number && places[i].record == record) {
                     part.live[record / 64] |= uint64_t{1} << (record % 64);
                     ++changes->rows.num_rows;
                   } else {
                     changes->others.push_back(some[i]);
                   }
                 }
               });
  };
  HPS_RETURN_IF_ERROR(ReadKeys(cache, *segment, visit, &changes->others));
  part.segment = std::move(segment);
  changes->rows.parts.push_back(std::move(part));
  return Status::Ok();
}

// The keys of a segment's records that die between the two periods.
Status AddDying(FileCache* cache, const Segment& segment, uint32_t first_period,
                uint32_t last_period, std::vector<uint64_t>* found) {
  const std::vector<uint32_t>& deaths = segment.deaths;
  const auto dies = [&](uint32_t death) { return first_period < death && death <= last_period; };
  if (std::none_of(deaths.begin(), deaths.end(), dies)) return Status::Ok();
  const auto visit = [&](uint64_t first, const uint64_t* keys, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      if (dies(deaths[first + i])) found->push_back(keys[i]);
    }
  };
  return ReadKeys(cache, segment, visit, nullptr);
}

// Leaves those keys that are not in one place in both, nor among the rows.
void LeaveOthers(const TableStore& before, const TableStore& after, const Numbers& own,
                 std::vector<uint64_t>* keys) {
  std::sort(keys->begin(), keys->end());
  keys->erase(std::unique(keys->begin(), keys->end()), keys->end());
  std::vector<RecordPlace> old(keys->size());
  before.Places(keys->data(), keys->size(), old.data());
  uint64_t num_left = 0;
  WithPlaces(after, keys->data(), keys->size(),
             [&](uint64_t first, const uint64_t* some, uint64_t size, const RecordPlace* places) {
               for (uint64_t i = 0; i < size; ++i) {
                 if (places[i] == old[first + i] || own.count(places[i].segment) > 0) continue;
                 (*keys)[num_left++] = some[i];
               }
             });
  keys->resize(num_left);
}

}  // namespace

Status FindChanges(const TableAtCheckpoint& before, const TableAtCheckpoint& after,
                   FileCache* cache, Changes* changes) {
  *changes = Changes();
  changes->rows.row_bytes = after.table->schema().row_bytes;
  const Segments old = before.table->Segments();
  const Segments now = after.table->Segments();
  const Numbers old_numbers = NumbersOf(old);
  const Numbers numbers = NumbersOf(now);
  Numbers own;
  for (const auto& segment : now) {
    if (old_numbers.count(segment->info.number) > 0) continue;
    own.insert(segment->info.number);
    HPS_RETURN_IF_ERROR(AddRows(*after.table, cache, segment, changes));
  }
  std::vector<uint64_t>* const others = &changes->others;
  const uint32_t first_period = std::min(before.period, after.period);
  const uint32_t last_period = std::max(before.period, after.period);
  for (const auto& segment : old) {
    if (numbers.count(segment->info.number) > 0) {
      HPS_RETURN_IF_ERROR(AddDying(cache, *segment, first_period, last_period, others));
      continue;
    }
    if (after.table->HasSuperseded(*before.table, segment->info.number)) continue;
    const auto add = [others](uint64_t, const uint64_t* keys, uint64_t count) {
      others->insert(others->end(), keys, keys + count);
    };
    HPS_RETURN_IF_ERROR(ReadKeys(cache, *segment, add, others));
  }
  LeaveOthers(*before.table, *after.table, own, others);
  return Status::Ok();
}

}  // namespace hps
