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
  int64_t bound;  // at least the window's keys
  // Where ListMissing leaves the numbers for the host; null: nowhere.
  BatchNumbers* told = nullptr;
  // Not 0: EndFind pins a window whose rows are all here, none of which has all its pins.
  int32_t pins = 0;
};

inline namespace HPS_BUILD {

template <class Group>
HPS_HD int64_t FindKey(Group group, const CacheArgs& cache, uint64_t key) {
  return FindOne(group, cache.table, PlaceOfKey(cache, key), key);
}

// i: below bound, and 0 in any case. Sets the window, too, and readies nothing else: no flag of a
// missing key is set between verbs.
template <class Group>
HPS_HD void FindSlotOne(Group group, const FindArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  BatchNumbers* const numbers = batch.numbers;
  const int64_t size = args.count < 0 ? numbers->num_unique - args.first : args.count;
  if (i == 0) {
    group.elect([&] {
      numbers->window_first = args.first;
      numbers->window_size = size;
    });
  }
  if (i >= size) return;
  const int64_t id = args.first + i;
  const int64_t slot = FindKey(group, args.cache, batch.unique_keys[id]);
  group.elect([&] {
    batch.slots[id] = slot;
    if (slot == kNoSlot) SetFlag(batch.missing_flags, i);
    if (slot != kNoSlot && args.cache.clock->keeps_stamps) Touch(args.cache, slot);
  });
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

// Sums of a cache's counter over its stripes.
template <class Group>
HPS_HD int64_t SumOf(Group group, const CacheArgs& cache, CacheCounter counter) {
  const int64_t* const counters = cache.counters + counter;
  return group.total(kCounterStripes, [=](int64_t k) { return counters[k * kCountersAStripe]; });
}

// What follows a look-up of the window: counters, the clock, whether a reserve will find free
// slots.
template <class Group>
HPS_HD void Tick(Group group, const FindArgs& args) {
  const CacheArgs& cache = args.cache;
  BatchNumbers& numbers = *args.batch.numbers;
  const int64_t num_missing = CountFlags(group, args.batch.missing_flags, numbers.window_size);
  const int64_t num_rows = SumOf(group, cache, kCountRows) + SumOf(group, cache, kCountFresh);
  const int64_t num_taken = num_rows + SumOf(group, cache, kCountPending);
  group.elect([&] {
    numbers.num_missing = num_missing;
    Count(cache, kCountHits, 0, numbers.window_size - num_missing);
    Count(cache, kCountMisses, 0, num_missing);
    AdvanceClock(cache, num_rows, numbers.window_size);
    const int64_t num_slots = cache.table.shape.num_slots();
    numbers.is_full = num_taken == num_slots;
    BeginReserve(&numbers, num_slots);
    if (args.told != nullptr) *args.told = numbers;
  });
}

// i: 32 keys of the window, below ceil(bound / kFlagsAWord), and 0 in any case.
template <class Group>
HPS_HD void ListMissingOne(Group group, const FindArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  if (i == 0) Tick(group, args);
  if (i >= NumFlagWords(batch.numbers->window_size)) return;
  const uint32_t word = batch.missing_flags.words[i];
  if (word == 0) return;
  const int64_t before = FlagsBeforeWord(group, batch.missing_flags, i);
  group.for_each(kFlagsAWord, [&](int64_t bit) {
    if (!(word >> bit & 1)) return;
    const int64_t id = args.first + i * kFlagsAWord + bit;
    const int64_t entry = before + CountBits(word & ((uint32_t{1} << bit) - 1));
    batch.missing[entry] = static_cast<uint32_t>(id);
    batch.missing_keys[entry] = batch.unique_keys[id];
  });
}

// i: 32 keys of the window and a bucket, below ceil(bound / kFlagsAWord) and, too, below
// ceil(num_buckets / kTicksPerTurn). One bucket of the rolling sweep, if it is due; the flags of
// missing keys are cleared; rows are pinned, if all are here and that is wanted.
template <class Group>
HPS_HD void EndFindOne(Group group, const FindArgs& args, int64_t i) {
  const CacheArgs& cache = args.cache;
  const BatchArgs& batch = args.batch;
  const CacheClock& clock = *cache.clock;
  if (i < clock.num_swept) {
    const int64_t bucket = (clock.sweep_bucket + i) % cache.table.shape.num_buckets();
    SlotMark* const marks = cache.table.marks + bucket * kBucketSlots;
    const uint8_t now = Now(cache);
    group.for_each(kBucketSlots, [=](int64_t slot) { marks[slot] = Swept(marks[slot], now); });
  }
  const BatchNumbers& numbers = *batch.numbers;
  group.elect([&] { ClearFlags(batch.missing_flags, i, numbers.window_size); });
  if (!args.pins || numbers.num_missing != 0) return;
  group.for_each(kFlagsAWord, [&](int64_t k) {
    const int64_t at = i * kFlagsAWord + k;
    if (IsInWindow(batch, at)) ++cache.table.pins[batch.slots[WindowId(batch, at)]];
  });
  if (i == 0) group.elect([&] { Count(cache, kCountPins, 0, numbers.window_size); });
}

}  // namespace HPS_BUILD
}  // namespace hps
