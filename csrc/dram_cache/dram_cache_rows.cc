// The verbs of DramCache that set, drop or walk over rows: assign, create, contains, erase, scan.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "common/check.h"
#include "common/float_mode.h"
#include "dram_cache/ask_for_keys.h"
#include "dram_cache/dram_cache.h"

namespace hps {
namespace {

// A row that was given a value, which is no update.
void NotePeriod(const CacheView& cache, int64_t slot) {
  if (cache.table.has_statistics()) NoteSeen(RowAt(cache.table, slot), cache.period, cache.rules);
}

// Flags of a row that was given a value; counts into worker->result (fresh) and num_dirtied.
void MarkOne(const TableView& table, int64_t slot, WorkerBatch* worker) {
  uint8_t& flags = table.marks[slot].flags;
  worker->result += (flags & kFresh) != 0;
  worker->num_dirtied += (flags & kDirty) == 0;
  flags = static_cast<uint8_t>((flags & ~kFresh) | kDirty);
}

void SetState(const RowLayout& layout, const float* state, float* row) {
  const int64_t scalars = layout.header_scalars();
  const auto state_bytes = static_cast<size_t>(layout.dim * layout.state_vectors()) * sizeof(float);
  std::memcpy(row + kFirstScalar, state, static_cast<size_t>(scalars) * sizeof(float));
  std::memcpy(row + kRowHeaderFloats + layout.weight_floats(), state + scalars, state_bytes);
}

constexpr int64_t kPiece = 2048;  // rows that a thread takes at once

int64_t NumPieces(int64_t count) { return (count + kPiece - 1) / kPiece; }

// Runs task(first, end) over pieces of [0, count), the only one where it is called.
template <class Task>
void InPieces(ThreadPool* pool, int64_t count, Task task) {
  if (count <= kPiece) return task(0, count);
  DealOut(pool, static_cast<size_t>(NumPieces(count)), [&](size_t number, int) {
    const int64_t first = static_cast<int64_t>(number) * kPiece;
    task(first, std::min(first + kPiece, count));
  });
}

// The slot of a key whose row is stored and in place, or kNoSlot.
int64_t FindStored(const TableView& table, const KeyPlace& place, uint64_t key) {
  const int64_t slot = FindOne(HostGroup{}, table, place, key);
  const bool is_stored = slot != kNoSlot && (table.marks[slot].flags & (kFresh | kPending)) == 0;
  return is_stored ? slot : kNoSlot;
}

// Calls body with a walker of the table's rows.
template <class Body>
void WithRowLanes(const CacheView& view, Body body) {
  const HostLanes<0> lanes{view.dim};
  if (!view.is_narrow) return body(lanes);
  body(NarrowLanes<HostLanes<0>, Rounding::kNearest>{lanes, 0});
}

// The first bucket of [bucket, end) that may hold a dirty row, or `end`. Most hold none, and all
// marks of one are asked at once, so that a checkpoint does not pay for each slot of the table.
int64_t NextDirtyBucket(const TableView& table, int64_t bucket, int64_t end) {
  for (; bucket < end; ++bucket) {
    const SlotMark* marks = table.marks + bucket * kBucketSlots;
    uint64_t flags = 0;
    for (int64_t i = 0; i < kBucketSlots; i += 4) {
      uint64_t four = 0;
      std::memcpy(&four, marks + i, sizeof(four));
      flags |= four;
    }
    static_assert(sizeof(SlotMark) == 2);
    uint8_t bytes[sizeof(flags)];
    std::memcpy(bytes, &flags, sizeof(flags));
    if ((bytes[1] | bytes[3] | bytes[5] | bytes[7]) & kDirty) break;
  }
  return bucket;
}

void AskForRows(const TableView& table, int64_t bucket) {
  const int64_t first = bucket * kBucketSlots;
  for (int64_t slot = first; slot < first + kBucketSlots; ++slot) {
    if (table.digests[slot] != 0) __builtin_prefetch(RowAt(table, slot));
  }
}

// Frees the slots of a bucket's rows that are dead in a period; how many.
int64_t DropDeadOf(const TableView& table, int64_t bucket, uint32_t period) {
  const int64_t first = bucket * kBucketSlots;
  int64_t num_dropped = 0;
  for (int64_t slot = first; slot < first + kBucketSlots; ++slot) {
    const uint8_t flags = table.marks[slot].flags;
    if (table.digests[slot] == 0 || (flags & kFresh) || !IsDead(RowAt(table, slot), period)) {
      continue;
    }
    HPS_CHECK((flags & (kDirty | kPending)) == 0);
    const KeyPlace place = PlaceOfHash(table.shape, MixKey(KeyAt(table, slot)));
    if (bucket != place.first) PlainCounts{}.decrease(table.spilled + place.first);
    table.digests[slot] = 0;
    table.marks[slot] = {};
    ++num_dropped;
  }
  return num_dropped;
}

}  // namespace

int64_t DramCache::AssignHere(const uint64_t* keys, int64_t count, const float* rows, float lr,
                              uint8_t* done) {
  const DefaultFloatMode mode;
  const TableView& table = view_.table;
  WorkerBatch counted = {};
  int64_t num_done = 0;
  constexpr int64_t kAhead = 64;  // keys whose rows are asked for before the first is written
  int64_t slots[kAhead];
  const auto assign = [&](auto lanes, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      __builtin_prefetch(table.digests +
                         PlaceOfHash(table.shape, MixKey(keys[i])).first * kBucketSlots);
    }
    for (int64_t i = first; i < end; ++i) {
      const KeyPlace place = PlaceOfHash(table.shape, MixKey(keys[i]));
      const int64_t slot = FindOne(HostGroup{}, table, place, keys[i]);
      done[i] = slot != kNoSlot && (table.marks[slot].flags & kPending) == 0;
      slots[i - first] = slot;
    }
    for (int64_t i = first; i < end; ++i) {
      if (!done[i]) continue;
      const int64_t slot = slots[i - first];
      float* const row = FloatsAt(table, slot);
      const float* const given = rows + i * view_.dim;
      lanes.set(lanes.weights(row), [=](int d) { return given[d]; });
      StartState(lanes, view_.kind, row, lr, view_.numbers);
      NotePeriod(view_, slot);
      MarkOne(table, slot, &counted);
      ++num_done;
    }
  };
  WithRowLanes(view_, [&](auto lanes) {
    for (int64_t first = 0; first < count; first += kAhead) {
      assign(lanes, first, std::min(first + kAhead, count));
    }
  });
  CountUpdated(counted);
  return num_done;
}

void DramCache::Assign(BatchPlan* plan, const float* rows, const float* state,
                       const RowStatistics* statistics, float lr) {
  HPS_CHECK(IsCurrent(*plan));
  Follow(plan);
  const RowLayout& layout = options_.layout;
  plan->SortPositions(*loops_, pool_);
  const auto assign = [&](auto lanes, WorkerBatch* worker) {
    worker->result = 0;
    worker->num_dirtied = 0;
    for (int64_t id = worker->window_begin; id < worker->window_end; ++id) {
      const int64_t slot = worker->slots[id];
      const int64_t position = worker->positions[worker->starts[id + 1] - 1];
      float* const row = FloatsAt(view_.table, slot);
      const float* const given = rows + position * layout.dim;
      lanes.set(lanes.weights(row), [=](int d) { return given[d]; });
      if (state != nullptr) {
        SetState(layout, state + position * layout.state_floats(), row);
      } else {
        StartState(lanes, view_.kind, row, lr, view_.numbers);
      }
      NotePeriod(view_, slot);
      if (statistics != nullptr) {
        SetStatistics(RowAt(view_.table, slot), statistics[position], view_.rules);
      }
      MarkOne(view_.table, slot, worker);
    }
  };
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    WithRowLanes(view_, [&](auto lanes) { assign(lanes, worker); });
  });
  MarkUpdated(plan);
}

int64_t DramCache::Create(BatchPlan* plan, float lr) {
  HPS_CHECK(IsCurrent(*plan));
  Follow(plan);
  int64_t created = 0;
  const auto create = [&](auto lanes, WorkerBatch* worker) {
    worker->result = 0;
    worker->num_dirtied = 0;
    for (int64_t id = worker->window_begin; id < worker->window_end; ++id) {
      const int64_t slot = worker->slots[id];
      if ((view_.table.marks[slot].flags & kFresh) == 0) continue;
      float* const row = FloatsAt(view_.table, slot);
      StartState(lanes, view_.kind, row, lr, view_.numbers);
      NotePeriod(view_, slot);
      MarkOne(view_.table, slot, worker);
    }
    created += worker->result;
  };
  plan->ForWorkersInTurn([&](WorkerBatch* worker) {
    WithRowLanes(view_, [&](auto lanes) { create(lanes, worker); });
  });
  MarkUpdated(plan);
  return created;
}

void DramCache::ReadRows(BatchPlan* plan, uint8_t* rows) {
  HPS_CHECK(IsCurrent(*plan));
  Follow(plan);
  const int64_t image_bytes = view_.packing.image_bytes;
  plan->ForWindow(pool_, [&](WorkerBatch* worker, int64_t first) {
    uint8_t* dst = rows + first * image_bytes;
    for (int64_t id = worker->window_begin; id < worker->window_end; ++id, dst += image_bytes) {
      GetImage(view_.packing, RowAt(view_.table, worker->slots[id]), dst);
    }
  });
}

RowsHere DramCache::ReadHere(const uint64_t* keys, int64_t count, uint8_t* rows, uint8_t* found) {
  const TableView& table = view_.table;
  const int64_t image_bytes = view_.packing.image_bytes;
  std::atomic<int64_t> num_rows{0}, num_pinned{0};
  InPieces(pool_, count, [&](int64_t first, int64_t end) {
    KeyPlace places[kAskedTogether];
    RowsHere own;
    for (; first < end; first += kAskedTogether) {
      const int64_t length = std::min(kAskedTogether, end - first);
      AskForKeys(table, keys + first, length, table.shape.row_bytes, places);
      for (int64_t i = first; i < first + length; ++i) {
        if (found[i] != 0) continue;
        const int64_t slot = FindStored(table, places[i - first], keys[i]);
        if (slot == kNoSlot) continue;
        if (view_.keeps_stamps) table.marks[slot] = Touched(table.marks[slot], view_.now);
        GetImage(view_.packing, RowAt(table, slot), rows + i * image_bytes);
        found[i] = 1;
        ++own.num_rows;
        own.num_pinned += table.pins[slot] != 0;
      }
    }
    num_rows += own.num_rows;
    num_pinned += own.num_pinned;
  });
  counters_.hits += num_rows;
  AdvanceClock(num_rows);
  return {num_rows, num_pinned};
}

int64_t DramCache::WriteHere(const uint8_t* rows, int64_t count, uint8_t* done) {
  const TableView& table = view_.table;
  const int64_t image_bytes = view_.packing.image_bytes;
  std::vector<WorkerBatch> counted(static_cast<size_t>(NumPieces(count)));
  std::atomic<int64_t> num_done{0};
  InPieces(pool_, count, [&](int64_t first, int64_t end) {
    KeyPlace places[kAskedTogether];
    uint64_t keys[kAskedTogether];
    WorkerBatch& own = counted[static_cast<size_t>(first / kPiece)];
    int64_t num_own = 0;
    for (; first < end; first += kAskedTogether) {
      const int64_t length = std::min(kAskedTogether, end - first);
      for (int64_t i = 0; i < length; ++i) {
        std::memcpy(keys + i, rows + (first + i) * image_bytes, sizeof(uint64_t));
      }
      AskForKeys<true>(table, keys, length, table.shape.row_bytes, places);
      for (int64_t i = 0; i < length; ++i) {
        if (done[first + i] != 0) continue;
        const int64_t slot = FindStored(table, places[i], keys[i]);
        if (slot == kNoSlot) continue;
        if (view_.keeps_stamps) table.marks[slot] = Touched(table.marks[slot], view_.now);
        SetSlot(view_.packing, rows + (first + i) * image_bytes, RowAt(table, slot));
        MarkOne(table, slot, &own);
        done[first + i] = 1;
        ++num_own;
      }
    }
    num_done += num_own;
  });
  for (const WorkerBatch& one : counted) CountUpdated(one);
  counters_.hits += num_done;
  AdvanceClock(num_done);
  return num_done;
}

void DramCache::InitialWeights(const uint64_t* keys, int64_t count, float* out) const {
  const DefaultFloatMode mode;
  WithRowLanes(view_, [&](auto lanes) {
    for (int64_t i = 0; i < count; ++i) {
      InitializeWeights(lanes, view_.initializer, keys[i], lanes.as_read(out + i * view_.dim));
    }
  });
}

Presence DramCache::Contains(uint64_t key) const {
  const TableView& table = view_.table;
  const int64_t slot = FindOne(HostGroup{}, table, PlaceOfHash(table.shape, MixKey(key)), key);
  if (slot == kNoSlot) return Presence::kAbsent;
  const uint8_t flags = table.marks[slot].flags;
  if (flags & kPending) return Presence::kPending;
  if (flags & kFresh) return Presence::kFresh;
  return flags & kDirty ? Presence::kStoredDirty : Presence::kStored;
}

Status DramCache::Erase(const uint64_t* keys, int64_t count, uint8_t* presence) {
  const TableView& table = view_.table;
  const auto find = [&](uint64_t key) {
    return FindOne(HostGroup{}, table, PlaceOfHash(table.shape, MixKey(key)), key);
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = find(keys[i]);
    if (slot != kNoSlot && table.pins[slot] != 0) {
      return Status(StatusCode::kConfig,
                    "key " + std::to_string(keys[i]) +
                        " is in use by a batch of an open pipeline; erase it after that batch");
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = find(keys[i]);
    presence[i] = static_cast<uint8_t>(Contains(keys[i]));
    if (slot == kNoSlot) continue;
    const KeyPlace place = PlaceOfHash(table.shape, MixKey(keys[i]));
    uint8_t& spilled = table.spilled[place.first];
    if (slot / kBucketSlots != place.first && spilled != kSpilledSticky) --spilled;
    const uint8_t flags = table.marks[slot].flags;
    num_fresh_ -= (flags & kFresh) != 0;
    num_rows_ -= (flags & kFresh) == 0;
    num_dirty_ -= (flags & kDirty) != 0;
    table.digests[slot] = 0;
    table.marks[slot] = {};
    ++epoch_;
  }
  return Status::Ok();
}

// Both buckets of a key are in one part, so threads that have parts to themselves share nothing.
int64_t DramCache::DropDead(uint32_t period) {
  HPS_CHECK(num_pins_ == 0);
  std::vector<int64_t> dropped(pool_->num_threads());
  const int64_t num_parts = shape().num_parts;
  DealOut(pool_, static_cast<size_t>(num_parts), [&](size_t part, int worker) {
    const int64_t end = view_.table.shape.num_buckets();
    for (int64_t bucket = static_cast<int64_t>(part); bucket < end; bucket += num_parts) {
      if (bucket + num_parts < end) AskForRows(view_.table, bucket + num_parts);
      dropped[worker] += DropDeadOf(view_.table, bucket, period);
    }
  });
  const int64_t num_dropped = std::accumulate(dropped.begin(), dropped.end(), int64_t{0});
  num_rows_ -= num_dropped;
  if (num_dropped > 0) ++epoch_;
  return num_dropped;
}

int64_t DramCache::Scan(int64_t* cursor, bool dirty_only, int64_t most, uint8_t* rows) const {
  const TableView& table = view_.table;
  const int64_t num_slots = table.shape.num_slots();
  const int64_t slot_bytes = table.shape.row_bytes;
  const int64_t image_bytes = view_.packing.image_bytes;
  constexpr int64_t kAhead = 64;  // rows asked for before the first of them is copied
  int64_t found[kAhead];
  int64_t count = 0;
  int64_t slot = *cursor;
  while (slot < num_slots && count < most) {
    int64_t num_found = 0;
    for (; slot < num_slots && num_found < std::min(kAhead, most - count); ++slot) {
      if (dirty_only && slot % kBucketSlots == 0) {
        const int64_t bucket = slot / kBucketSlots;
        slot = NextDirtyBucket(table, bucket, table.shape.num_buckets()) * kBucketSlots;
        if (slot == num_slots) break;
      }
      const uint8_t flags = table.marks[slot].flags;
      if (table.digests[slot] == 0 || (flags & (kFresh | kPending))) continue;
      if (dirty_only && !(flags & kDirty)) continue;
      __builtin_prefetch(RowAt(table, slot));
      __builtin_prefetch(RowAt(table, slot) + slot_bytes - 1);
      found[num_found++] = slot;
    }
    for (int64_t i = 0; i < num_found; ++i, ++count) {
      GetImage(view_.packing, RowAt(table, found[i]), rows + count * image_bytes);
    }
  }
  *cursor = slot < num_slots ? slot : -1;
  return count;
}

void DramCache::MarkClean(int64_t first, int64_t last) {
  const int64_t num_slots = view_.table.shape.num_slots();
  const int64_t end = last < 0 ? num_slots : last;
  HPS_CHECK(first >= 0 && end <= num_slots);
  const int64_t end_bucket = (end + kBucketSlots - 1) / kBucketSlots;
  for (int64_t slot = first; slot < end && num_dirty_ > 0; ++slot) {
    if (slot % kBucketSlots == 0) {
      slot = NextDirtyBucket(view_.table, slot / kBucketSlots, end_bucket) * kBucketSlots;
      if (slot >= end) break;
    }
    uint8_t& flags = view_.table.marks[slot].flags;
    num_dirty_ -= (flags & kDirty) != 0;
    flags = static_cast<uint8_t>(flags & ~kDirty);
  }
}

void DramCache::Clear() {
  HPS_CHECK(num_pins_ == 0);
  const TableView& table = view_.table;
  const auto num_slots = static_cast<size_t>(table.shape.num_slots());
  std::memset(table.digests, 0, num_slots);
  std::memset(static_cast<void*>(table.marks), 0, num_slots * sizeof(SlotMark));
  std::memset(table.spilled, 0, static_cast<size_t>(table.shape.num_buckets()));
  num_rows_ = num_fresh_ = num_dirty_ = 0;
  ++epoch_;
}

}  // namespace hps
