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

// The runs of a worker's hot keys: those of at least kRunLength occurrences. A run that is full is
// set aside and combined with the key's earlier ones as a binary counter does: neighbours of equal
// size, and at the end leftovers youngest to oldest. What is set aside lies behind the sums of the
// unique keys; a key's are chained from the youngest on.
template <int kDim>
class HotKeys {
 public:
  HotKeys(WorkerBatch* worker, int dim) : worker_(worker), dim_(kDim > 0 ? kDim : dim) {
    worker->num_hot = 0;
  }

  // The key's run with the number `run`, counted from 1, is full, or its last.
  void SetAside(uint32_t id, uint32_t run) {
    if (run == 1) {
      worker_->hot_ids[worker_->num_hot++] = id;
      worker_->youngest[id] = kNoRun;
    }
    int64_t number = worker_->num_unique + num_aside_++;
    CopyColumns<kDim>(SumOf(id), static_cast<int>(dim_), SumOf(number));
    __builtin_memset(SumOf(id), 0, static_cast<uint64_t>(dim_) * sizeof(float));
    for (uint32_t carry = run; (carry & 1) == 0; carry >>= 1) number = CombineYoungest(id, number);
    worker_->older[number - worker_->num_unique] = worker_->youngest[id];
    worker_->youngest[id] = static_cast<uint32_t>(number - worker_->num_unique);
  }

  // Leaves each hot key's whole sum where the others have theirs.
  void Finish() {
    for (int64_t i = 0; i < worker_->num_hot; ++i) {
      const uint32_t id = worker_->hot_ids[i];
      const uint32_t count = worker_->counts[id];
      if (count % kRunLength != 0) SetAside(id, count / kRunLength + 1);
      uint32_t run = worker_->youngest[id];
      CopyColumns<kDim>(SumOf(worker_->num_unique + run), static_cast<int>(dim_), SumOf(id));
      while ((run = worker_->older[run]) != kNoRun) {
        AddColumns<kDim>(SumOf(id), SumOf(worker_->num_unique + run), static_cast<int>(dim_));
      }
    }
  }

 private:
  float* SumOf(int64_t number) const { return worker_->values + number * dim_; }

  // Adds the newest number, which nothing follows, to the key's youngest; returns that one.
  int64_t CombineYoungest(uint32_t id, int64_t newest) {
    const uint32_t youngest = worker_->youngest[id];
    const int64_t number = worker_->num_unique + youngest;
    AddColumns<kDim>(SumOf(number), SumOf(newest), static_cast<int>(dim_));
    worker_->youngest[id] = worker_->older[youngest];
    if (newest == worker_->num_unique + num_aside_ - 1) --num_aside_;
    return number;
  }

  WorkerBatch* const worker_;
  const int64_t dim_;
  int64_t num_aside_ = 0;
};

// Adds every occurrence's gradient to its key's sum, in the batch's order, from +0, in runs of
// kRunLength. Gradients are read once, so they are asked for past the caches, which the sums and
// the rows need.
template <int kDim>
inline void SumRuns(int any_dim, WorkerBatch* worker, const float* gradients) {
  // Some 100 lines, as far as they pay off on Zen 5: narrow rows need more occurrences for them.
  constexpr int64_t kAhead = kDim > 0 && kDim <= 16 ? kOccurrencePadding : kOccurrencePadding / 2;
  const int64_t dim = kDim > 0 ? kDim : any_dim;
  float* values = worker->values;
  uint32_t* counts = worker->counts;
  const uint32_t* ids = worker->ids;
  const uint32_t* positions = worker->scan_positions;
  const int64_t num_occurrences = worker->num_occurrences;
  __builtin_memset(counts, 0, static_cast<uint64_t>(worker->num_unique) * sizeof(uint32_t));
  HotKeys<kDim> hot_keys(worker, any_dim);
  for (int64_t i = 0; i < num_occurrences; ++i) {
    // What stands behind the last occurrence is 0, and harmless.
    const float* gradient = gradients + positions[i + kAhead] * dim;
    const float* sum = values + (ids[i + kAhead] & ~kFirstOfKey) * dim;
    for (int64_t d = 0; d < dim; d += 16) __builtin_prefetch(sum + d, 1);
    for (int64_t d = 0; d < dim; d += 16) __builtin_prefetch(gradient + d, 0, 0);
    const uint32_t id = ids[i] & ~kFirstOfKey;
    AddToSum<kDim>(ids[i] != id, values + id * dim, gradients + positions[i] * dim, any_dim);
    const uint32_t count = ++counts[id];
    if (count % kRunLength == 0) [[unlikely]]
      hot_keys.SetAside(id, count / kRunLength);
  }
  hot_keys.Finish();
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
  WithDim(dim, [&](auto lanes) { SumRuns<decltype(lanes)::kWidth>(dim, worker, gradients); });
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
#define HPS_DEFINE_BATCH_LOOPS(variable, label)                                                 \
  namespace hps {                                                                               \
  const BatchLoops variable = {label,   Deduplicate, SortPositions, Pull, PullEach,     Find,   \
                               Collect, Expand,      Reserve,       Fill, SumGradients, Apply}; \
  }
