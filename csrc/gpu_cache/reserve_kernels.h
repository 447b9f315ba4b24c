// Reserving slots for the missing keys of a batch: pins, the rounds of csrc/table/reserve.h with a
// lane group for each bucket, victims, and the way back.
//
// Above it: kernels.h. Below it: csrc/table/reserve.h. Order of the kernels, none of which the host
// has to wait for (one that has nothing to do returns at once):
//     Pin                 pins rows found; puts missing keys into lists of their first buckets
//     PlaceFirst          free slots of first buckets, up to 60
//     GroupByEmptier      lists by the bucket that is emptier now
//     PlaceEmptier        its free slots; who gets none goes to the list of the other bucket
//     PlaceOther          its free slots; who gets none goes back to the list of the first bucket
//     PlaceVictimFirst    victims of first buckets; who gets none goes to the second's list
//     PlaceVictimSecond   victims of second buckets
//     CommitEntry         granted: dirty victims to the buffer, new keys in; refused: all back
// A table without a free slot begins at PlaceVictimFirst; that it has none, the look-up has told,
// and since then nobody reserved.
//
// PlaceOther is two rounds of reserve.h in one. A key that got no slot of its emptier bucket has
// only the other one left, for its emptier one is full. So a bucket's free slots go to the keys
// whose first bucket it is, then to those whose second it is, and no key waits for both.
//
// A list is linked, and each bucket has two heads: a round walks the lists of one, and what it
// leaves goes to those of the other. The key that came first into a list, its last one, stands for
// the bucket. In what order keys came shows in nothing: a bucket serves the first key of the batch
// first. A bucket's list is longer than the slots it can give only in a flood, and then costs each
// slot taken one look over the list.
#pragma once

#include "gpu_cache/cache_args.h"
#include "table/row_pieces.h"

namespace hps {

struct ReserveArgs {
  CacheArgs cache;
  BatchArgs batch;
  int64_t bound;        // work items; CommitEntry does with any number of them
  uint8_t* victims;     // [bound, row_bytes] or null while the rounds run
  BatchNumbers* told;   // where CommitEntry leaves the numbers for the host; null: nowhere
  uint64_t* told_keys;  // [M] and the missing keys; null: nowhere
};

inline constexpr uint32_t kEntryOfRank = (uint32_t{1} << 31) - 1;

inline namespace HPS_BUILD {

HPS_HD bool IsWaiting(const ReserveArgs& args, int64_t entry) {
  return args.batch.reservations[entry].slot == kNoSlot;
}

// The bucket in which a round looks for a slot for a missing key.
HPS_HD int64_t BucketOf(const ReserveArgs& args, int64_t entry, ReserveRound round) {
  const KeyPlace place = PlaceOfKey(args.cache, args.batch.missing_keys[entry]);
  if (round == kVictimSecond) return place.second;
  if (round != kEmptier && round != kOther) return place.first;
  const bool is_second = (args.batch.emptier[entry] != 0) == (round == kEmptier);
  return is_second ? place.second : place.first;
}

HPS_HD uint32_t* HeadOf(const ReserveArgs& args, int64_t bucket, ReserveRound round) {
  return args.cache.bucket_lists + 2 * bucket + (round & 1);
}

HPS_HD uint32_t* LinksOf(const ReserveArgs& args, ReserveRound round) {
  return round & 1 ? args.batch.other_links : args.batch.links;
}

// Puts a missing key into the list of its bucket of that round.
HPS_HD void PutIntoList(const ReserveArgs& args, int64_t entry, ReserveRound round) {
  uint32_t* const head = HeadOf(args, BucketOf(args, entry, round), round);
  LinksOf(args, round)[entry] = AtomicExchange(head, static_cast<uint32_t>(entry) + 1);
}

// i: a key of the window. Pins a row that was found, and readies the entry of a key that was not.
template <class Group>
HPS_HD void PinOne(Group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  BatchNumbers* numbers = batch.numbers;
  ClearFlags(batch.victims, i, numbers->num_missing);
  if (i < numbers->num_missing) {
    batch.reservations[i].slot = kNoSlot;
    PutIntoList(args, i, numbers->is_full ? kVictimFirst : kFirst);
  }
  if (!IsInWindow(batch, i)) return;
  const int64_t id = WindowId(batch, i);
  const int64_t slot = batch.slots[id];
  const bool has_row = slot != kNoSlot;
  const bool is_at_limit = has_row && args.cache.table.pins[slot] == 255;
  batch.pinned[id] = has_row && !is_at_limit;
  if (is_at_limit) AtomicStore(&numbers->refused, uint32_t{1});
  if (has_row && !is_at_limit) ++args.cache.table.pins[slot];
}

// i: an entry.
template <class Group>
HPS_HD void GroupByEmptierOne(Group group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  if (i >= batch.numbers->num_missing || !batch.numbers->open[kEmptier]) return;
  if (!IsWaiting(args, i)) return;
  const KeyPlace place = PlaceOfKey(args.cache, batch.missing_keys[i]);
  const bool is_second = EmptierBucket(group, args.cache.table, place) == place.second;
  group.elect([&] {
    batch.emptier[i] = is_second;
    PutIntoList(args, i, kEmptier);
  });
}

// Gives an entry a slot of a bucket. By one lane.
HPS_HD void GiveSlot(const ReserveArgs& args, int64_t entry, int64_t slot, bool spares) {
  const BatchArgs& batch = args.batch;
  Reservation* const reservation = batch.reservations + entry;
  const KeyPlace key = PlaceOfKey(args.cache, batch.missing_keys[entry]);
  if (spares) AtomicAdd(&batch.numbers->num_spared, uint32_t{1});
  TakeSlot(args.cache.table, slot, key.digest, Now(args.cache), reservation);
  batch.slots[batch.missing[entry]] = slot;
  if (IsWrittenBack(*reservation)) SetFlag(batch.victims, entry);
}

// Gives a bucket's slots to the keys of a list, which all have none, by their ranks. Those up to
// the rank returned are served: all ones if all are.
template <ReserveRound kRound, class Group, class RankOf>
HPS_HD uint32_t PlaceList(Group group, const ReserveArgs& args, int64_t bucket, uint32_t length,
                          RankOf rank_of) {
  constexpr bool kTakesVictims = kRound >= kVictimFirst;
  const TableView& table = args.cache.table;
  const uint8_t now = Now(args.cache);
  uint64_t slots =
      kTakesVictims ? VictimCandidates(group, table, bucket) : FreeSlots(group, table, bucket);
  int room = kRound == kFirst ? FirstRoundRoom(slots) : kBucketSlots;
  const bool counts_spared = kTakesVictims && args.cache.clock->has_wants;
  for (uint32_t after = 0;;) {
    const uint32_t rank = group.smallest(length, [&](uint32_t k) {
      const uint32_t other = rank_of(k);
      return other >= after ? other : ~uint32_t{0};
    });
    if (rank == ~uint32_t{0}) return rank;
    if (slots == 0 || room <= 0) return after;
    const int place =
        kTakesVictims ? FirstVictim(group, table, bucket, slots, now) : LowestBit(slots);
    const bool spares = counts_spared && SparesOne(group, table, bucket, slots, place, now);
    slots &= ~(uint64_t{1} << place);
    --room;
    after = rank + 1;
    group.elect(
        [&] { GiveSlot(args, rank & kEntryOfRank, bucket * kBucketSlots + place, spares); });
  }
}

// Writes a list out if it has more than one entry; its length. *start: where it is.
template <class Group>
HPS_HD uint32_t WriteList(Group group, const ReserveArgs& args, uint32_t head, ReserveRound round,
                          uint32_t* start) {
  const uint32_t* const links = LinksOf(args, round);
  uint32_t length = 0;
  for (uint32_t link = head; link != 0; link = links[link - 1]) ++length;
  *start = 0;
  if (length == 1) return length;
  uint32_t* const listed = args.batch.numbers->num_listed + round;
  // Of one item, so that one lane adds and all are told.
  *start = group.smallest(1, [=](uint32_t) { return AtomicAdd(listed, length); });
  uint32_t* const entries = args.batch.entries + *start;
  group.elect([=] {
    uint32_t k = 0;
    for (uint32_t link = head; link != 0; link = links[link - 1]) entries[k++] = link - 1;
  });
  group.sync();
  return length;
}

// i: an entry; the last one of a bucket's list stands for the bucket.
template <ReserveRound kRound, class Group>
HPS_HD void PlaceOne(Group group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  BatchNumbers* const numbers = batch.numbers;
  if (i >= numbers->num_missing || !numbers->open[kRound]) return;
  if (LinksOf(args, kRound)[i] != 0 || !IsWaiting(args, i)) return;
  const int64_t bucket = BucketOf(args, i, kRound);
  uint32_t* const head = HeadOf(args, bucket, kRound);
  if (numbers->refused) return group.elect([=] { *head = 0; });
  uint32_t start;
  const uint32_t length = WriteList(group, args, *head, kRound, &start);
  const auto entry_at = [&](uint32_t k) {
    return length == 1 ? static_cast<uint32_t>(i) : batch.entries[start + k];
  };
  // By the batch's order; in a bucket that is the first of some and the second of others, the
  // former first.
  const auto rank_of = [&](uint32_t k) {
    const uint32_t entry = entry_at(k);
    return kRound == kOther && batch.emptier[entry] == 0 ? entry | ~kEntryOfRank : entry;
  };
  const uint32_t left = PlaceList<kRound>(group, args, bucket, length, rank_of);
  group.elect([&] {
    *head = 0;
    if (left != ~uint32_t{0}) AtomicStore(numbers->open + kRound + 1, uint32_t{1});
  });
  if (left == ~uint32_t{0} || kRound == kFirst || kRound == kVictimSecond) return;
  group.for_each(length, [&](int64_t k) {
    const auto number = static_cast<uint32_t>(k);
    if (rank_of(number) >= left) {
      PutIntoList(args, entry_at(number), static_cast<ReserveRound>(kRound + 1));
    }
  });
}

// Drops the pin that the reserve under way put on the window's i-th key, if it did.
HPS_HD void UnpinFound(const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  if (!IsInWindow(batch, i)) return;
  const int64_t id = WindowId(batch, i);
  if (batch.pinned[id]) --args.cache.table.pins[batch.slots[id]];
}

// i: below bound. Takes back what a refused reserve took, of the keys of the window that follow
// each other by `bound`.
template <class Group>
HPS_HD void TakeBackOne(Group group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const BatchNumbers& numbers = *batch.numbers;
  group.for_each((numbers.window_size - i + args.bound - 1) / args.bound, [&](int64_t k) {
    const int64_t at = i + k * args.bound;
    if (at < numbers.num_missing && !IsWaiting(args, at)) {
      GiveSlotBack(args.cache.table, batch.reservations[at]);
      batch.slots[batch.missing[at]] = kNoSlot;
    }
    UnpinFound(args, at);
  });
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

// Refused or not, the victims, and what both mean for the counters.
template <class Group>
HPS_HD void SettleReserve(Group group, const ReserveArgs& args, bool is_refused) {
  BatchNumbers& numbers = *args.batch.numbers;
  const int64_t num_victims =
      is_refused ? 0 : CountFlags(group, args.batch.victims, numbers.num_missing);
  group.elect([&] {
    AtomicStore(&numbers.refused, uint32_t{is_refused});  // others look, and know it already
    numbers.num_victims = num_victims;
    if (args.told != nullptr) *args.told = numbers;
    if (is_refused) return Count(args.cache, kCountRefusals, 0, 1);
    Count(args.cache, kCountPins, 0, numbers.window_size);
    Count(args.cache, kCountPending, 0, numbers.num_missing);
    Count(args.cache, kCountSpared, 0, numbers.num_spared);
  });
}

// What keys of a window have no slot, or none that they may pin.
HPS_HD bool IsRefused(const BatchNumbers& numbers) {
  return AtomicLoad(&numbers.refused) || numbers.open[kNumRounds];
}

// i: below bound. Moves a dirty victim to the buffer, then writes the new key into the header; or
// takes everything back.
template <class Group>
HPS_HD void CommitEntryOne(Group group, const ReserveArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const TableView& table = args.cache.table;
  const bool is_refused = IsRefused(*batch.numbers);
  if (i == 0) SettleReserve(group, args, is_refused);
  if (is_refused) return TakeBackOne(group, args, i);
  if (i >= batch.numbers->num_missing) return;
  Reservation* const reservation = batch.reservations + i;
  const uint64_t key = batch.missing_keys[i];
  const int64_t slot = reservation->slot;
  const bool goes_down = IsWrittenBack(*reservation);
  group.elect([&] {
    CountSpill(table, PlaceOfKey(args.cache, key).first, reservation, SharedCounts{});
    CountEviction(args.cache, *reservation, i, 1);
    if (args.told_keys != nullptr) args.told_keys[i] = key;
  });
  if (goes_down) {
    const int64_t row_bytes = table.shape.row_bytes;
    const int64_t rank = FlagsBefore(group, batch.victims, i);
    CopyRow(group, args.victims + rank * row_bytes, RowAt(table, slot), row_bytes);
    group.sync();  // before one lane overwrites what others copy
  }
  group.elect([&] { SetKeyAt(table, slot, key); });
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
