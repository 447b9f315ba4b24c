// The text of the update loops, compiled once an instruction set: sum the gradients of each key,
// then apply the optimizer once a key. See batch_loops.h for what each loop does.
//
// Sums are complete, and known to be finite, before the first row changes: a refused push leaves
// the table as it was.
#pragma once

#include "dram_cache/batch_loops_body.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int64_t kRowsAhead = 24;

// Adds every occurrence's gradient to its accumulator, in the batch's order, from +0.
template <int kDim>
inline void SumRuns(int any_dim, WorkerBatch* worker, const float* gradients) {
  constexpr int64_t kAhead = 16;
  const int64_t dim = kDim > 0 ? kDim : any_dim;
  float* values = worker->values;
  const uint32_t* accumulators = worker->accumulators;
  const uint32_t* positions = worker->scan_positions;
  const int64_t count = worker->num_occurrences;
  const auto num_sums = static_cast<uint64_t>(worker->num_unique + worker->num_extra);
  __builtin_memset(values, 0, num_sums * static_cast<uint64_t>(dim) * sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    // What stands behind the last occurrence is 0, and harmless.
    const float* gradient = gradients + positions[i + kAhead] * dim;
    const float* sum = values + accumulators[i + kAhead] * dim;
    for (int64_t d = 0; d < dim; d += 16) __builtin_prefetch(sum + d, 1);
    if (dim > 16) __builtin_prefetch(gradient);
    AddColumns<kDim>(values + accumulators[i] * dim, gradients + positions[i] * dim, any_dim);
  }
}

// Combines the runs of each key that has several into the first, as a binary counter does:
// neighbours of equal size, leftovers youngest to oldest. A hot key would else be one long chain on
// a GPU.
template <int kDim>
inline void CombineRuns(int dim, WorkerBatch* worker) {
  const auto sum = [=](int64_t number) { return worker->values + number * dim; };
  for (int64_t i = 0; i < worker->num_extra; ++i) {
    const uint32_t owner = worker->extra_owners[i];
    if (worker->runs[owner].accumulator != i) continue;  // not the owner's second run
    int64_t stack[kSumLevels] = {owner};
    int depth = 1;
    const int64_t total_runs = (worker->runs[owner].count + kRunLength - 1) / kRunLength;
    auto run = static_cast<uint32_t>(i);
    for (int64_t num_runs = 2; num_runs <= total_runs; ++num_runs) {
      stack[depth++] = worker->num_unique + run;
      run = worker->next_runs[run];
      for (int64_t carry = num_runs; (carry & 1) == 0; carry >>= 1) {
        --depth;
        AddColumns<kDim>(sum(stack[depth - 1]), sum(stack[depth]), dim);
      }
    }
    for (; depth > 1; --depth) AddColumns<kDim>(sum(stack[depth - 2]), sum(stack[depth - 1]), dim);
  }
}

// x - x is 0, or NaN if x is not finite.
inline bool AreFinite(const float* values, int64_t count) {
  Float16 poison = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) poison += Sixteen(values + i) - Sixteen(values + i);
  float total = 0;
  for (int lane = 0; lane < 16; ++lane) total += poison[lane];
  for (; i < count; ++i) total += values[i] - values[i];
  return total == 0.0f;
}

inline int64_t SumGradients(const CacheView& cache, WorkerBatch* worker, const float* gradients) {
  const int dim = cache.dim;
  WithDim(dim, [&](auto lanes) {
    SumRuns<decltype(lanes)::kWidth>(dim, worker, gradients);
    CombineRuns<decltype(lanes)::kWidth>(dim, worker);
  });
  if (AreFinite(worker->values, worker->num_unique * dim)) return -1;
  for (int64_t id = 0; id < worker->num_unique; ++id) {
    if (!AreFinite(worker->values + id * dim, dim)) return id;
  }
  return -1;
}

template <class Lanes, class Update>
inline int64_t ApplyWith(const CacheView& cache, WorkerBatch* batch, Lanes lanes, float lr,
                         Update update) {
  const WorkerBatch& worker = *batch;
  const TableView& table = cache.table;
  const int64_t dim = lanes.size();
  const int64_t row_bytes = table.shape.row_bytes;
  int64_t num_fresh = 0;
  int64_t num_clean = 0;
  for (int64_t id = worker.window_begin; id < worker.window_end; ++id) {
    if (id + kRowsAhead < worker.window_end) {
      const int64_t slot = worker.slots[id + kRowsAhead];
      PrefetchRow<true>(RowAt(table, slot), row_bytes);
      __builtin_prefetch(table.marks + slot, 1);
    }
    const int64_t slot = worker.slots[id];
    auto* row = reinterpret_cast<float*>(RowAt(table, slot));
    uint8_t& flags = table.marks[slot].flags;
    // A new row's state starts with the learning rate of its first update, not of the read that
    // brought it up: how long a row stays cached must not show in its bits.
    if (flags & kFresh) [[unlikely]]
      StartState(lanes, cache.kind, row, lr, cache.numbers);
    update(lanes, row, worker.values + id * dim);
    num_fresh += (flags & kFresh) != 0;
    num_clean += (flags & kDirty) == 0;
    flags = static_cast<uint8_t>((flags & ~kFresh) | kDirty);
  }
  batch->num_dirtied = num_clean;
  return num_fresh;
}

template <OptimizerKind kKind>
struct Constant {
  static constexpr OptimizerKind value = kKind;
};

inline int64_t Apply(const CacheView& cache, WorkerBatch* worker, float lr) {
  const OptimizerNumbers numbers = cache.numbers;
  return WithDim(cache.dim, [&](auto lanes) {
    const auto with_kind = [&](auto kind) {
      return ApplyWith(cache, worker, lanes, lr, [=](auto row_lanes, float* row, const float* sum) {
        UpdateRow(row_lanes, decltype(kind)::value, row, sum, lr, numbers);
      });
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
#define HPS_DEFINE_BATCH_LOOPS(variable, label)                                     \
  namespace hps {                                                                   \
  const BatchLoops variable = {label,         Deduplicate,  SortPositions, Find,    \
                               FindAndExpand, Collect,      Expand,        Reserve, \
                               Fill,          SumGradients, Apply};                 \
  }
