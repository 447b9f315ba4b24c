// Sums of gradients a key, over all tables of a step, and the check that they are finite.
//
// Above it: kernels.h. Below it: csrc/optimizer. (The host build sums in another order of places,
// host_batch.h says why, with the same additions.) The order of a sum is that of architecture's
// section on equal bits: occurrences in order within runs of 32, run sums as a binary counter
// combines them. A key of one run is summed by one work item; of a hot key each run is one, then
// each whole block of 64 runs, then the key. The tables' occurrences lie behind each other, and
// their keys are numbered in one space, so that one sort and one prefix sum serve all tables: a
// table has a place for each of its ids from `first_place` on, and one more.
#pragma once

#include "gpu_cache/moves.h"
#include "optimizer/trial.h"

namespace hps {

inline constexpr int64_t kRunsABlock = 64;

// One table's part.
struct SumArgs {
  CacheArgs cache;
  BatchArgs batch;
  const int64_t* offsets;    // [num_bags + 1], or null: gradients are of occurrences
  const float* gradients;    // [num_bags, dim], or [L, dim]
  float* divided;            // [num_bags, dim] gradients of means as those of sums, or null
  const float* weights;      // [L] factor of each occurrence's gradient, or null: 1
  uint32_t* bags;            // [L] bag of each occurrence; not where offsets are null
  uint32_t* places;          // [L] id of each occurrence, from first_place on
  const int64_t* positions;  // occurrences of all tables sorted by place, in order within one
  int64_t* starts;           // [bound + 1] where an id's positions start; the end of the last
  int32_t* hot_ranks;        // [bound + 1] 0, then runs of each key if it is hot, else 0; then
                             // the inclusive prefix sum of all tables' behind each other
  float* run_sums;           // [most_hot_runs, dim]
  uint32_t* run_ids;         // [most_hot_runs] whose run it is
  float* sums;               // [N, dim]
  int64_t first_place;       // of the table
  int64_t first_position;    // of the table: L of those before it
  int64_t num_bags;          // or L
  int64_t bound;             // work items that stand for ids: N or more
  int64_t most_hot_runs;     // 2 * L / 32 rounded up, at least
};

// Of all tables.
struct FindStartArgs {
  const uint32_t* sorted_places;  // [count] ascending
  int64_t* starts;                // [places]
  int64_t count;                  // occurrences of all tables
};

struct CountArgs {
  BatchArgs batch;
  const uint8_t* labels;  // [L] of the occurrences, 0 or 1; or null
  uint32_t* shows;        // [N] zero before CountOccurrenceOne
  uint32_t* clicks;       // [N] the same; or null
};

inline namespace HPS_BUILD {

// i: a bag, or an occurrence where there are no bags. Gives its occurrences their places, and
// divides the gradient of a mean. Then places are sorted.
template <class Group>
HPS_HD void SpreadBagOne(Group group, const SumArgs& args, int64_t i) {
  const int64_t first = args.offsets == nullptr ? i : args.offsets[i];
  const int64_t count = args.offsets == nullptr ? 1 : args.offsets[i + 1] - first;
  group.for_each(count, [&](int64_t k) {
    const int64_t position = first + k;
    args.places[position] = static_cast<uint32_t>(args.first_place + args.batch.inverse[position]);
    if (args.bags != nullptr) args.bags[position] = static_cast<uint32_t>(i);
  });
  if (args.divided == nullptr) return;
  const auto divisor = static_cast<float>(count > 1 ? count : 1);
  const int64_t dim = args.cache.dim;
  const float* const gradient = args.gradients + i * dim;
  float* const divided = args.divided + i * dim;
  group.for_each(dim, [&](int64_t d) { divided[d] = gradient[d] / divisor; });
}

// i: in the sorted places. An id ends where the next one starts, and the last one of a table where
// the table's occurrences do.
template <class Group>
HPS_HD void FindStartOne(Group, const FindStartArgs& args, int64_t i) {
  const uint32_t place = args.sorted_places[i];
  const uint32_t next = i + 1 < args.count ? args.sorted_places[i + 1] : ~uint32_t{0};
  if (i == 0 || args.sorted_places[i - 1] != place) args.starts[place] = i;
  if (next != place && next != place + 1) args.starts[place + 1] = i + 1;
}

// i: below bound. Then hot_ranks are summed up.
template <class Group>
HPS_HD void CountRunsOne(Group, const SumArgs& args, int64_t i) {
  if (i == 0) {
    args.batch.numbers->culprit = kNoCulprit;
    args.batch.numbers->largest = kOrdinaryBits;
    args.hot_ranks[0] = 0;
  }
  int64_t count = 0;
  if (i < args.batch.numbers->num_unique) count = args.starts[i + 1] - args.starts[i];
  const int64_t num_runs = (count + kRunLength - 1) / kRunLength;
  args.hot_ranks[i + 1] = count > kRunLength ? static_cast<int32_t>(num_runs) : 0;
}

HPS_HD void NoteCulprit(const BatchArgs& batch, int64_t id) {
  AtomicMin(&batch.numbers->culprit, static_cast<uint32_t>(id));
}

// What a lane saw of a key's sum [dim]: the magnitude, as bits.
template <class Lanes>
HPS_HD uint32_t LargestOf(Lanes lanes, const float* sum) {
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

// The position in its table of an occurrence in order of places.
HPS_HD int64_t PositionOf(const SumArgs& args, int64_t i) {
  return args.positions[i] - args.first_position;
}

// Sums the gradients at positions[first, end) from +0 into dst [dim]. The largest magnitude that a
// lane saw.
template <class Group>
HPS_HD uint32_t SumRun(Group group, const SumArgs& args, int64_t first, int64_t end, float* dst) {
  const int64_t dim = args.cache.dim;
  const auto lanes = LanesOf(group, args.cache.dim);
  const float* const gradients = args.divided == nullptr ? args.gradients : args.divided;
  const auto gradient = [&](int64_t i) {
    const int64_t position = PositionOf(args, first + i);
    return gradients + (args.bags == nullptr ? position : int64_t{args.bags[position]}) * dim;
  };
  const auto weight = [&](int64_t i) {
    return args.weights == nullptr ? 1.0f : args.weights[PositionOf(args, first + i)];
  };
  lanes.add_up(dst, end - first, gradient, weight);
  // Gradients that do not start at a multiple of 16 are added in other lanes than those that check.
  group.sync();
  return LargestOf(lanes, dst);
}

// The hot runs of the table's keys below `id`, which may be their number.
HPS_HD int64_t FirstHotRun(const SumArgs& args, int64_t id) {
  return args.hot_ranks[id] - args.hot_ranks[0];
}

// The key that a hot run belongs to: the first whose rank is greater.
HPS_HD int64_t IdOfHotRun(const SumArgs& args, int64_t run) {
  int64_t low = 0, high = args.batch.numbers->num_unique - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (FirstHotRun(args, middle + 1) > run) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// i: below bound + most_hot_runs. Sums a key of one run, or one run of a hot key.
template <class Group>
HPS_HD void SumRunOne(Group group, const SumArgs& args, int64_t i) {
  const int64_t num_unique = args.batch.numbers->num_unique;
  const int64_t dim = args.cache.dim;
  if (i < args.bound) {
    if (i >= num_unique || args.hot_ranks[i + 1] != args.hot_ranks[i]) return;
    float* const sum = args.sums + i * dim;
    NoteLargest(args, i, SumRun(group, args, args.starts[i], args.starts[i + 1], sum));
    return;
  }
  const int64_t run = i - args.bound;
  if (run >= FirstHotRun(args, num_unique)) return;
  const int64_t id = IdOfHotRun(args, run);
  const int64_t first = args.starts[id] + (run - FirstHotRun(args, id)) * kRunLength;
  const int64_t end = args.starts[id + 1];
  SumRun(group, args, first, first + kRunLength < end ? first + kRunLength : end,
         args.run_sums + run * dim);
  group.elect([&] { args.run_ids[run] = static_cast<uint32_t>(id); });
}

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

// i: a hot run, below most_hot_runs. The first of a whole block of its key's takes the block's sum.
template <class Group>
HPS_HD void SumBlockOne(Group group, const SumArgs& args, int64_t i) {
  const int64_t num_unique = args.batch.numbers->num_unique;
  if (i >= FirstHotRun(args, num_unique)) return;
  const int64_t id = args.run_ids[i];
  if ((i - FirstHotRun(args, id)) % kRunsABlock != 0) return;
  if (i + kRunsABlock > FirstHotRun(args, id + 1)) return;
  static_assert(kRunsABlock == 1 << 6);
  const int64_t dim = args.cache.dim;
  float* const sums = args.run_sums + i * dim;
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

// Adds the blocks that CombineBlocks left, youngest to oldest, to `total`, or starts it with them.
template <class Lanes>
HPS_HD void AddLeftovers(Lanes lanes, const float* sums, int64_t count, int64_t stride,
                         bool has_total, float* total) {
  int64_t end = count;
  for (int64_t size = 1; size <= count; size *= 2) {
    if (!(count & size)) continue;
    end -= size;
    if (has_total) {
      lanes.each([](float& sum, float older) { sum += older; }, total, sums + end * stride);
    } else {
      lanes.each([](float& sum, float first) { sum = first; }, total, sums + end * stride);
    }
    has_total = true;
  }
}

// i: below bound. A hot key's sum from those of its blocks and of the runs in no whole block.
template <class Group>
HPS_HD void CombineRunsOne(Group group, const SumArgs& args, int64_t i) {
  if (i >= args.batch.numbers->num_unique) return;
  const int64_t first = FirstHotRun(args, i);
  const int64_t num_runs = FirstHotRun(args, i + 1) - first;
  if (num_runs == 0) return;
  const int64_t dim = args.cache.dim;
  const auto lanes = LanesOf(group, args.cache.dim);
  const int64_t num_blocks = num_runs / kRunsABlock;
  const int64_t num_left = num_runs % kRunsABlock;
  float* const blocks = args.run_sums + first * dim;
  float* const left = blocks + num_blocks * kRunsABlock * dim;
  float* const sum = args.sums + i * dim;
  CombineBlocks(lanes, left, num_left, dim);
  CombineBlocks(lanes, blocks, num_blocks, kRunsABlock * dim);
  AddLeftovers(lanes, left, num_left, dim, false, sum);
  AddLeftovers(lanes, blocks, num_blocks, kRunsABlock * dim, num_left != 0, sum);
  NoteLargest(args, i, LargestOf(lanes, sum));
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
