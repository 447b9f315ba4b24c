// The text of the update loops, compiled once an instruction set: sum the gradients of each key,
// then apply the optimizer once a key. See batch_loops.h for what each loop does.
//
// Sums are complete, and known to be finite, before the first row changes: a refused push leaves
// the table as it was.
#pragma once

#include "dram_cache/batch_loops_body.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int64_t kGradientsAhead = 24;
inline constexpr int64_t kRowsAhead = 8;

inline bool IsFinite(const float* values, int dim) {
  bool finite = true;
  for (int d = 0; d < dim; ++d) finite &= values[d] - values[d] == 0.0f;
  return finite;
}

inline int64_t FirstNonFinite(const WorkerBatch& worker, int dim) {
  for (int64_t id = 0; id < worker.num_unique; ++id) {
    if (!IsFinite(worker.sums + id * dim, dim)) return id;
  }
  return -1;
}

template <int kDim>
inline bool SumAll(int dim, WorkerBatch* worker, const float* gradients) {
  Float16 poison = {};  // x - x is 0, or NaN if x is not finite
  float poison_single = 0;
  for (int64_t id = 0; id < worker->num_unique; ++id) {
    const uint32_t start = worker->starts[id];
    const int64_t count = worker->starts[id + 1] - start;
    const uint32_t* positions = worker->positions + start;
    for (int64_t i = 0; i < count && i < kPositionPadding; ++i) {
      const float* ahead = gradients + static_cast<int64_t>(positions[i + kGradientsAhead]) * dim;
      for (int d = 0; d < dim; d += 16) __builtin_prefetch(ahead + d);
    }
    float* sum = worker->sums + id * dim;
    SumOccurrences<kDim>(gradients, dim, positions, count, worker->scratch, sum);
    ForColumns<kDim>(
        dim, [&](int d) { poison += Sixteen(sum + d) - Sixteen(sum + d); },
        [&](int d) { poison_single += sum[d] - sum[d]; });
  }
  float total = poison_single;
  for (int lane = 0; lane < 16; ++lane) total += poison[lane];
  return total == 0.0f;
}

inline int64_t SumGradients(const CacheView& cache, WorkerBatch* worker, const float* gradients) {
  const bool finite = WithDim(cache.dim, [&](auto lanes) {
    return SumAll<decltype(lanes)::kWidth>(cache.dim, worker, gradients);
  });
  return finite ? -1 : FirstNonFinite(*worker, cache.dim);
}

template <class Lanes, class Update>
inline int64_t ApplyWith(const CacheView& cache, WorkerBatch* batch, Lanes lanes, float lr,
                         Update update) {
  const WorkerBatch& worker = *batch;
  const TableView& table = cache.table;
  int64_t num_fresh = 0;
  int64_t num_clean = 0;
  for (int64_t id = worker.window_begin; id < worker.window_end; ++id) {
    if (id + kRowsAhead < worker.window_end) {
      const int64_t slot = worker.slots[id + kRowsAhead];
      const uint8_t* row = RowAt(table, slot);
      for (int64_t line = 0; line < table.shape.row_bytes; line += 64) {
        __builtin_prefetch(row + line, 1);
      }
      __builtin_prefetch(row + table.shape.row_bytes - 1, 1);
      __builtin_prefetch(table.marks + slot, 1);
    }
    const int64_t slot = worker.slots[id];
    auto* row = reinterpret_cast<float*>(RowAt(table, slot));
    uint8_t& flags = table.marks[slot].flags;
    // A new row's state starts with the learning rate of its first update, not of the read that
    // brought it up: how long a row stays cached must not show in its bits.
    if (flags & kFresh) [[unlikely]] StartState(lanes, cache.kind, row, lr, cache.numbers);
    update(lanes, row, worker.sums + id * cache.dim);
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
#define HPS_DEFINE_BATCH_LOOPS(variable, label)                            \
  namespace hps {                                                          \
  const BatchLoops variable = {label,   Deduplicate, Find,         Gather, \
                               Reserve, Fill,        SumGradients, Apply}; \
  }
