// Column loops of embeddings: copy one row's weights, add one row to a sum, as wide as registers.
// (Which gradients are added to which key's sum, and when: csrc/batch/gradient_sums_body.h.)
//
// Above it: lookup_body.h of dram_cache, gradient_sums_body.h, optimizer/host_narrow_lanes.h, the
// host build of gpu_cache. Below it: half_lanes.h. `kDim` is
// the width if known when compiled, else 0. Sixteen floats are one register, two or four, as the
// instruction set has it; sums add in the order of architecture's section on equal bits, so every
// form gives the same result.
#pragma once

#include "table/half_lanes.h"
#include "table/last_columns.h"

namespace hps {
inline namespace HPS_BUILD {

using Float16 = float __attribute__((vector_size(64), aligned(4), may_alias));
inline Float16& Sixteen(float* values) { return VectorAt<Float16>(values); }
inline const Float16& Sixteen(const float* values) { return VectorAt<Float16>(values); }

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

inline constexpr int64_t kStreamedFloats = 1 << 20;  // an output this large goes past the caches

// CopyColumns past the caches, for outputs that would only push out what is still needed.
template <int kDim>
inline void StreamColumns(const float* src, float* dst) {
  for (int d = 0; d < kDim; d += 16) {
#if defined(__AVX512F__)
    _mm512_stream_ps(dst + d, _mm512_loadu_ps(src + d));
#elif defined(__AVX2__)
    for (int i = d; i < d + 16; i += 8) _mm256_stream_ps(dst + i, _mm256_loadu_ps(src + i));
#elif defined(__SSE2__)
    for (int i = d; i < d + 16; i += 4) _mm_stream_ps(dst + i, _mm_loadu_ps(src + i));
#else
    Sixteen(dst + d) = Sixteen(src + d);
#endif
  }
}

using Half16 = uint16_t __attribute__((vector_size(32), aligned(2), may_alias));
using Word16 = uint32_t __attribute__((vector_size(64)));

inline Float16 Widened(Half16 values) {
  return __builtin_bit_cast(Float16, __builtin_convertvector(values, Word16) << 16);
}

inline Float16 Widened(Float16 values) { return values; }

inline const Half16& Sixteen(const Bfloat16* values) {
  return *reinterpret_cast<const Half16*>(values);
}

template <int kDim>
inline void CopyColumns(const Bfloat16* src, int dim, float* dst) {
  ForWords<kDim>(
      dim, [=](int d) { StoreWords(LoadHalves(src + d) << 16, dst + d); },
      [=](int d) { dst[d] = Widened(src[d]); });
}

template <int kDim>
inline void CopyColumns(const float* src, int dim, Bfloat16* dst) {
  ForWords<kDim>(
      dim, [=](int d) { StoreHalves(RoundedToHalves(LoadWords(src + d)), dst + d); },
      [=](int d) { dst[d] = Narrowed(src[d]); });
}

template <int kDim>
inline void StreamColumns(const Bfloat16* src, float* dst) {
  alignas(64) float sixteen[16];
  for (int d = 0; d < kDim; d += 16) {
    CopyColumns<16>(src + d, 16, sixteen);
    StreamColumns<16>(sixteen, dst + d);
  }
}

template <int kDim>
inline void StreamColumns(const float* src, Bfloat16* dst) {
  alignas(32) Bfloat16 sixteen[16];
  for (int d = 0; d < kDim; d += 16) {
    CopyColumns<16>(src + d, 16, sixteen);
#if defined(__SSE2__)
    const auto* const halves = reinterpret_cast<const __m128i*>(sixteen);
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + d), _mm_load_si128(halves));
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + d + 8), _mm_load_si128(halves + 1));
#else
    __builtin_memcpy(dst + d, sixteen, sizeof(sixteen));
#endif
  }
}

template <int kDim>
inline void CopyColumns(const Bfloat16* src, int dim, Bfloat16* dst) {
  __builtin_memcpy(dst, src, sizeof(Bfloat16) * static_cast<uint64_t>(kDim > 0 ? kDim : dim));
}

template <int kDim>
inline void StreamColumns(const Bfloat16* src, Bfloat16* dst) {
  StreamColumns<kDim / 2>(reinterpret_cast<const float*>(src), reinterpret_cast<float*>(dst));
}

// Orders streamed stores before whatever tells others that they are done.
inline void EndStream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// sum += values
template <int kDim>
inline void AddColumns(float* sum, const float* values, int dim) {
  const int columns = kDim > 0 ? kDim : dim;
  int d = 0;
  for (; d + 16 <= columns; d += 16) Sixteen(sum + d) += Sixteen(values + d);
  ForLast(d, columns, [=](int last, LastColumns some) {
    some.Store(some.Load(sum + last) + some.Load(values + last), sum + last);
  });
}

// sum = term if it is a key's first, else sum + term; both from +0, so that -0 alone is +0. A term
// is values * weight, rounded, or the values themselves; Value is float or Bfloat16. Without a
// branch: whether a key is new cannot be predicted.
template <int kDim, bool kWeighted = false, class Value>
inline void AddToSum(bool is_first, float* sum, const Value* values, float weight, int dim) {
  const int columns = kDim > 0 ? kDim : dim;
  const auto term = [=](int d) {
    if constexpr (kWeighted) return Widened(Sixteen(values + d)) * weight;
    return Widened(Sixteen(values + d));
  };
  int d = 0;
#if defined(__AVX512F__)
  const auto kept = static_cast<__mmask16>(is_first ? 0 : 0xffff);
  for (; d + 16 <= columns; d += 16) {
    const __m512 before = _mm512_maskz_loadu_ps(kept, sum + d);
    Sixteen(sum + d) = reinterpret_cast<Float16>(before) + term(d);
  }
  ForLast(d, columns, [=](int last, LastColumns some) {
    auto added = some.Load(values + last);
    if constexpr (kWeighted) added *= weight;
    some.Store(some.LoadIf(!is_first, sum + last) + added, sum + last);
  });
#else
  alignas(64) static constexpr float kZeros[16] = {};
  const bool is_so = __builtin_expect_with_probability(is_first, 1, 0.5);
  const float* const before = is_so ? kZeros : sum;
  const int step = is_so ? 0 : 1;
  if constexpr (sizeof(Value) == sizeof(Bfloat16)) {
    for (; d + kWordLanes <= columns; d += kWordLanes) {
      auto added = __builtin_bit_cast(WordFloats, LoadHalves(values + d) << 16);
      if constexpr (kWeighted) added *= weight;
      added += __builtin_bit_cast(WordFloats, LoadWords(before + d * step));
      StoreWords(__builtin_bit_cast(Words, added), sum + d);
    }
  } else {
    for (; d + 16 <= columns; d += 16) Sixteen(sum + d) = Sixteen(before + d * step) + term(d);
  }
  for (; d < columns; ++d) {
    const float value = Widened(values[d]);
    const float single = kWeighted ? value * weight : value;
    sum[d] = (is_first ? 0.0f : sum[d]) + single;
  }
#endif
}

}  // namespace HPS_BUILD
}  // namespace hps
