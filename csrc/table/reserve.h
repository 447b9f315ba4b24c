// Reserving slots for the missing keys of a batch, in rounds, and undoing it.
//
// Above it: the batch loops of dram_cache (a thread owns whole parts). Below it: probe.h. Within a
// bucket the keys are served in order of first occurrence, and no round looks at what another
// bucket did in the same round, so any division of the parts over threads takes the same slots:
//   round 1   free slots of the first bucket while it holds fewer than 60
//   round 2   free slots of whichever of the two buckets was emptier after round 1
//   round 3   any free slot of the first, then of the second; else the first bucket's victim, then
//             the second's
// A slot taken is pinned at once. Rows are not touched before CommitOne, so a batch that does not
// fit is undone without a trace.
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

HPS_HD void TakeSlot(const TableView& table, int64_t slot, const KeyPlace& place, uint8_t now,
                     Reservation* reservation) {
  reservation->slot = slot;
  reservation->spilled_from = -1;
  reservation->unspilled_from = -1;
  reservation->victim_digest = table.digests[slot];
  reservation->victim_mark = table.marks[slot];
  reservation->had_victim = reservation->victim_digest != 0;
  if (reservation->had_victim) {
    const uint64_t key = KeyAt(table, slot);
    const KeyPlace victim = PlaceOfHash(table.shape, MixKey(key));
    reservation->victim_key = key;
    uint8_t& spilled = table.spilled[victim.first];
    if (slot / kBucketSlots != victim.first && spilled != kSpilledSticky) {
      --spilled;
      reservation->unspilled_from = victim.first;
    }
  }
  uint8_t& spilled = table.spilled[place.first];
  if (slot / kBucketSlots != place.first && spilled != kSpilledSticky) {
    ++spilled;
    reservation->spilled_from = place.first;
  }
  table.digests[slot] = place.digest;
  table.marks[slot] = {now, kPending};
  table.pins[slot] = 1;
}

// Takes back TakeSlot (and CommitOne's key). Reservations of a batch are undone in reverse order.
HPS_HD void UndoOne(const TableView& table, const Reservation& reservation) {
  const int64_t slot = reservation.slot;
  table.digests[slot] = reservation.victim_digest;
  table.marks[slot] = reservation.victim_mark;
  table.pins[slot] = 0;
  // A count that has reached the sticky value meanwhile stays there: finds only look once more.
  if (reservation.spilled_from >= 0 && table.spilled[reservation.spilled_from] != kSpilledSticky) {
    --table.spilled[reservation.spilled_from];
  }
  if (!reservation.had_victim) return;
  SetKeyAt(table, slot, reservation.victim_key);
  if (reservation.unspilled_from >= 0 &&
      table.spilled[reservation.unspilled_from] != kSpilledSticky) {
    ++table.spilled[reservation.unspilled_from];
  }
}

template <class Group>
HPS_HD int64_t FirstFree(Group group, const TableView& table, int64_t bucket) {
  const uint64_t free = FreeSlots(group, table, bucket);
  return free == 0 ? kNoSlot : bucket * kBucketSlots + LowestBit(free);
}

// A slot for round 1, or kNoSlot.
template <class Group>
HPS_HD int64_t FirstRoundSlot(Group group, const TableView& table, const KeyPlace& place) {
  const uint64_t free = FreeSlots(group, table, place.first);
  if (kBucketSlots - CountBits(free) >= kFirstRoundSlots) return kNoSlot;
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
