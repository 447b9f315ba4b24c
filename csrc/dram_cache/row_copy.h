// Moving embeddings: copy a row's weights to its occurrences, sum the gradients of its occurrences.
//
// Above it: batch_loops_body.h. Below it: nothing. `kDim` is the width if known when compiled, else
// 0. Sixteen floats are one register, two or four, as the instruction set has it; sums add in the
// order of architecture's section on equal bits, so every form gives the same result.
#pragma once

#include "common/portable.h"

namespace hps {
inline namespace HPS_BUILD {

using Float16 = float __attribute__((vector_size(64), aligned(4), may_alias));

inline Float16& Sixteen(float* values) { return *reinterpret_cast<Float16*>(values); }
inline const Float16& Sixteen(const float* values) {
  return *reinterpret_cast<const Float16*>(values);
}

// Calls wide(d) for 16 columns at a time; the last call overlaps the one before it if dim is no
// multiple of 16, which is harmless to copies. Rows narrower than 16 go column by column.
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

// sum += values
template <int kDim>
inline void AddColumns(float* sum, const float* values, int dim) {
  const int columns = kDim > 0 ? kDim : dim;
  int d = 0;
  for (; d + 16 <= columns; d += 16) Sixteen(sum + d) += Sixteen(values + d);
  for (; d < columns; ++d) sum[d] += values[d];
}

}  // namespace HPS_BUILD
}  // namespace hps
