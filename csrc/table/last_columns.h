// LastColumns: the columns that are left of a row when whole registers of it are done.
//
// Above it: row_copy.h, optimizer/lanes.h. Below it: common/bfloat16.h. Up to four columns at a
// time, with a mask, or one, as the instruction set has it. No byte behind them is touched, for its
// line is in no cache.
#pragma once

#include "common/bfloat16.h"
#include "common/portable.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace hps {
inline namespace HPS_BUILD {

using Float8 = float __attribute__((vector_size(32), aligned(4), may_alias));
using Float4 = float __attribute__((vector_size(16), aligned(4), may_alias));

template <class Vector>
inline Vector& VectorAt(float* values) {
  return *reinterpret_cast<Vector*>(values);
}
template <class Vector>
inline const Vector& VectorAt(const float* values) {
  return *reinterpret_cast<const Vector*>(values);
}

#if defined(__AVX512F__)

struct LastColumns {
  Float4 Load(const float* from) const { return LoadIf(true, from); }
  Float4 Load(const Bfloat16* from) const {
    const __m128i halves = _mm_maskz_loadu_epi16(lanes, from);
    return reinterpret_cast<Float4>(_mm_slli_epi32(_mm_cvtepu16_epi32(halves), 16));
  }
  Float4 LoadIf(bool is_wanted, const float* from) const {
    const auto wanted = static_cast<__mmask8>(is_wanted ? lanes : 0);
    return reinterpret_cast<Float4>(_mm_maskz_loadu_ps(wanted, from));
  }
  // Behind the columns the first of them again.
  Float4 LoadRepeated(const float* from) const {
    return reinterpret_cast<Float4>(_mm_mask_loadu_ps(_mm_set1_ps(*from), lanes, from));
  }
  void Store(Float4 values, float* to) const {
    _mm_mask_storeu_ps(to, lanes, reinterpret_cast<__m128>(values));
  }

  __mmask8 lanes;
};

#else

struct LastColumns {
  float Load(const float* from) const { return *from; }
  void Store(float value, float* to) const { *to = value; }
};

#endif

// Calls body(d, columns) for columns [d, end) of a row.
template <class Body>
inline void ForLast(int d, int end, Body body) {
#if defined(__AVX512F__)
  for (; d < end; d += 4) {
    body(d, LastColumns{static_cast<__mmask8>((1 << (end - d < 4 ? end - d : 4)) - 1)});
  }
#else
  for (; d < end; ++d) body(d, LastColumns{});
#endif
}

}  // namespace HPS_BUILD
}  // namespace hps
