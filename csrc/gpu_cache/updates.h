// Changing rows: gradient sums a key, the check that all are finite, the optimizer once a key;
// assign and create.
//
// Above it: kernels.h. Below it: csrc/optimizer. (The host build sums in another order of places,
// host_batch.h says why, with the same additions.) The order of a sum is that of architecture's
// section on equal bits: occurrences in order within runs of 32, run sums as a binary counter
// combines them. A key of one run is summed by one work item; of a hot key each run is one, then
// each whole block of 64 runs, then the key. Sums are complete, and known to be finite, before the
// first row changes; where one might overflow its row, the update was tried.
#pragma once

#include "gpu_cache/moves.h"
#include "optimizer/trial.h"

namespace hps {

inline constexpr int64_t kRunsABlock = 64;

struct SumArgs {
  CacheArgs cache;
  BatchArgs batch;
  const float* gradients;      // [L, dim], or [bags, dim]
  const uint32_t* bags;        // [L] bag of each occurrence, or null: gradients are of occurrences
  const float* weights;        // [L] factor of each occurrence's gradient, or null: 1
  const int64_t* positions;    // [L] occurrences sorted by id, in order within one
  const uint32_t* sorted_ids;  // [L] their ids; for FindStart
  int64_t* starts;             // [N + 1] where an id's positions start
  int32_t* hot_ranks;  // [N] runs of the key if it is hot, else 0; then their inclusive prefix sum
  float* run_sums;     // [most_hot_runs, dim]
  uint32_t* run_ids;   // [most_hot_runs] whose run it is
  float* sums;         // [N, dim]
  int64_t bound;       // work items that stand for ids: N or more
  int64_t most_hot_runs;  // 2 * L / 32 rounded up, at least
};

struct CountArgs {
  BatchArgs batch;
  const uint8_t* labels;  // [L] of the occurrences, 0 or 1; or null
  uint32_t* shows;        // [N] zero before CountOccurrenceOne
  uint32_t* clicks;       // [N] the same; or null
};

// A gradient that was refused, for all caches of a device: no later update changes anything until
// the host has looked.
struct Failure {
  uint32_t is_set;
  uint32_t cache;  // the number of the cache, as the host counts them
  uint64_t key;
};

struct ApplyArgs {
  CacheArgs cache;
  BatchArgs batch;
  const float* sums;       // [N, dim]
  const Failure* failure;  // nothing is applied while it is set
  int64_t bound;           // work items: window_size or more
  float lr;
};

// Of a table with statistics, once its updates are applied.
struct CountUpdateArgs {
  CacheArgs cache;
  BatchArgs batch;
  const Failure* failure;   // nothing is counted while it is set
  const uint32_t* shows;    // [N] occurrences of each key
  const uint32_t* clicks;   // [N] of these, with label 1; or null
  const uint8_t* withheld;  // [N] 1: the row was not updated; or null
  int64_t bound;            // work items: window_size or more
};

struct TryArgs {
  CacheArgs cache;
  BatchArgs batch;
  const float* sums;  // [N, dim]
  uint32_t safe;      // gradients up to here need no trial; see SafeGradientBits
  int64_t bound;      // work items: window_size or more
  float lr;
};

struct NoteFailureArgs {
  BatchArgs batch;
  Failure* failure;
  uint32_t cache;
};

struct AssignArgs {
  CacheArgs cache;
  BatchArgs batch;
  const float* rows;                // [L, dim]
  const float* state;               // [L, state_floats] or null: that of a new row
  const RowStatistics* statistics;  // [L] or null: they stay, but for the last period
  uint32_t* last;  // [N] position of a key's last occurrence, plus 1; zero before LastOne
  int64_t bound;   // work items: window_size or more
  float lr;
};

struct CreateArgs {
  CacheArgs cache;
  BatchArgs batch;
  int64_t bound;  // work items: window_size or more
  float lr;
};

inline namespace HPS_BUILD {

// i: a place in the sorted occurrences; there is one at least.
template <class Group>
HPS_HD void FindStartOne(Group, const SumArgs& args, int64_t i) {
  const uint32_t id = args.sorted_ids[i];
  if (i == 0 || args.sorted_ids[i - 1] != id) args.starts[id] = i;
  if (i == args.batch.num_occurrences - 1) args.starts[id + 1] = i + 1;
}

// i: below bound. Then hot_ranks are summed up.
template <class Group>
HPS_HD void CountRunsOne(Group, const SumArgs& args, int64_t i) {
  if (i == 0) {
    args.batch.numbers->culprit = kNoCulprit;
    args.batch.numbers->largest = kOrdinaryBits;
  }
  int64_t count = 0;
  if (i < args.batch.numbers->num_unique) count = args.starts[i + 1] - args.starts[i];
  const int64_t num_runs = (count + kRunLength - 1) / kRunLength;
  args.hot_ranks[i] = count > kRunLength ? static_cast<int32_t>(num_runs) : 0;
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

// Sums the gradients at positions[first, end) from +0 into dst [dim]. The largest magnitude that a
// lane saw.
template <class Group>
HPS_HD uint32_t SumRun(Group group, const SumArgs& args, int64_t first, int64_t end, float* dst) {
  const int64_t dim = args.cache.dim;
  const auto lanes = LanesOf(group, args.cache.dim);
  const auto gradient = [=](int64_t i) {
    const int64_t position = args.positions[first + i];
    return args.gradients + (args.bags == nullptr ? position : int64_t{args.bags[position]}) * dim;
  };
  const auto weight = [=](int64_t i) {
    return args.weights == nullptr ? 1.0f : args.weights[args.positions[first + i]];
  };
  lanes.add_up(dst, end - first, gradient, weight);
  // Gradients that do not start at a multiple of 16 are added in other lanes than those that check.
  group.sync();
  return LargestOf(lanes, dst);
}

// The hot runs of keys below `id`, and with it.
HPS_HD int64_t FirstHotRun(const SumArgs& args, int64_t id) {
  return id == 0 ? 0 : args.hot_ranks[id - 1];
}

// The key that a hot run belongs to: the first whose rank is greater.
HPS_HD int64_t IdOfHotRun(const SumArgs& args, int64_t run) {
  int64_t low = 0, high = args.batch.numbers->num_unique - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (args.hot_ranks[middle] > run) {
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
    if (i >= num_unique || args.hot_ranks[i] != FirstHotRun(args, i)) return;
    float* const sum = args.sums + i * dim;
    NoteLargest(args, i, SumRun(group, args, args.starts[i], args.starts[i + 1], sum));
    return;
  }
  const int64_t run = i - args.bound;
  if (num_unique == 0 || run >= args.hot_ranks[num_unique - 1]) return;
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
  if (num_unique == 0 || i >= args.hot_ranks[num_unique - 1]) return;
  const int64_t id = args.run_ids[i];
  if ((i - FirstHotRun(args, id)) % kRunsABlock != 0) return;
  if (i + kRunsABlock > args.hot_ranks[id]) return;
  static_assert(kRunsABlock == 1 << 6);
  const int64_t dim = args.cache.dim;
  float* const sums = args.run_sums + i * dim;
  group.for_each(dim, [=](int64_t d) { sums[d] = AddNeighbours<6>(sums + d, dim); });
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
  const int64_t num_runs = args.hot_ranks[i] - first;
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

// i: below bound. Notes a key whose update would not leave its row finite; the rows are in place.
// Returns at once where that cannot be. Compiled once an optimizer, as ApplyOne.
template <OptimizerKind kKind, class Group>
HPS_HD void TryOne(Group group, const TryArgs& args, int64_t i) {
  const CacheArgs& cache = args.cache;
  const bool may_overflow = args.batch.numbers->largest > args.safe;
  if (!may_overflow && !AtomicLoad(&cache.clock->is_watched)) return;
  if (!IsInWindow(args.batch, i)) return;
  const int64_t id = WindowId(args.batch, i);
  const int64_t slot = args.batch.slots[id];
  const auto lanes = LanesOf(group, cache.dim);
  float* const row = FloatsAt(cache, slot);
  // Nobody reads a fresh row's state, which its first update starts again.
  if (cache.table.marks[slot].flags & kFresh) {
    StartState(lanes, kKind, row, args.lr, cache.numbers);
    group.sync();
  }
  const float* const sum = args.sums + id * cache.dim;
  WithRounding(group, cache, lanes, slot, sum, [&](auto row_lanes) {
    if (!UpdateIsFinite(row_lanes, kKind, row, sum, args.lr, cache.numbers)) {
      NoteCulprit(args.batch, id);
    }
  });
  // Such a gradient may leave a state that is not tame.
  const bool may_be_wild = kKind == OptimizerKind::kAdam || kKind == OptimizerKind::kFtrl;
  if (may_be_wild && i == 0) AtomicStore(&cache.clock->is_watched, uint32_t{1});
}

// i: 0. Tells the device that a gradient was refused, unless another one was before.
template <class Group>
HPS_HD void NoteFailureOne(Group, const NoteFailureArgs& args, int64_t) {
  const uint32_t culprit = args.batch.numbers->culprit;
  if (culprit == kNoCulprit || args.failure->is_set) return;
  args.failure->cache = args.cache;
  args.failure->key = args.batch.unique_keys[culprit];
  args.failure->is_set = 1;
}

// i: below bound. A new row's state starts with the learning rate of its first update, not of the
// read that brought it up: how long a row stays cached must not show in its bits. Compiled once an
// optimizer, which must be the cache's: one kernel for all would need the registers of the
// greediest.
template <OptimizerKind kKind, class Group>
HPS_HD void ApplyOne(Group group, const ApplyArgs& args, int64_t i) {
  const CacheArgs& cache = args.cache;
  if (args.failure->is_set || !IsInWindow(args.batch, i)) return;
  const int64_t id = WindowId(args.batch, i);
  const int64_t slot = args.batch.slots[id];
  const uint8_t flags = cache.table.marks[slot].flags;
  const auto lanes = LanesOf(group, cache.dim);
  float* const row = FloatsAt(cache, slot);
  if (flags & kFresh) {
    StartState(lanes, kKind, row, args.lr, cache.numbers);
    group.sync();  // the header's scalars are read by all lanes
  }
  const float* const sum = args.sums + id * cache.dim;
  WithRounding(group, cache, lanes, slot, sum, [&](auto row_lanes) {
    UpdateRow(row_lanes, kKind, row, sum, args.lr, cache.numbers);
  });
  if (kKind == OptimizerKind::kFtrl && !FtrlIsTame(lanes, row)) {
    AtomicStore(&cache.clock->is_watched, uint32_t{1});
  }
  group.sync();  // all have seen the flags
  group.elect([&] { MarkUpdated(cache, slot, i); });
}

// i: below bound. Apart from ApplyOne, so that rows which do not count pay nothing for it.
template <class Group>
HPS_HD void CountUpdateOne(Group, const CountUpdateArgs& args, int64_t i) {
  const CacheArgs& cache = args.cache;
  if (args.failure->is_set || !IsInWindow(args.batch, i)) return;
  const int64_t id = WindowId(args.batch, i);
  if (args.withheld != nullptr && args.withheld[id]) return;
  const uint32_t clicks = args.clicks == nullptr ? 0 : args.clicks[id];
  CountUpdate(RowAt(cache.table, args.batch.slots[id]), args.shows[id], clicks, cache.more_shows,
              cache.period, cache.rules);
}

// i: an occurrence. A key's last occurrence counts.
template <class Group>
HPS_HD void FindLastOne(Group, const AssignArgs& args, int64_t i) {
  AtomicMax(args.last + args.batch.inverse[i], static_cast<uint32_t>(i) + 1);
}

// i: below bound.
template <class Group>
HPS_HD void AssignOne(Group group, const AssignArgs& args, int64_t i) {
  const CacheArgs& cache = args.cache;
  if (!IsInWindow(args.batch, i)) return;
  const int64_t id = WindowId(args.batch, i);
  const int64_t slot = args.batch.slots[id];
  const int64_t position = int64_t{args.last[id]} - 1;
  const int64_t dim = cache.dim;
  const RowLayout layout{cache.kind, dim};
  const auto lanes = LanesOf(group, cache.dim);
  float* const row = FloatsAt(cache, slot);
  const float* const weights = args.rows + position * dim;
  lanes.set(lanes.weights(row), [=](int d) { return weights[d]; });
  if (args.state == nullptr) {
    StartState(lanes, cache.kind, row, args.lr, cache.numbers);
  } else {
    const int64_t scalars = layout.header_scalars();
    const float* const state = args.state + position * layout.state_floats();
    float* const vectors = lanes.state(row);
    group.for_each(scalars, [=](int64_t k) { row[kFirstScalar + k] = state[k]; });
    group.for_each(dim * layout.state_vectors(),
                   [=](int64_t k) { vectors[k] = state[scalars + k]; });
  }
  group.elect([&] {
    MarkUpdated(cache, slot, i);
    NotePeriod(cache, slot);
    if (args.statistics != nullptr)
      SetStatistics(RowAt(cache.table, slot), args.statistics[position], cache.rules);
  });
}

// i: below bound. Stores a fresh row as it is, with the state of a new row.
template <class Group>
HPS_HD void CreateOne(Group group, const CreateArgs& args, int64_t i) {
  const CacheArgs& cache = args.cache;
  if (!IsInWindow(args.batch, i)) return;
  const int64_t slot = args.batch.slots[WindowId(args.batch, i)];
  if (!(cache.table.marks[slot].flags & kFresh)) return;
  StartState(LanesOf(group, cache.dim), cache.kind, FloatsAt(cache, slot), args.lr, cache.numbers);
  group.sync();  // all have seen the flag
  group.elect([&] {
    MarkUpdated(cache, slot, i);
    NotePeriod(cache, slot);
  });
}

}  // namespace HPS_BUILD
}  // namespace hps
