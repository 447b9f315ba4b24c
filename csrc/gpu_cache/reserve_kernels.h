// Reserving slots for the missing keys of a batch: pins, the six phases of csrc/table/reserve.h
// with a lane group for each bucket, victims, and the way back.
//
// Above it: kernels.h. Below it: csrc/table/reserve.h. Order of the kernels, none of which the host
// has to wait for (one that has nothing to do returns at once):
//     BeginReserve, Pin
//     group by kFirst;    Place round 1
//     group by kEmptier;  Place round 2
//                         Place round 3 (lists of kFirst again)
//     group by kSecond;   Place round 4
//                         Place round 5 (lists of kFirst again)
//     group by kSecondAgain; Place round 6
//     SettleReserve, UndoReserve, NoteVictim, [sum up victim_ranks], CommitEntry
// where "group" is CountInBucket, StartList, PutIntoList. Rounds 3 to 6 are the free slots of the
// first and the second bucket, then their victims. A full table goes from Begin to round 5.
// A bucket's list is longer than the slots it can give only in a flood, and then costs each slot
// taken one look over the list.
#pragma once

#include "gpu_cache/cache_args.h"
#include "table/row_pieces.h"

namespace hps {

enum Grouping : int32_t { kByFirst = 0, kByEmptier = 1, kBySecond = 2, kBySecondAgain = 3 };

struct ReserveArgs {
  CacheArgs cache;
  BatchArgs batch;
  int64_t bound;     // work items: window_size or more
  uint8_t* victims;  // [bound, row_bytes] or null while the rounds run
  int32_t grouping;  // of the grouping kernels
  int32_t round;     // of PlaceBucket: 1 to 6
};

inline namespace HPS_BUILD {

// i: 0.
template <class Group>
HPS_HD void BeginReserveOne(Group, const ReserveArgs& args, int64_t) {
  BatchNumbers* numbers = args.batch.numbers;
  const int64_t num_slots = args.cache.table.shape.num_slots();
  const int64_t num_taken = CountOf(args.cache, kCountRows) + CountOf(args.cache, kCountFresh) +
                            CountOf(args.cache, kCountPending);
  numbers->refused = numbers->window_size > num_slots;
  for (int i = 0; i < kNumGroupings; ++i) numbers->num_listed[i] = 0;
  for (int round = 0; round <= kNumRounds; ++round) numbers->open[round] = 0;
  const bool is_full = num_taken == num_slots;
  numbers->open[is_full ? 4 : 0] = numbers->num_missing > 0;
  numbers->num_victims = 0;
  numbers->num_spared = 0;
}

// i: below bound. Pins a row that was found, and readies the entry of a key that was not.
template <class Group>
HPS_HD void PinOne(Group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  BatchNumbers* numbers = batch.numbers;
  if (i < numbers->num_missing) batch.reservations[i].slot = kNoSlot;
  if (!IsInWindow(batch, i)) return;
  const int64_t id = WindowId(batch, i);
  const int64_t slot = batch.slots[id];
  const bool has_row = slot != kNoSlot;
  const bool is_at_limit = has_row && args.cache.table.pins[slot] == 255;
  batch.pinned[id] = has_row && !is_at_limit;
  if (is_at_limit) AtomicStore(&numbers->refused, uint32_t{1});
  if (has_row && !is_at_limit) ++args.cache.table.pins[slot];
}

// The round whose end decides whether a grouping is wanted.
HPS_HD bool IsGroupingWanted(const BatchNumbers& numbers, int32_t grouping) {
  if (numbers.refused) return false;
  if (grouping == kByFirst) return numbers.open[0] || numbers.open[4];
  return numbers.open[2 * grouping - 1];
}

HPS_HD bool IsWaiting(const ReserveArgs& args, int64_t entry) {
  return args.batch.reservations[entry].slot == kNoSlot;
}

HPS_HD int64_t BucketOf(const ReserveArgs& args, int64_t entry) {
  const KeyPlace place = PlaceOfKey(args.cache, args.batch.missing_keys[entry]);
  if (args.grouping == kByFirst) return place.first;
  if (args.grouping >= kBySecond) return place.second;
  return args.batch.emptier[entry] ? place.second : place.first;
}

HPS_HD const BucketLists& ListsOf(const ReserveArgs& args) {
  return args.grouping == kByFirst ? args.batch.first_lists : args.batch.other_lists;
}

// True if the kernels that group have something to do for this entry. No round runs between them.
HPS_HD bool IsGrouped(const ReserveArgs& args, int64_t entry) {
  const BatchNumbers& numbers = *args.batch.numbers;
  return entry < numbers.num_missing && IsGroupingWanted(numbers, args.grouping);
}

// i: an entry, below bound.
template <class Group>
HPS_HD void CountInBucketOne(Group group, const ReserveArgs& args, int64_t i) {
  if (!IsGrouped(args, i)) return;
  const BatchArgs& batch = args.batch;
  uint32_t* const arrival = ListsOf(args).arrivals + i;
  if (!IsWaiting(args, i)) {
    group.elect([=] { *arrival = kNoPosition; });
    return;
  }
  if (args.grouping == kByEmptier) {
    const KeyPlace place = PlaceOfKey(args.cache, batch.missing_keys[i]);
    const bool is_second = EmptierBucket(group, args.cache.table, place) == place.second;
    group.elect([&] { batch.emptier[i] = is_second; });
  }
  group.elect(
      [&] { *arrival = AtomicAdd(args.cache.bucket_lists + 2 * BucketOf(args, i), uint32_t{1}); });
}

// i: an entry, below bound. Where the lists lie depends on who comes first, what is in them not.
template <class Group>
HPS_HD void StartListOne(Group, const ReserveArgs& args, int64_t i) {
  if (!IsGrouped(args, i)) return;
  const BucketLists& lists = ListsOf(args);
  if (lists.arrivals[i] != 0) return;
  uint32_t* const list = args.cache.bucket_lists + 2 * BucketOf(args, i);
  const uint32_t length = list[0];
  const uint32_t start = AtomicAdd(args.batch.numbers->num_listed + args.grouping, length);
  list[1] = start;
  lists.starts[i] = start;
  lists.lengths[i] = length;
}

// i: an entry, below bound.
template <class Group>
HPS_HD void PutIntoListOne(Group, const ReserveArgs& args, int64_t i) {
  if (!IsGrouped(args, i)) return;
  const BucketLists& lists = ListsOf(args);
  if (lists.arrivals[i] == kNoPosition) return;
  const uint32_t start = args.cache.bucket_lists[2 * BucketOf(args, i) + 1];
  lists.entries[start + lists.arrivals[i]] = static_cast<uint32_t>(i);
}

// The slots that a round may give from a bucket, and whether they are taken as victims or in order.
template <class Group>
HPS_HD uint64_t SlotsOfRound(Group group, const ReserveArgs& args, int64_t bucket) {
  if (args.round >= 5) return VictimCandidates(group, args.cache.table, bucket);
  return FreeSlots(group, args.cache.table, bucket);
}

// Gives a bucket's slots to the keys of its list that have none, in order of first occurrence.
// True if some key is left without.
template <class Group>
HPS_HD bool PlaceList(Group group, const ReserveArgs& args, int64_t bucket, const uint32_t* entries,
                      uint32_t length) {
  const BatchArgs& batch = args.batch;
  const TableView& table = args.cache.table;
  const uint8_t now = Now(args.cache);
  uint64_t slots = SlotsOfRound(group, args, bucket);
  int room = args.round == 1 ? FirstRoundRoom(slots) : kBucketSlots;
  uint32_t after = 0;  // entries below are done with
  const bool counts_spared = args.round >= 5 && args.cache.clock->has_wants;
  for (;;) {
    const uint32_t entry = group.smallest(length, [&](uint32_t i) {
      const uint32_t other = entries[i];
      return other >= after && IsWaiting(args, other) ? other : ~uint32_t{0};
    });
    if (entry == ~uint32_t{0}) return false;
    if (slots == 0 || room <= 0) return true;
    const int place =
        args.round >= 5 ? FirstVictim(group, table, bucket, slots, now) : LowestBit(slots);
    const bool spares = counts_spared && SparesOne(group, table, bucket, slots, place, now);
    slots &= ~(uint64_t{1} << place);
    --room;
    after = entry + 1;
    group.elect([&] {
      const KeyPlace key = PlaceOfKey(args.cache, batch.missing_keys[entry]);
      const int64_t slot = bucket * kBucketSlots + place;
      if (spares) AtomicAdd(&batch.numbers->num_spared, uint32_t{1});
      TakeSlot(table, slot, key.digest, now, batch.reservations + entry);
      batch.slots[batch.missing[entry]] = slot;
    });
  }
}

// i: an entry, below bound; the one that came first into a bucket's list stands for the bucket.
template <class Group>
HPS_HD void PlaceBucketOne(Group group, const ReserveArgs& args, int64_t i) {
  BatchNumbers* numbers = args.batch.numbers;
  if (i >= numbers->num_missing || numbers->refused || !numbers->open[args.round - 1]) return;
  const BucketLists& lists = ListsOf(args);
  if (lists.arrivals[i] != 0) return;
  const int64_t bucket = BucketOf(args, i);
  const bool is_short =
      PlaceList(group, args, bucket, lists.entries + lists.starts[i], lists.lengths[i]);
  group.elect([&] {
    args.cache.bucket_lists[2 * bucket] = 0;
    args.cache.bucket_lists[2 * bucket + 1] = 0;
    if (is_short) AtomicStore(numbers->open + args.round, uint32_t{1});
  });
}

// i: 0. Refused, or the window is pinned.
template <class Group>
HPS_HD void SettleReserveOne(Group, const ReserveArgs& args, int64_t) {
  BatchNumbers* numbers = args.batch.numbers;
  if (numbers->open[kNumRounds]) numbers->refused = 1;
  if (numbers->refused) {
    Count(args.cache, kCountRefusals, 0, 1);
    return;
  }
  Count(args.cache, kCountPins, 0, numbers->window_size);
  Count(args.cache, kCountPending, 0, numbers->num_missing);
  Count(args.cache, kCountSpared, 0, numbers->num_spared);
}

// Drops the pin that the reserve under way put on the window's i-th key, if it did.
HPS_HD void UnpinFound(const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  if (!IsInWindow(batch, i)) return;
  const int64_t id = WindowId(batch, i);
  if (batch.pinned[id]) --args.cache.table.pins[batch.slots[id]];
}

// i: below bound. Takes back what a refused reserve took.
template <class Group>
HPS_HD void UndoReserveOne(Group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  if (!batch.numbers->refused) return;
  if (i < batch.numbers->num_missing && !IsWaiting(args, i)) {
    GiveSlotBack(args.cache.table, batch.reservations[i]);
    batch.slots[batch.missing[i]] = kNoSlot;
  }
  UnpinFound(args, i);
}

// Counts what a reservation means for the rows that are here; sign -1 takes it back.
HPS_HD void CountEviction(const CacheArgs& cache, const Reservation& reservation, int64_t i,
                          int64_t sign) {
  if (reservation.spilled_from >= 0) Count(cache, kCountSecondBucket, i, sign);
  if (!reservation.had_victim) return;
  if (reservation.victim_mark.flags & kFresh) {
    Count(cache, kCountFresh, i, -sign);
    return;
  }
  Count(cache, kCountRows, i, -sign);
  Count(cache, kCountEvictions, i, sign);
  if (reservation.victim_mark.flags & kDirty) {
    Count(cache, kCountDirty, i, -sign);
    Count(cache, kCountWriteBacks, i, sign);
  }
}

// i: below bound. Then victim_ranks are summed up.
template <class Group>
HPS_HD void NoteVictimOne(Group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  int32_t goes_down = 0;
  if (i < batch.numbers->num_missing && !batch.numbers->refused) {
    Reservation& reservation = batch.reservations[i];
    const KeyPlace place = PlaceOfKey(args.cache, batch.missing_keys[i]);
    CountSpill(args.cache.table, place.first, &reservation, SharedCounts{});
    CountEviction(args.cache, reservation, i, 1);
    goes_down = IsWrittenBack(reservation);
  }
  batch.victim_ranks[i] = goes_down;
}

// i: below bound. Moves a dirty victim to the buffer, then writes the new key into the header.
template <class Group>
HPS_HD void CommitEntryOne(Group group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const TableView& table = args.cache.table;
  const int32_t rank = batch.victim_ranks[i];
  if (i == args.bound - 1) group.elect([&] { batch.numbers->num_victims = rank; });
  if (i >= batch.numbers->num_missing || batch.numbers->refused) return;
  const int64_t slot = batch.reservations[i].slot;
  if (rank != (i == 0 ? 0 : batch.victim_ranks[i - 1])) {
    const int64_t row_bytes = table.shape.row_bytes;
    CopyRow(group, args.victims + (rank - 1) * row_bytes, RowAt(table, slot), row_bytes);
    group.sync();  // before one lane overwrites what others copy
  }
  group.elect([&] { SetKeyAt(table, slot, batch.missing_keys[i]); });
}

// i: below bound. Takes back a reserve that was granted and not filled.
template <class Group>
HPS_HD void CancelOne(Group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const BatchNumbers& numbers = *batch.numbers;
  if (i < numbers.num_missing) {
    const Reservation& reservation = batch.reservations[i];
    CountEviction(args.cache, reservation, i, -1);
    GiveSlotBack(args.cache.table, reservation);
    UncountSpill(args.cache.table, reservation, SharedCounts{});
    batch.slots[batch.missing[i]] = kNoSlot;
  }
  UnpinFound(args, i);
  if (i != 0) return;
  Count(args.cache, kCountPins, 0, -numbers.window_size);
  Count(args.cache, kCountPending, 0, -numbers.num_missing);
}

// i: below bound. Drops the pins of a window whose rows are all in place.
template <class Group>
HPS_HD void ReleaseOne(Group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  if (!IsInWindow(batch, i)) return;
  --args.cache.table.pins[batch.slots[WindowId(batch, i)]];
  if (i == 0) Count(args.cache, kCountPins, 0, -batch.numbers->window_size);
}

}  // namespace HPS_BUILD
}  // namespace hps
