// Moving embeddings: copy a row's weights to its occurrences, sum the gradients of its occurrences.
//
// Above it: batch_loops_body.h. Below it: nothing. `kDim` is the width if known when compiled, else
// 0. Sixteen floats are one register, two or four, as the instruction set has it; sums add in the
// order of architecture's section on equal bits, so every form gives the same result.
#pragma once

#include "common/portable.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int kRunLength = 32;  // occurrences summed one after the other
inline constexpr int kPrefetchPositions = 16;

using Float16 = float __attribute__((vector_size(64), aligned(4), may_alias));

inline Float16& Sixteen(float* values) { return *reinterpret_cast<Float16*>(values); }
inline const Float16& Sixteen(const float* values) {
  return *reinterpret_cast<const Float16*>(values);
}

// Calls body(d) for 16 columns at a time; the last call overlaps the one before it if dim is no
// multiple of 16, which is harmless to copies and to sums that do not accumulate in place.
template <int kDim, class Wide, class Single>
inline void ForColumns(int dim, Wide wide, Single single) {
  const int columns = kDim > 0 ? kDim : dim;
  if (columns < 16) {
    for (int d = 0; d < columns; ++d) single(d);
    return;
  }
  int d = 0;
  for (; d + 16 <= columns; d += 16) wide(d);
  if (d < columns) wide(columns - 16);
}

template <int kDim>
inline void CopyColumns(const float* src, int dim, float* dst) {
  ForColumns<kDim>(
      dim, [=](int d) { Sixteen(dst + d) = Sixteen(src + d); }, [=](int d) { dst[d] = src[d]; });
}

// Copies one row's weights to all its positions in out [L, dim].
template <int kDim>
inline void ScatterRow(const float* weights, int dim, const uint32_t* positions, int64_t count,
                       float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t ahead = positions[i + kPrefetchPositions];
    __builtin_prefetch(out + ahead * dim, 1, 3);
    if (dim > 16) __builtin_prefetch(out + ahead * dim + dim - 1, 1, 3);
    CopyColumns<kDim>(weights, dim, out + static_cast<int64_t>(positions[i]) * dim);
  }
}

// out = the sum of up to 32 occurrences, in order.
template <int kDim>
inline void SumRun(const float* gradients, int dim, const uint32_t* positions, int64_t count,
                   float* out) {
  const auto row = [=](int64_t i) { return gradients + static_cast<int64_t>(positions[i]) * dim; };
  ForColumns<kDim>(
      dim,
      [=](int d) {
        Float16 sum = Sixteen(row(0) + d);
        for (int64_t i = 1; i < count; ++i) sum += Sixteen(row(i) + d);
        Sixteen(out + d) = sum;
      },
      [=](int d) {
        float sum = row(0)[d];
        for (int64_t i = 1; i < count; ++i) sum += row(i)[d];
        out[d] = sum;
      });
}

// older += younger
inline void AddColumns(float* older, const float* younger, int dim) {
#pragma GCC ivdep
  for (int d = 0; d < dim; ++d) older[d] = older[d] + younger[d];
}

// out = the sum of all occurrences of a key: runs of 32 in order, combined as a binary counter does
// (neighbours of equal size), leftovers youngest to oldest. `levels` is scratch [kSumLevels * dim].
template <int kDim>
inline void SumOccurrences(const float* gradients, int dim, const uint32_t* positions,
                           int64_t count, float* levels, float* out) {
  if (count <= kRunLength) {
    SumRun<kDim>(gradients, dim, positions, count, out);
    return;
  }
  int64_t num_runs = 0;
  int depth = 0;  // sums on the stack; bit pattern of num_runs gives their sizes
  for (int64_t first = 0; first < count; first += kRunLength) {
    const int64_t length = count - first < kRunLength ? count - first : kRunLength;
    SumRun<kDim>(gradients, dim, positions + first, length, levels + depth * dim);
    ++depth;
    ++num_runs;
    for (int64_t carry = num_runs; (carry & 1) == 0; carry >>= 1) {
      --depth;
      AddColumns(levels + (depth - 1) * dim, levels + depth * dim, dim);
    }
  }
  for (; depth > 1; --depth)
    AddColumns(levels + (depth - 2) * dim, levels + (depth - 1) * dim, dim);
  CopyColumns<kDim>(levels, dim, out);
}

}  // namespace HPS_BUILD
}  // namespace hps
