// Sums of gradients a key, over all tables of a step, and the check that they are finite.
//
// Above it: kernels.h. Below it: csrc/optimizer. (The host build sums in another order of places,
// host_batch.h says why, with the same additions.) The order of a sum is that of architecture's
// section on equal bits: occurrences in order within runs of 32, run sums as a binary counter
// combines them. A key of one run has no sum in memory: its update adds it up where it reads it
// (SumOfKey). Of a hot key each run is a work item; who ends a whole block of 64 runs combines it,
// and who ends the last of a key combines all. How occurrences come into order: term_order.h.
//
// No row is read to know that all sums are finite. Terms of a magnitude up to 2^15 have a sum of up
// to 2^20 = kOrdinaryBits, for 32 terms: of additions that round to the nearest none goes beyond a
// float that the exact one does not go beyond, and k * 2^15 is one. So the k-th is at most that. A
// batch with a larger term is wild: its keys of one run are summed once more, to be looked at.
// Hot keys are looked at in any case. What sums up to a bound do to a row: safe_gradient.h.
#pragma once

#include "gpu_cache/moves.h"
#include "gpu_cache/term_order.h"
#include "optimizer/trial.h"

namespace hps {

inline constexpr int64_t kRunsABlock = 64;
// Keys of a wild batch that an item looks at: so that other batches have few items for it.
inline constexpr int64_t kKeysAnItem = 16;
inline constexpr uint32_t kOrdinaryTermBits = 0x47000000;  // 2^15

struct CountArgs {
  BatchArgs batch;
  const uint8_t* labels;  // [L] of the occurrences, 0 or 1; or null
  uint32_t* shows;        // [N] zero before CountOccurrenceOne
  uint32_t* clicks;       // [N] the same; or null
};

inline namespace HPS_BUILD {

// The magnitude of a bag's largest term in this lane's columns, as bits.
template <class Group>
HPS_HD uint32_t LargestTerm(Group group, const SumArgs& args, const float* gradient, int64_t first,
                            int64_t count) {
  const int dim = args.cache.dim;
  uint32_t largest = 0;
  const auto look = [&](float value) {
    const uint32_t bits = MagnitudeBits(value);
    largest = largest < bits ? bits : largest;
  };
  if (IsPieceAligned(gradient)) {
    LanesOf(group, dim).each(look, gradient);
  } else {
    group.for_each(dim, [&](int64_t d) { look(gradient[d]); });
  }
  if (args.weights == nullptr) return largest;
  uint32_t heaviest = 0;
  for (int64_t k = 0; k < count; ++k) {
    const uint32_t bits = MagnitudeBits(args.weights[first + k]);
    heaviest = heaviest < bits ? bits : heaviest;
  }
  return MagnitudeBits(FloatOf(largest) * FloatOf(heaviest));
}

// i: a bag, or an occurrence where there are no bags. Counts its occurrences, divides the gradient
// of a mean, and notes terms that are not ordinary. Readies what the kernels behind count in.
template <class Group>
HPS_HD void SpreadBagOne(Group group, const SumArgs& args, int64_t i) {
  BatchNumbers* const numbers = args.batch.numbers;
  if (i == 0) {
    group.elect([=] {
      numbers->num_placed = 0;
      numbers->culprit = kNoCulprit;
      numbers->largest = kOrdinaryBits;
    });
  }
  const BagRange bag = RangeOfBag(args, i);
  group.for_each(bag.count, [&](int64_t k) { CountTerm(args, bag.first + k); });
  if (bag.count == 0) return;
  const int64_t dim = args.cache.dim;
  const float* gradient = args.given + OriginOf(args, i);
  if (args.divided != nullptr) {
    const auto divisor = static_cast<float>(bag.count);
    float* const divided = args.divided + i * dim;
    group.for_each(dim, [=](int64_t d) { divided[d] = gradient[d] / divisor; });
    group.sync();
    gradient = divided;
  }
  if (LargestTerm(group, args, gradient, bag.first, bag.count) > kOrdinaryTermBits) {
    AtomicStore(&numbers->is_wild, uint32_t{1});
  }
}

HPS_HD void NoteCulprit(const BatchArgs& batch, int64_t id) {
  AtomicMin(&batch.numbers->culprit, static_cast<uint32_t>(id));
}

// What a lane saw of a key's sum, a column: the magnitude, as bits.
template <class Lanes, class Column>
HPS_HD uint32_t LargestOf(Lanes lanes, Column sum) {
  uint32_t largest = 0;
  lanes.each(
      [&](float value) {
        const uint32_t bits = MagnitudeBits(value);
        largest = largest < bits ? bits : largest;
      },
      sum);
  return largest;
}

HPS_HD void NoteLargest(const SumArgs& args, int64_t id, uint32_t largest) {
  if (largest <= kOrdinaryBits) return;
  AtomicMax(&args.batch.numbers->largest, largest);
  if (largest >= kInfinityBits) NoteCulprit(args.batch, id);
}

// Where a hot key's sum is left: the row of the youngest of its leftovers, of which
// CombineRuns makes it.
HPS_HD int64_t RowOfSum(int64_t start, int64_t num_runs) {
  return FirstRow(start) + num_runs - (num_runs & -num_runs);
}

// The sum of terms [first, first + count), in the order of the table's places; or of one
// term, which is the `whole` of them, unless it is null.
HPS_HD auto SumOfTerms(const TermArgs& terms, int64_t first, int64_t count, const float* whole) {
  const bool is_whole = whole != nullptr;
  const float* const gradients = is_whole ? whole : terms.gradients;
  const uint32_t* const origins = terms.origins + first;
  const float* const weights =
      is_whole || terms.weights == nullptr ? nullptr : terms.weights + first;
  const auto gradient = [=](int64_t i) { return is_whole ? gradients : gradients + origins[i]; };
  const auto weight = [=](int64_t i) { return weights == nullptr ? 1.0f : weights[i]; };
  const bool are_aligned = is_whole ? IsPieceAligned(whole) : terms.are_aligned != 0;
  return SumTerms(is_whole ? 1 : count, gradient, weight, are_aligned);
}

// The sum [dim] of a key, as its update reads it. That of a hot key is a term by itself: no sum is
// -0, to which 0 + would make a difference.
HPS_HD auto SumOfKey(const TermArgs& terms, int64_t dim, int64_t id) {
  const KeyTerms key = terms.keys[id];
  const float* const whole = key.count > kRunLength
                                 ? terms.run_sums + RowOfSum(key.start, NumRuns(key.count)) * dim
                                 : nullptr;
  return SumOfTerms(terms, key.start, key.count, whole);
}
HPS_HD const float* SumOfKey(const float* sums, int64_t dim, int64_t id) { return sums + id * dim; }

// The sum of 2^kLevels values `stride` apart: neighbours first.
template <int kLevels>
HPS_HD float AddNeighbours(const float* values, int64_t stride) {
  if constexpr (kLevels == 0) {
    return *values;
  } else {
    constexpr int64_t kHalf = int64_t{1} << (kLevels - 1);
    const float older = AddNeighbours<kLevels - 1>(values, stride);
    return older + AddNeighbours<kLevels - 1>(values + kHalf * stride, stride);
  }
}

// Combines the rows of a whole block of runs in its first.
template <class Group>
HPS_HD void SumBlock(Group group, float* sums, int64_t dim) {
  static_assert(kRunsABlock == 1 << 6);
  group.for_each(dim, [=](int64_t d) {
    float total = 0;
    // The older half, then the younger one: registers for all 64 at once are too many.
    HPS_NOT_UNROLLED
    for (int64_t half = 0; half < 2; ++half) {
      const float sum = AddNeighbours<5>(sums + d + half * (kRunsABlock / 2) * dim, dim);
      total = half == 0 ? sum : total + sum;
    }
    sums[d] = total;
  });
}

// Adds up `count` rows of sums, `stride` apart, as a binary counter does: leaves each whole block
// of 2^k where its first row stood. Lanes keep to their columns.
template <class Lanes>
HPS_HD void CombineBlocks(Lanes lanes, float* sums, int64_t count, int64_t stride) {
  for (int64_t half = 1; 2 * half <= count; half *= 2) {
    for (int64_t i = 0; i + 2 * half <= count; i += 2 * half) {
      lanes.each([](float& older, float younger) { older += younger; }, sums + i * stride,
                 static_cast<const float*>(sums + (i + half) * stride));
    }
  }
}

// Adds the blocks that CombineBlocks left, youngest to oldest, to `total`, which may be the
// youngest of all.
template <class Lanes>
HPS_HD void AddLeftovers(Lanes lanes, const float* sums, int64_t count, int64_t stride,
                         float* total) {
  int64_t end = count;
  for (int64_t size = 1; size <= count; size *= 2) {
    if (!(count & size)) continue;
    end -= size;
    const float* const older = sums + end * stride;
    if (older == total) continue;
    lanes.each([](float& sum, float own) { sum += own; }, total, older);
  }
}

// A hot key's sum from the rows of its blocks and of the runs in no whole block.
template <class Group>
HPS_HD void CombineRuns(Group group, const SumArgs& args, int64_t id, int64_t start,
                        int64_t num_runs) {
  const int64_t dim = args.cache.dim;
  const auto lanes = LanesOf(group, args.cache.dim);
  const int64_t num_blocks = num_runs / kRunsABlock;
  const int64_t num_left = num_runs % kRunsABlock;
  float* const blocks = args.terms.run_sums + FirstRow(start) * dim;
  float* const left = blocks + num_blocks * kRunsABlock * dim;
  float* const sum = args.terms.run_sums + RowOfSum(start, num_runs) * dim;
  CombineBlocks(lanes, left, num_left, dim);
  CombineBlocks(lanes, blocks, num_blocks, kRunsABlock * dim);
  AddLeftovers(lanes, left, num_left, dim, sum);
  AddLeftovers(lanes, blocks, num_blocks, kRunsABlock * dim, sum);
  NoteLargest(args, id, LargestOf(lanes, static_cast<const float*>(sum)));
}

// What a group has written is there for who comes to `count` later; true for the last of `all`,
// for which all that the others have written is.
template <class Group>
HPS_HD bool ArriveLast(Group group, uint32_t* count, int64_t all) {
  group.sync();
  const uint32_t before = group.smallest(1, [=](uint32_t) { return AtomicArrive(count); });
  group.sync();
  return before + 1 == all;
}

// A run of a hot key, by its row. Runs of a whole block arrive at the block's first row; blocks,
// and runs in none, at the key's second one, which is no block's first. Nobody waits for anybody.
template <class Group>
HPS_HD void SumHotRun(Group group, const SumArgs& args, int64_t row) {
  const TermArgs& terms = args.terms;
  const int64_t id = KeyOfRow(args, row);
  if (id < 0) return;
  const KeyTerms key = terms.keys[id];
  const int64_t num_runs = NumRuns(key.count);
  const int64_t first = FirstRow(key.start);
  const int64_t run = row - first;
  const int64_t dim = args.cache.dim;
  const int64_t own = LengthOfRun(key, run);
  if (key.count > kMostRanked) ListRun(group, args, id, run);
  const auto sum = SumOfTerms(terms, key.start + run * kRunLength, own, nullptr);
  LanesOf(group, args.cache.dim).add_up(terms.run_sums + row * dim, sum);
  const int64_t num_blocks = num_runs / kRunsABlock;
  const int64_t block = run / kRunsABlock;
  if (block < num_blocks) {
    const int64_t oldest = first + block * kRunsABlock;
    if (!ArriveLast(group, args.arrivals + oldest, kRunsABlock)) return;
    SumBlock(group, terms.run_sums + oldest * dim, dim);
  }
  const int64_t num_units = num_blocks + num_runs % kRunsABlock;
  if (!ArriveLast(group, args.arrivals + first + 1, num_units)) return;
  CombineRuns(group, args, id, key.start, num_runs);
}

// i: below NumRows(L) + ceil(bound / kKeysAnItem). A run of a hot key; or, of a wild
// batch, keys of one run, whose sums are looked at.
template <class Group>
HPS_HD void SumRunOne(Group group, const SumArgs& args, int64_t i) {
  const int64_t num_rows = NumRows(args.batch.num_occurrences);
  if (i < num_rows) return SumHotRun(group, args, i);
  const BatchNumbers& numbers = *args.batch.numbers;
  if (!numbers.is_wild) return;
  const auto lanes = LanesOf(group, args.cache.dim);
  int64_t id = (i - num_rows) * kKeysAnItem;
  const int64_t end = id + kKeysAnItem < numbers.num_unique ? id + kKeysAnItem : numbers.num_unique;
  for (; id < end; ++id) {
    if (args.terms.keys[id].count > kRunLength) continue;
    NoteLargest(args, id, LargestOf(lanes, SumOfKey(args.terms, args.cache.dim, id)));
  }
}

// i: an occurrence, in a table with statistics. Whole numbers, so that their order is no matter.
template <class Group>
HPS_HD void CountOccurrenceOne(Group, const CountArgs& args, int64_t i) {
  const uint32_t id = args.batch.inverse[i];
  AtomicAdd(args.shows + id, uint32_t{1});
  if (args.labels != nullptr && args.labels[i] != 0) AtomicAdd(args.clicks + id, uint32_t{1});
}

}  // namespace HPS_BUILD
}  // namespace hps
