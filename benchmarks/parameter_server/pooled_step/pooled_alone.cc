// A pooled step whose keys cost nothing: the sums and updates that any table has to make, no more.
//
// Which row each occurrence reads, and which bags each row is in, is known before the clock starts:
// no key is hashed, numbered or found. Forward copies each distinct row once into dense memory, and
// sums bags from there; backward sums the bags' gradients a row, and steps the row by row-wise
// Adagrad. Rows are asked for ahead. Every thread takes a contiguous part of the rows and of the
// bags of each table, the best case. Above it: pooled_alone.py (ctypes). Below it:
// spinning_threads.h.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "../../common/spinning_threads.h"

namespace {

constexpr int64_t kAhead = 24;  // rows
constexpr int64_t kSumsAhead = 16;
constexpr int kMostLanes = 16;
constexpr int64_t kLine = 64;
constexpr int64_t kFirstWeight = 4;  // floats of a header: the key, and the accumulator
constexpr int64_t kAccumulator = 2;
constexpr float kRate = 0.01F;

// What a step does to one table. Arrays of all batches lie one after another; `starts`,
// [num_batches + 1] each, say where.
struct Work {
  int64_t dim;
  float* rows;
  int64_t stride;        // floats of a row
  const int64_t* slots;  // of the distinct rows
  const int64_t* slot_starts;
  const int32_t* numbers;  // of the row of each occurrence, among the distinct ones of its batch
  const int32_t* offsets;  // [num_bags + 1] of the bags in `numbers`, of each batch
  const int64_t* number_starts;
  const int32_t* bags;         // of the occurrences of each row
  const int32_t* bag_offsets;  // [distinct + 1] of the rows in `bags`, of each batch
  int64_t num_bags;
  float* values;           // [most distinct rows, dim]
  float* out;              // [num_bags, dim]
  const float* gradients;  // [num_bags, dim]
};

void PrefetchRow(const Work& work, int64_t slot) {
  const auto* row = reinterpret_cast<const char*>(work.rows + slot * work.stride);
  const int64_t bytes = work.stride * static_cast<int64_t>(sizeof(float));
  for (int64_t b = 0; b < bytes; b += kLine) __builtin_prefetch(row + b, 1);
  __builtin_prefetch(row + bytes - 1, 1);
}

template <int kDim>
void CopyRows(const Work& work, const int64_t* slots, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    if (i + kAhead < last) PrefetchRow(work, slots[i + kAhead]);
    const float* row = work.rows + slots[i] * work.stride + kFirstWeight;
    std::copy_n(row, kDim, work.values + i * kDim);
  }
}

template <int kDim>
void SumInto(float* sum, const float* values, const int32_t* places, int64_t first, int64_t last) {
  constexpr int kLanes = std::min(kDim, kMostLanes);
  using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));
  Vector total[kDim / kLanes] = {};
  for (int64_t i = first; i < last; ++i) {
    // Places lie one after another over bags and rows, and some are left after the last.
    const float* ahead = values + static_cast<int64_t>(places[i + kSumsAhead]) * kDim;
    for (int d = 0; d < kDim; d += kMostLanes) __builtin_prefetch(ahead + d);
    const float* value = values + static_cast<int64_t>(places[i]) * kDim;
#pragma GCC unroll 8
    for (int d = 0; d < kDim / kLanes; ++d) {
      total[d] += *reinterpret_cast<const Vector*>(value + d * kLanes);
    }
  }
#pragma GCC unroll 8
  for (int d = 0; d < kDim / kLanes; ++d) {
    *reinterpret_cast<Vector*>(sum + d * kLanes) = total[d];
  }
}

template <int kDim>
void PoolBags(const Work& work, int64_t batch, int64_t first, int64_t last) {
  const int32_t* numbers = work.numbers + work.number_starts[batch];
  const int32_t* offsets = work.offsets + batch * (work.num_bags + 1);
  for (int64_t bag = first; bag < last; ++bag) {
    SumInto<kDim>(work.out + bag * kDim, work.values, numbers, offsets[bag], offsets[bag + 1]);
  }
}

template <int kDim>
void StepRows(const Work& work, int64_t batch, int64_t first, int64_t last) {
  const int64_t* slots = work.slots + work.slot_starts[batch];
  const int32_t* bags = work.bags + work.number_starts[batch];
  const int32_t* offsets = work.bag_offsets + work.slot_starts[batch] + batch;
  alignas(64) float sum[kDim];
  for (int64_t i = first; i < last; ++i) {
    if (i + kAhead < last) PrefetchRow(work, slots[i + kAhead]);
    SumInto<kDim>(sum, work.gradients, bags, offsets[i], offsets[i + 1]);
    float squares = 0;
    for (int d = 0; d < kDim; ++d) squares += sum[d] * sum[d];
    float* row = work.rows + slots[i] * work.stride;
    row[kAccumulator] += squares / kDim;
    const float scale = kRate / (std::sqrt(row[kAccumulator]) + 1e-8F);
    for (int d = 0; d < kDim; ++d) row[kFirstWeight + d] -= scale * sum[d];
  }
}

// The phases of one table.
struct Phases {
  void (*copy)(const Work&, const int64_t* slots, int64_t first, int64_t last);
  void (*pool)(const Work&, int64_t batch, int64_t first, int64_t last);
  void (*step)(const Work&, int64_t batch, int64_t first, int64_t last);
};

template <int kDim>
constexpr Phases kPhases = {CopyRows<kDim>, PoolBags<kDim>, StepRows<kDim>};

const Phases* PhasesOf(int64_t dim) {
  switch (dim) {
    case 8:
      return &kPhases<8>;
    case 16:
      return &kPhases<16>;
    case 32:
      return &kPhases<32>;
    case 64:
      return &kPhases<64>;
    case 128:
      return &kPhases<128>;
    default:
      return nullptr;
  }
}

}  // namespace

// Median seconds of a step over the batches in turn; below 0 for a dim that there is no loop for.
extern "C" double pooled_alone(const Work* tables, int num_tables, int num_batches, int num_threads,
                               int num_steps) {
  std::vector<const Phases*> phases;
  for (int i = 0; i < num_tables; ++i) {
    phases.push_back(PhasesOf(tables[i].dim));
    if (phases.back() == nullptr) return -1;
  }
  Barrier barrier(num_threads);
  std::vector<double> seconds(num_steps);
  const auto run = [&](int worker) {
    const auto part = [&](int64_t whole) {
      return std::pair(whole * worker / num_threads, whole * (worker + 1) / num_threads);
    };
    for (int i = 0; i < num_steps; ++i) {
      const int64_t batch = i % num_batches;
      const auto rows_of = [&](const Work& work) {
        return part(work.slot_starts[batch + 1] - work.slot_starts[batch]);
      };
      barrier.Wait();
      const auto start = std::chrono::steady_clock::now();
      for (int j = 0; j < num_tables; ++j) {
        const auto [first, last] = rows_of(tables[j]);
        phases[j]->copy(tables[j], tables[j].slots + tables[j].slot_starts[batch], first, last);
      }
      barrier.Wait();
      for (int j = 0; j < num_tables; ++j) {
        const auto [first, last] = part(tables[j].num_bags);
        phases[j]->pool(tables[j], batch, first, last);
      }
      barrier.Wait();
      for (int j = 0; j < num_tables; ++j) {
        const auto [first, last] = rows_of(tables[j]);
        phases[j]->step(tables[j], batch, first, last);
      }
      barrier.Wait();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (worker == 0) seconds[i] = taken.count();
    }
  };
  RunOnThreads(num_threads, run);
  return MedianOf(std::move(seconds));
}
