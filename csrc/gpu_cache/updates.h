// Changing rows: the trial of an update, the optimizer once a key; assign and create.
//
// Above it: kernels.h. Below it: sums.h. Sums are known to be finite before the first row changes;
// where one might overflow its row, the update was tried.
#pragma once

#include "gpu_cache/sums.h"
#include "gpu_cache/tables.h"

namespace hps {

// A gradient that was refused, for all caches of a device: no later update changes anything until
// the host has looked.
struct Failure {
  uint32_t is_set;
  uint32_t cache;  // the number of the cache, as the host counts them
  uint64_t key;
};

// Sums: const float*, [N, dim], of the host; or TermArgs, of a device.
template <class Sums>
struct ApplyArgsOf {
  CacheArgs cache;
  BatchArgs batch;
  Sums sums;
  const Failure* failure;  // nothing is applied while it is set
  int64_t bound;           // work items: window_size or more
  float lr;
};
using ApplyArgs = ApplyArgsOf<const float*>;
using ApplyTermsArgs = ApplyArgsOf<TermArgs>;

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

template <class Sums>
struct TryArgsOf {
  CacheArgs cache;
  BatchArgs batch;
  Sums sums;
  uint32_t safe;  // gradients up to here need no trial; see SafeGradientBits
  int64_t bound;  // work items: window_size or more
  float lr;
  uint32_t number;  // of the cache, as the host counts them
};
using TryArgs = TryArgsOf<const float*>;
using TryTermsArgs = TryArgsOf<TermArgs>;

struct NoteFailureArgs {
  Tables tables;  // of TryTermsArgs
  Failure* failure;
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

// i: below bound. Notes a key whose update would not leave its row finite; the rows are in place.
// Returns at once where that cannot be. Compiled once an optimizer, as ApplyOne.
template <OptimizerKind kKind, class Group, class Sums>
HPS_HD void TryOne(Group group, const TryArgsOf<Sums>& args, int64_t i) {
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
  const auto sum = SumOfKey(args.sums, cache.dim, id);
  WithRounding(group, cache, lanes, slot, sum, [&](auto row_lanes) {
    if (!UpdateIsFinite(row_lanes, kKind, row, sum, args.lr, cache.numbers)) {
      NoteCulprit(args.batch, id);
    }
  });
  // Such a gradient may leave a state that is not tame.
  const bool may_be_wild = kKind == OptimizerKind::kAdam || kKind == OptimizerKind::kFtrl;
  if (may_be_wild && i == 0) AtomicStore(&cache.clock->is_watched, uint32_t{1});
}

// i: 0. Tells the device that a gradient was refused, the first table's that has one, unless
// another one was before.
template <class Group>
HPS_HD void NoteFailureOne(Group group, const NoteFailureArgs& args, int64_t) {
  const auto* const tables = static_cast<const TryTermsArgs*>(args.tables.args);
  const auto num_tables = static_cast<uint32_t>(args.tables.num_tables);
  const uint32_t first = group.smallest(num_tables, [=](uint32_t table) {
    return tables[table].batch.numbers->culprit == kNoCulprit ? ~uint32_t{0} : table;
  });
  if (first == ~uint32_t{0}) return;
  group.elect([&] {
    if (args.failure->is_set) return;
    const BatchArgs& batch = tables[first].batch;
    args.failure->cache = tables[first].number;
    args.failure->key = batch.unique_keys[batch.numbers->culprit];
    args.failure->is_set = 1;
  });
}

// i: below bound. A new row's state starts with the learning rate of its first update, not of the
// read that brought it up: how long a row stays cached must not show in its bits. Compiled once an
// optimizer, which must be the cache's: one kernel for all would need the registers of the
// greediest.
template <OptimizerKind kKind, class Group, class Sums>
HPS_HD void ApplyOne(Group group, const ApplyArgsOf<Sums>& args, int64_t i) {
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
  const auto sum = SumOfKey(args.sums, cache.dim, id);
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
