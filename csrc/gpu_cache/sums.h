// Sums of gradients a key, over all tables of a step, and the check that they are finite.
//
// Above it: kernels.h. Below it: csrc/optimizer. (The host build sums in another order of places,
// host_batch.h says why, with the same additions.) The order of a sum is that of architecture's
// section on equal bits: occurrences in order within runs of 32, run sums as a binary counter
// combines them. A key of one run has no sum in memory: its update adds it up where it reads it
// (TermsOf). Of a hot key each run is a work item; who ends a whole block of 64 runs combines it,
// and who ends the last of a key combines all. The tables' occurrences lie behind each other, and
// their keys are numbered in one space, so that one sort serves all tables: a table has a place for
// each of its ids from `first_place` on, and one more.
//
// No row is read to know that all sums are finite. Terms of a magnitude up to 2^15 have a sum of up
// to 2^20 = kOrdinaryBits, for 32 terms: of additions that round to the nearest none goes beyond a
// float that the exact one does not go beyond, and k * 2^15 is one. So the k-th is at most that. A
// batch with a larger term is wild: its keys of one run are summed once more, to be looked at.
// Hot keys are looked at in any case. What sums up to a bound do to a row: safe_gradient.h.
#pragma once

#include "gpu_cache/moves.h"
#include "optimizer/trial.h"

namespace hps {

inline constexpr int64_t kRunsABlock = 64;
// A hot key's runs have rows of run_sums behind each other, the first by where its occurrences
// start: 33 of them or more have at most as many runs as places of 16 that end among them.
inline constexpr int64_t kPlacesARow = kRunLength / 2;
// Keys of a wild batch that an item looks at: so that other batches have few items for it.
inline constexpr int64_t kKeysAnItem = 16;
inline constexpr uint32_t kOrdinaryTermBits = 0x47000000;  // 2^15

// Of one table: where the terms of each key's sum lie.
struct TermArgs {
  const float* gradients;  // of bags, or of occurrences; of means they have been divided
  uint32_t* origins;       // [L] where each term lies among them, in floats; by place, in order
  float* weights;          // [L] factor of each, or null: 1
  int64_t* starts;         // [bound + 1] where an id's occurrences start; the end of the last
  float* run_sums;         // [L / kPlacesARow + 1, dim] of hot keys' runs, then of these keys
  int64_t first_position;  // of the table: L of those before it
  int32_t are_aligned;     // terms begin at multiples of 16 bytes
};

// One table's part. Gradients as they came are rows of an example's features, whether one or
// several tables lie side by side; [F * B, dim] are those of F * B examples of one feature.
struct SumArgs {
  CacheArgs cache;
  BatchArgs batch;
  TermArgs terms;
  const int64_t* offsets;         // [num_bags + 1], or null: gradients are of occurrences
  const float* weights;           // [L] factor of each occurrence's gradient, or null: 1
  const float* given;             // gradients as they came; the first example's first feature
  int64_t num_examples;           // rows of them
  int64_t pitch;                  // floats from one of these to the next
  float* divided;                 // [num_bags, dim] gradients of means as those of sums, or null
  uint32_t* bags;                 // [L] origin of each occurrence's term; null as offsets are
  uint32_t* places;               // [L] id of each occurrence, from first_place on
  const int64_t* positions;       // [num_positions] of all tables, in the order of places
  const uint32_t* sorted_places;  // [num_positions] of all tables, ascending
  uint32_t* arrivals;             // [L / kPlacesARow + 1] by row of run_sums, see SumHotRun
  int64_t first_place;            // of the table
  int64_t num_positions;          // L of all tables
  int64_t num_bags;               // or L
  int64_t bound;                  // N or more
};

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

// Where the gradient of a bag begins, or of an occurrence where there are no bags, in floats.
HPS_HD int64_t OriginOf(const SumArgs& args, int64_t i) {
  const int64_t feature = i / args.num_examples;
  return (i - feature * args.num_examples) * args.pitch + feature * args.cache.dim;
}

// i: a bag, or an occurrence where there are no bags. Gives its occurrences their places, divides
// the gradient of a mean, and notes terms that are not ordinary. Then places are sorted.
template <class Group>
HPS_HD void SpreadBagOne(Group group, const SumArgs& args, int64_t i) {
  const int64_t first = args.offsets == nullptr ? i : args.offsets[i];
  const int64_t count = args.offsets == nullptr ? 1 : args.offsets[i + 1] - first;
  const int64_t dim = args.cache.dim;
  const int64_t origin = OriginOf(args, i);
  const int64_t origin_of_term = args.divided == nullptr ? origin : i * dim;
  group.for_each(count, [&](int64_t k) {
    const int64_t position = first + k;
    args.places[position] = static_cast<uint32_t>(args.first_place + args.batch.inverse[position]);
    if (args.bags != nullptr) args.bags[position] = static_cast<uint32_t>(origin_of_term);
  });
  if (count == 0) return;
  const float* gradient = args.given + origin;
  if (args.divided != nullptr) {
    const auto divisor = static_cast<float>(count);
    float* const divided = args.divided + i * dim;
    group.for_each(dim, [=](int64_t d) { divided[d] = gradient[d] / divisor; });
    group.sync();
    gradient = divided;
  }
  if (LargestTerm(group, args, gradient, first, count) > kOrdinaryTermBits) {
    AtomicStore(&args.batch.numbers->is_wild, uint32_t{1});
  }
}

// i: an occurrence, in the order of places. An id ends where the next one starts, and the last one
// of a table where the table's occurrences do. Says where its term lies, in the memory of the
// places that were sorted; readies what SumRunOne counts in.
template <class Group>
HPS_HD void FindStartOne(Group, const SumArgs& args, int64_t i) {
  if (i == 0) {
    args.batch.numbers->culprit = kNoCulprit;
    args.batch.numbers->largest = kOrdinaryBits;
  }
  if (i % kPlacesARow == 0) args.arrivals[i / kPlacesARow] = 0;
  const int64_t at = args.terms.first_position + i;
  const uint32_t place = args.sorted_places[at];
  const uint32_t next = at + 1 < args.num_positions ? args.sorted_places[at + 1] : ~uint32_t{0};
  const int64_t position = args.positions[at] - args.terms.first_position;
  args.terms.origins[i] =
      args.bags == nullptr ? static_cast<uint32_t>(OriginOf(args, position)) : args.bags[position];
  if (args.weights != nullptr) args.terms.weights[i] = args.weights[position];
  int64_t* const starts = args.terms.starts - args.first_place;
  if (at == 0 || args.sorted_places[at - 1] != place) starts[place] = at;
  if (next != place && next != place + 1) starts[place + 1] = at + 1;
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

HPS_HD int64_t NumRuns(int64_t count) { return (count + kRunLength - 1) / kRunLength; }

// Of a hot key whose occurrences start at that place of its table.
HPS_HD int64_t FirstRow(int64_t start) { return start / kPlacesARow; }

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
  const int64_t start = terms.starts[id] - terms.first_position;
  const int64_t count = terms.starts[id + 1] - terms.starts[id];
  const float* const whole =
      count > kRunLength ? terms.run_sums + RowOfSum(start, NumRuns(count)) * dim : nullptr;
  return SumOfTerms(terms, start, count, whole);
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
  const int64_t among = row * kPlacesARow + kPlacesARow - 1;  // of its occurrences, if it is a run
  if (among >= args.batch.num_occurrences) return;
  const int64_t id = args.sorted_places[terms.first_position + among] - args.first_place;
  const int64_t start = terms.starts[id] - terms.first_position;
  const int64_t count = terms.starts[id + 1] - terms.starts[id];
  const int64_t num_runs = NumRuns(count);
  const int64_t first = FirstRow(start);
  const int64_t run = row - first;
  if (count <= kRunLength || run < 0 || run >= num_runs) return;
  const int64_t dim = args.cache.dim;
  const int64_t of_others = run * kRunLength;
  const int64_t own = count - of_others < kRunLength ? count - of_others : kRunLength;
  const auto sum = SumOfTerms(terms, start + of_others, own, nullptr);
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
  CombineRuns(group, args, id, start, num_runs);
}

// i: below L / kPlacesARow + 1 + ceil(bound / kKeysAnItem). A run of a hot key; or, of a wild
// batch, keys of one run, whose sums are looked at.
template <class Group>
HPS_HD void SumRunOne(Group group, const SumArgs& args, int64_t i) {
  const int64_t num_rows = args.batch.num_occurrences / kPlacesARow + 1;
  if (i < num_rows) return SumHotRun(group, args, i);
  const BatchNumbers& numbers = *args.batch.numbers;
  if (!numbers.is_wild) return;
  const auto lanes = LanesOf(group, args.cache.dim);
  int64_t id = (i - num_rows) * kKeysAnItem;
  const int64_t end = id + kKeysAnItem < numbers.num_unique ? id + kKeysAnItem : numbers.num_unique;
  for (; id < end; ++id) {
    if (args.terms.starts[id + 1] - args.terms.starts[id] > kRunLength) continue;
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
