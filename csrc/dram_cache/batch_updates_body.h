// The text of the update loop, compiled once an instruction set: apply the optimizer once a key.
//
// Above it: batch_loops_{plain,avx2,avx512}.cc. Below it: batch_loops_body.h, csrc/optimizer.
// Gradients were summed by csrc/batch, and found to be finite, before the first row changes, and
// where an update might overflow it was tried: a refused push leaves the table as it was.
#pragma once

#include "dram_cache/batch_loops_body.h"
#include "optimizer/trial.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int64_t kRowsAhead = 24;

// What a key's gradients sum to. A single one counts from +0 as every sum does, so that -0 is +0.
template <class Lanes>
inline const float* SumOf(Lanes lanes, const WorkerBatch& worker, int64_t id) {
  const int64_t dim = lanes.size();
  if (worker.gradients == nullptr) return worker.values + id * dim;
  const float* gradient = worker.gradients + int64_t{worker.scan_positions[id]} * dim;
  AddToSum<Lanes::kWidth>(true, worker.values, gradient, 1.0f, lanes.size());
  return worker.values;
}

// Calls body(lanes of a row) for one update of the narrow row that `lanes` walk.
template <class Lanes, class Body>
inline auto WithRounding(const CacheView& cache, Lanes lanes, float* row, const float* sum,
                         Body body) {
  if (cache.rounding == Rounding::kNearest) return body(lanes);
  const int64_t before = cache.table.header_bytes() - kRowHeaderBytes;
  const auto* const key = reinterpret_cast<const uint8_t*>(row) - before;
  const uint64_t seed = SeedOfKey(cache.initializer.stream, KeyOfRow(key));
  const int64_t vectors = RowLayout{cache.kind}.state_vectors();
  using Inner = decltype(lanes.lanes);
  return body(NarrowLanes<Inner, Rounding::kStochastic>{
      lanes.lanes, SeedOfUpdate(lanes.lanes, vectors, row, sum, seed)});
}
template <int kDim, class Body>
inline auto WithRounding(const CacheView&, HostLanes<kDim> lanes, float*, const float*, Body body) {
  return body(lanes);
}

inline int64_t FindOverflow(const CacheView& cache, WorkerBatch* batch, float lr) {
  const OptimizerNumbers numbers = cache.numbers;
  return WithRowLanes(cache, [&](auto lanes) {
    for (int64_t id = batch->window_begin; id < batch->window_end; ++id) {
      const int64_t slot = batch->slots[id];
      float* const row = FloatsAt(cache.table, slot);
      // Nobody reads a fresh row's state, which its first update starts again.
      if (cache.table.marks[slot].flags & kFresh) StartState(lanes, cache.kind, row, lr, numbers);
      const float* const sum = SumOf(lanes, *batch, id);
      const bool is_finite = WithRounding(cache, lanes, row, sum, [&](auto row_lanes) {
        return UpdateIsFinite(row_lanes, cache.kind, row, sum, lr, numbers);
      });
      if (!is_finite) return id;
    }
    return int64_t{-1};
  });
}

// Counts an update of the key `id`, of its occurrences in the batch. The one occurrence of a key
// that was not numbered has no label.
inline void CountUpdateOf(const CacheView& cache, const WorkerBatch& worker, int64_t id) {
  const bool is_each = worker.gradients != nullptr;
  const uint32_t shows = is_each ? 1 : worker.counts[id];
  const uint32_t clicks = is_each || worker.clicks == nullptr ? 0 : worker.clicks[id];
  CountUpdate(RowAt(cache.table, worker.slots[id]), shows, clicks, cache.more_shows, cache.period,
              cache.rules);
}

template <bool kWatchesTame, bool kCounts, class Lanes, class Update>
inline int64_t ApplyWith(const CacheView& cache, WorkerBatch* batch, Lanes lanes, float lr,
                         Update update) {
  const WorkerBatch& worker = *batch;
  const TableView& table = cache.table;
  const int64_t row_bytes = table.shape.row_bytes;
  int64_t num_fresh = 0;
  int64_t num_clean = 0;
  bool is_wild = false;
  for (int64_t id = worker.window_begin; id < worker.window_end; ++id) {
    const auto is_withheld = [&](int64_t other) {
      return worker.withheld != nullptr && worker.withheld[other] != 0;
    };
    if (id + kRowsAhead < worker.window_end && !is_withheld(id + kRowsAhead)) {
      const int64_t slot = worker.slots[id + kRowsAhead];
      PrefetchRow<true>(RowAt(table, slot), row_bytes, cache.alignment());
      __builtin_prefetch(table.marks + slot, 1);
    }
    if (is_withheld(id)) continue;
    const int64_t slot = worker.slots[id];
    float* const row = FloatsAt(table, slot);
    uint8_t& flags = table.marks[slot].flags;
    // A new row's state starts with the learning rate of its first update, not of the read that
    // brought it up: how long a row stays cached must not show in its bits.
    if (flags & kFresh) [[unlikely]]
      StartState(lanes, cache.kind, row, lr, cache.numbers);
    update(lanes, row, SumOf(lanes, worker, id));
    if constexpr (kCounts) CountUpdateOf(cache, worker, id);
    if constexpr (kWatchesTame) is_wild |= !FtrlIsTame(lanes, row);
    num_fresh += (flags & kFresh) != 0;
    num_clean += (flags & kDirty) == 0;
    flags = static_cast<uint8_t>((flags & ~(kFresh | kTaken)) | kDirty);
  }
  batch->num_dirtied = num_clean;
  batch->is_wild = is_wild;
  return num_fresh;
}

template <OptimizerKind kKind>
struct Constant {
  static constexpr OptimizerKind value = kKind;
};

inline int64_t Apply(const CacheView& cache, WorkerBatch* worker, float lr) {
  const OptimizerNumbers numbers = cache.numbers;
  return WithRowLanes(cache, [&](auto lanes) {
    const auto with_kind = [&](auto kind) {
      constexpr OptimizerKind kKind = decltype(kind)::value;
      constexpr bool kWatchesTame = kKind == OptimizerKind::kFtrl;
      const auto update = [=, &cache](auto table_lanes, float* row, const float* sum) {
        WithRounding(cache, table_lanes, row, sum,
                     [=](auto row_lanes) { UpdateRow(row_lanes, kKind, row, sum, lr, numbers); });
      };
      return cache.table.has_statistics()
                 ? ApplyWith<kWatchesTame, true>(cache, worker, lanes, lr, update)
                 : ApplyWith<kWatchesTame, false>(cache, worker, lanes, lr, update);
    };
    switch (cache.kind) {
      case OptimizerKind::kSgd:
        return with_kind(Constant<OptimizerKind::kSgd>{});
      case OptimizerKind::kAdagrad:
        return with_kind(Constant<OptimizerKind::kAdagrad>{});
      case OptimizerKind::kRowWiseAdagrad:
        return with_kind(Constant<OptimizerKind::kRowWiseAdagrad>{});
      case OptimizerKind::kAdam:
        return with_kind(Constant<OptimizerKind::kAdam>{});
      case OptimizerKind::kFtrl:
        return with_kind(Constant<OptimizerKind::kFtrl>{});
    }
    return int64_t{0};
  });
}

}  // namespace HPS_BUILD
}  // namespace hps

// Defines the function table of the including translation unit.
#define HPS_DEFINE_BATCH_LOOPS(variable, label)                                          \
  namespace hps {                                                                        \
  const BatchLoops variable = {label,    SortPositions, Pull,     PullValues, PullSlots, \
                               PullEach, Find,          FindEach, Collect,    Reserve,   \
                               Fill,     FindOverflow,  Apply};                          \
  }
