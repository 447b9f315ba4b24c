// Where a missing key gets its slot: the rounds of a reserve, what each takes, and undoing it.
//
// Above it: the batch loops of dram_cache (a thread owns whole parts), the kernels of gpu_cache (a
// lane group owns a bucket). Below it: probe.h. Within a bucket the keys are served in order of
// first occurrence, and no round looks at what another bucket did in the same round, so any
// division of the work takes the same slots (a victim is chosen in probe.h):
//   round 1   free slots of the first bucket while it holds fewer than 60
//   round 2   free slots of whichever of the two buckets was emptier after round 1
//   round 3   any free slot of the first, then of the second; else the first bucket's victim, then
//             the second's
// A slot taken is pinned at once. Rows are not touched before a batch has all its slots, so one
// that does not fit is undone without a trace.
#pragma once

#include "table/probe.h"

namespace hps {

// What it takes to undo one reservation, in the order in which they were made.
struct Reservation {
  int64_t slot;
  uint64_t victim_key;     // valid if had_victim
  int64_t spilled_from;    // first bucket whose spill count grew, or -1
  int64_t unspilled_from;  // first bucket of the victim whose spill count fell, or -1
  SlotMark victim_mark;
  uint8_t victim_digest;
  bool had_victim;
};

inline namespace HPS_BUILD {

inline constexpr uint8_t kSpilledSticky = 255;  // a saturated count is never believed again

// Spill counts as a thread changes them that has their bucket to itself.
struct PlainCounts {
  // Adds 1; false, and nothing is done, if the count is sticky.
  HPS_HD_MEMBER bool increase(uint8_t* count) const {
    if (*count == kSpilledSticky) return false;
    ++*count;
    return true;
  }
  HPS_HD_MEMBER bool decrease(uint8_t* count) const {
    if (*count == kSpilledSticky) return false;
    --*count;
    return true;
  }
};

// Takes a slot for a key; neither its row nor any spill count changes.
HPS_HD void TakeSlot(const TableView& table, int64_t slot, uint8_t digest, uint8_t now,
                     Reservation* reservation) {
  reservation->slot = slot;
  reservation->victim_digest = table.digests[slot];
  reservation->victim_mark = table.marks[slot];
  reservation->had_victim = reservation->victim_digest != 0;
  table.digests[slot] = digest;
  table.marks[slot] = {now, kPending};
  table.pins[slot] = 1;
}

// True if the row that gave way is newer than the tier below.
HPS_HD bool IsWrittenBack(const Reservation& reservation) {
  return reservation.had_victim && (reservation.victim_mark.flags & (kDirty | kFresh)) == kDirty;
}

// Takes back TakeSlot.
HPS_HD void GiveSlotBack(const TableView& table, const Reservation& reservation) {
  table.digests[reservation.slot] = reservation.victim_digest;
  table.marks[reservation.slot] = reservation.victim_mark;
  table.pins[reservation.slot] = 0;
}

// Counts what a slot taken for a key of bucket `first` means for finds: the victim, whose key the
// row still holds, has left, the key has come. Within a reserve nothing reads these counts.
template <class Counts>
HPS_HD void CountSpill(const TableView& table, int64_t first, Reservation* reservation,
                       Counts counts) {
  const int64_t bucket = reservation->slot / kBucketSlots;
  reservation->spilled_from = -1;
  reservation->unspilled_from = -1;
  if (reservation->had_victim) {
    reservation->victim_key = KeyAt(table, reservation->slot);
    const KeyPlace victim = PlaceOfHash(table.shape, MixKey(reservation->victim_key));
    if (bucket != victim.first && counts.decrease(table.spilled + victim.first)) {
      reservation->unspilled_from = victim.first;
    }
  }
  if (bucket != first && counts.increase(table.spilled + first)) reservation->spilled_from = first;
}

// Takes back CountSpill, and the key that was written since. A count that has reached the sticky
// value meanwhile stays there: finds only look once more.
template <class Counts>
HPS_HD void UncountSpill(const TableView& table, const Reservation& reservation, Counts counts) {
  if (reservation.spilled_from >= 0) counts.decrease(table.spilled + reservation.spilled_from);
  if (!reservation.had_victim) return;
  SetKeyAt(table, reservation.slot, reservation.victim_key);
  if (reservation.unspilled_from >= 0) counts.increase(table.spilled + reservation.unspilled_from);
}

// Takes back a reservation of a host thread that owns the part.
HPS_HD void UndoOne(const TableView& table, const Reservation& reservation) {
  GiveSlotBack(table, reservation);
  UncountSpill(table, reservation, PlainCounts{});
}

template <class Group>
HPS_HD int64_t FirstFree(Group group, const TableView& table, int64_t bucket) {
  const uint64_t free = FreeSlots(group, table, bucket);
  return free == 0 ? kNoSlot : bucket * kBucketSlots + LowestBit(free);
}

// How many keys round 1 may still put into a bucket with these free slots; not positive if none.
HPS_HD int FirstRoundRoom(uint64_t free) {
  return kFirstRoundSlots - (kBucketSlots - CountBits(free));
}

// A slot for round 1, or kNoSlot.
template <class Group>
HPS_HD int64_t FirstRoundSlot(Group group, const TableView& table, const KeyPlace& place) {
  const uint64_t free = FreeSlots(group, table, place.first);
  if (FirstRoundRoom(free) <= 0) return kNoSlot;
  return place.first * kBucketSlots + LowestBit(free);
}

// The bucket that round 2 looks into; to be asked for every key before round 2 takes a slot.
template <class Group>
HPS_HD int64_t EmptierBucket(Group group, const TableView& table, const KeyPlace& place) {
  const int first = CountBits(FreeSlots(group, table, place.first));
  const int second = CountBits(FreeSlots(group, table, place.second));
  return second > first ? place.second : place.first;
}

}  // namespace HPS_BUILD
}  // namespace hps
