// Looking up a batch: slots of its keys, which are missing, and the clock that ticks with use.
//
// Above it: kernels.h. Below it: csrc/table/probe.h.
#pragma once

#include "gpu_cache/cache_args.h"

namespace hps {

struct FindArgs {
  CacheArgs cache;
  BatchArgs batch;
  int64_t first;  // of the window to be
  int64_t count;  // of the window to be; negative: to the last key
  int64_t bound;  // work items, at least the window's keys; missing_ranks are written up to it
  // The last rank of the tables before, with which missing_ranks are summed up together; null:
  // there is none.
  const int32_t* rank_before = nullptr;
  BatchNumbers* told = nullptr;  // where Tick leaves the numbers for the host; null: nowhere
};

inline namespace HPS_BUILD {

template <class Group>
HPS_HD int64_t FindKey(Group group, const CacheArgs& cache, uint64_t key) {
  return FindOne(group, cache.table, PlaceOfKey(cache, key), key);
}

// i: 0.
template <class Group>
HPS_HD void BeginFindOne(Group, const FindArgs& args, int64_t) {
  BatchNumbers* numbers = args.batch.numbers;
  numbers->window_first = args.first;
  numbers->window_size = args.count < 0 ? numbers->num_unique - args.first : args.count;
  numbers->num_missing = 0;
}

// i: below bound. Then missing_ranks are summed up.
template <class Group>
HPS_HD void FindSlotOne(Group group, const FindArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  int32_t is_missing = 0;
  if (IsInWindow(batch, i)) {
    const int64_t id = WindowId(batch, i);
    const int64_t slot = FindKey(group, args.cache, batch.unique_keys[id]);
    is_missing = slot == kNoSlot;
    group.elect([&] {
      batch.slots[id] = slot;
      if (slot != kNoSlot && args.cache.clock->keeps_stamps) Touch(args.cache, slot);
    });
  }
  group.elect([&] { batch.missing_ranks[i] = is_missing; });
}

// i: below bound.
template <class Group>
HPS_HD void ListMissingOne(Group, const FindArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const int32_t before = args.rank_before == nullptr ? 0 : *args.rank_before;
  const int32_t rank = batch.missing_ranks[i] - before;
  if (i == args.bound - 1) batch.numbers->num_missing = rank;
  if (rank == (i == 0 ? 0 : batch.missing_ranks[i - 1] - before)) return;
  const int64_t id = WindowId(batch, i);
  batch.missing[rank - 1] = static_cast<uint32_t>(id);
  batch.missing_keys[rank - 1] = batch.unique_keys[id];
}

// `num_used` keys were looked up in a table of `num_rows`. The clock ticks with use, not with
// batches, so that its 256 values span several times the table's content whatever the batch size.
HPS_HD void AdvanceClock(const CacheArgs& cache, int64_t num_rows, int64_t num_used) {
  CacheClock* clock = cache.clock;
  const TableShape& shape = cache.table.shape;
  clock->keeps_stamps = 8 * num_rows > 7 * shape.num_slots();
  if (clock->num_swept != 0) {
    clock->sweep_bucket = (clock->sweep_bucket + clock->num_swept) % shape.num_buckets();
  }
  clock->num_swept = 0;
  clock->used_since_tick += num_used;
  if (clock->used_since_tick * kTicksPerTurn < shape.num_slots()) return;
  clock->used_since_tick = 0;
  clock->now = (clock->now + 1) & 255;
  clock->num_swept = (shape.num_buckets() + kTicksPerTurn - 1) / kTicksPerTurn;
}

// i: below bound. Marks one of the batch's keys, whatever the window, as wanted if it is here: it
// gives way only where all do. A mark ends with the row's next use. While the table has room
// nothing gives way, and a use would not take the mark off.
template <class Group>
HPS_HD void WantOne(Group group, const FindArgs& args, int64_t i) {
  const CacheArgs& cache = args.cache;
  if (i >= args.batch.numbers->num_unique || !cache.clock->keeps_stamps) return;
  const int64_t slot = FindKey(group, cache, args.batch.unique_keys[i]);
  group.elect([&] {
    if (i == 0) cache.clock->has_wants = 1;
    if (slot != kNoSlot) cache.table.marks[slot].flags |= kWanted;
  });
}

// Readies the numbers for a reserve of the window, of which the first round that can help is open.
HPS_HD void BeginReserve(BatchNumbers* numbers, int64_t num_slots) {
  numbers->refused = numbers->window_size > num_slots;
  for (int round = 0; round < kNumRounds; ++round) numbers->num_listed[round] = 0;
  for (int round = 0; round <= kNumRounds; ++round) numbers->open[round] = 0;
  numbers->open[numbers->is_full ? kVictimFirst : kFirst] = numbers->num_missing > 0;
  numbers->num_victims = 0;
  numbers->num_spared = 0;
}

// i: 0. What follows a look-up of the window: counters, the clock, whether a reserve will find free
// slots.
template <class Group>
HPS_HD void TickOne(Group, const FindArgs& args, int64_t) {
  BatchNumbers& numbers = *args.batch.numbers;
  Count(args.cache, kCountHits, 0, numbers.window_size - numbers.num_missing);
  Count(args.cache, kCountMisses, 0, numbers.num_missing);
  const int64_t num_rows = CountOf(args.cache, kCountRows) + CountOf(args.cache, kCountFresh);
  AdvanceClock(args.cache, num_rows, numbers.window_size);
  const int64_t num_taken = num_rows + CountOf(args.cache, kCountPending);
  const int64_t num_slots = args.cache.table.shape.num_slots();
  numbers.is_full = num_taken == num_slots;
  BeginReserve(&numbers, num_slots);
  if (args.told != nullptr) *args.told = numbers;
}

// i: below ceil(num_buckets / kTicksPerTurn). One bucket of the rolling sweep, if it is due.
template <class Group>
HPS_HD void SweepOne(Group group, const FindArgs& args, int64_t i) {
  const CacheClock& clock = *args.cache.clock;
  if (i >= clock.num_swept) return;
  const int64_t bucket = (clock.sweep_bucket + i) % args.cache.table.shape.num_buckets();
  SlotMark* marks = args.cache.table.marks + bucket * kBucketSlots;
  const uint8_t now = Now(args.cache);
  group.for_each(kBucketSlots, [=](int64_t slot) { marks[slot] = Swept(marks[slot], now); });
}

}  // namespace HPS_BUILD
}  // namespace hps
