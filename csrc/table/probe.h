// Probing: which slot holds a key, which slots are free, which one gives way.
//
// Above it: reserve.h and the batch loops. Below it: table_view.h. Every decision is a function of
// 64-bit masks over a bucket's slots, made by a lane group: one thread on the host, a warp's part
// on the device. A group offers
//     uint64_t match(const uint8_t* bytes_64, uint8_t value)    bit i: bytes_64[i] == value
//     int largest(uint64_t candidates, score)                   slot of the largest score, ties
//                                                               lowest
#pragma once

#include "table/table_view.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int64_t kNoSlot = -1;

HPS_HD int LowestBit(uint64_t mask) {
#if defined(__CUDA_ARCH__)
  return __ffsll(static_cast<long long>(mask)) - 1;
#else
  return __builtin_ctzll(mask);
#endif
}

HPS_HD int CountBits(uint64_t mask) {
#if defined(__CUDA_ARCH__)
  return __popcll(mask);
#else
  return __builtin_popcountll(mask);
#endif
}

template <class Group>
HPS_HD uint64_t FreeSlots(Group group, const TableView& table, int64_t bucket) {
  return group.match(table.digests + bucket * kBucketSlots, 0);
}

template <class Group>
HPS_HD uint64_t UnpinnedSlots(Group group, const TableView& table, int64_t bucket) {
  return group.match(table.pins + bucket * kBucketSlots, 0);
}

// The slot of `key` in `bucket`, or kNoSlot.
template <class Group>
HPS_HD int64_t FindInBucket(Group group, const TableView& table, int64_t bucket, uint8_t digest,
                            uint64_t key) {
  uint64_t candidates = group.match(table.digests + bucket * kBucketSlots, digest);
  while (candidates != 0) {
    const int64_t slot = bucket * kBucketSlots + LowestBit(candidates);
    if (KeyAt(table, slot) == key) return slot;
    candidates &= candidates - 1;
  }
  return kNoSlot;
}

// The slot of `key`, or kNoSlot. The second bucket is read only where the first has sent keys on.
template <class Group>
HPS_HD int64_t FindOne(Group group, const TableView& table, const KeyPlace& place, uint64_t key) {
  const int64_t slot = FindInBucket(group, table, place.first, place.digest, key);
  if (slot != kNoSlot || table.spilled[place.first] == 0) return slot;
  return FindInBucket(group, table, place.second, place.digest, key);
}

// How willingly a slot gives way: its age over (frequency + 1), in whole numbers (840 = lcm(1..8)).
HPS_HD uint32_t AgeScore(SlotMark mark, uint8_t now) {
  const uint32_t age = static_cast<uint8_t>(now - mark.stamp);
  return age * (840u / static_cast<uint32_t>(FrequencyOf(mark) + 1));
}

// The same, but a slot that nobody wants gives way before any that is wanted.
HPS_HD uint32_t VictimScore(SlotMark mark, uint8_t now) {
  constexpr uint32_t kMoreThanAnyAge = 256 * 840;
  return AgeScore(mark, now) + (mark.flags & kWanted ? 0 : kMoreThanAnyAge);
}

// Which slots of `bucket` may give way: occupied and not pinned.
template <class Group>
HPS_HD uint64_t VictimCandidates(Group group, const TableView& table, int64_t bucket) {
  return UnpinnedSlots(group, table, bucket) & ~FreeSlots(group, table, bucket);
}

// Which of the candidates, of which there is one at least, gives way first; its place in `bucket`.
template <class Group>
HPS_HD int FirstVictim(Group group, const TableView& table, int64_t bucket, uint64_t candidates,
                       uint8_t now) {
  const SlotMark* marks = table.marks + bucket * kBucketSlots;
  return group.largest(candidates, [=](int i) { return VictimScore(marks[i], now); });
}

// The unpinned, occupied slot of `bucket` that gives way first, or kNoSlot if all are pinned.
template <class Group>
HPS_HD int64_t ChooseVictim(Group group, const TableView& table, int64_t bucket, uint8_t now) {
  const uint64_t candidates = VictimCandidates(group, table, bucket);
  if (candidates == 0) return kNoSlot;
  return bucket * kBucketSlots + FirstVictim(group, table, bucket, candidates, now);
}

// True if, by age alone, another of the candidates would have given way than the one at `victim` of
// the bucket does: a wanted row is spared.
template <class Group>
HPS_HD bool SparesOne(Group group, const TableView& table, int64_t bucket, uint64_t candidates,
                      int victim, uint8_t now) {
  const SlotMark* marks = table.marks + bucket * kBucketSlots;
  const int oldest = group.largest(candidates, [=](int i) { return AgeScore(marks[i], now); });
  return oldest != victim && (marks[oldest].flags & kWanted) != 0;
}

// One tick of the rolling sweep over a bucket: old stamps are held back so that they never wrap,
// and the use counts of rows that have gone out of use decay. A row so old is no longer wanted: the
// batch that wanted it was dropped.
HPS_HD SlotMark Swept(SlotMark mark, uint8_t now) {
  const uint8_t age = static_cast<uint8_t>(now - mark.stamp);
  if (age >= 192) return {static_cast<uint8_t>(now - 192), static_cast<uint8_t>(mark.flags & 15)};
  if (age < 64) return mark;
  const int frequency = FrequencyOf(mark) >> 1;
  mark.flags = static_cast<uint8_t>((mark.flags & (15 | kWanted)) | (frequency << kFrequencyShift));
  return mark;
}

}  // namespace HPS_BUILD
}  // namespace hps
