// Vectors of Bfloat16 as words and back, as many at a time as a register of the host has words.
//
// Above it: row_copy.h, optimizer/host_narrow_lanes.h. Below it: common/bfloat16.h. A vector wider
// than a register, and conversions between widths that a compiler is left to find, cost several
// times as much where AVX-512 is not there.
#pragma once

#include "common/bfloat16.h"
#include "common/portable.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace hps {
inline namespace HPS_BUILD {

#if defined(__AVX512F__)
inline constexpr int kWordLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kWordLanes = 8;
#else
inline constexpr int kWordLanes = 4;
#endif

using Words = uint32_t __attribute__((vector_size(4 * kWordLanes)));
using WordFloats = float __attribute__((vector_size(4 * kWordLanes)));
using Halves = uint16_t __attribute__((vector_size(2 * kWordLanes)));

inline Words LoadWords(const float* src) {
  Words words;
  __builtin_memcpy(&words, src, sizeof(words));
  return words;
}

inline void StoreWords(Words words, float* dst) { __builtin_memcpy(dst, &words, sizeof(words)); }

// The bits of Bfloat16s in the lower halves of words.
inline Words LoadHalves(const Bfloat16* src) {
  Halves halves;
  __builtin_memcpy(&halves, src, sizeof(halves));
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(halves)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves)));
#else
  return __builtin_convertvector(halves, Words);
#endif
}

// The lower halves of words below 2^16.
inline Halves LowHalves(Words words) {
#if defined(__AVX512F__)
  return reinterpret_cast<Halves>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(words)));
#elif defined(__AVX2__)
  const auto eight = reinterpret_cast<__m256i>(words);
  // Packs within halves of the register; the second half's comes to the first.
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(eight, eight), 0x08);
  return reinterpret_cast<Halves>(_mm256_castsi256_si128(packed));
#else
  return __builtin_convertvector(words, Halves);
#endif
}

inline void StoreHalves(Words words, Bfloat16* dst) {
  const Halves halves = LowHalves(words);
  __builtin_memcpy(dst, &halves, sizeof(halves));
}

// Bits of floats, rounded to the nearest Bfloat16.
inline Words RoundedToHalves(Words bits) {
  const Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const auto floats = __builtin_bit_cast(WordFloats, bits);
  const auto is_number = __builtin_bit_cast(Words, floats == floats);
  return (rounded & is_number) | (~is_number & 0x7fc0);
}

// Calls wide(d) for a register's columns at a time; the last call overlaps the one before it where
// they do not come out even, which is harmless to copies. Narrower rows go column by column.
template <int kDim, class Wide, class Single>
inline void ForWords(int dim, Wide wide, Single single) {
  const int columns = kDim > 0 ? kDim : dim;
  if (columns < kWordLanes) {
    for (int d = 0; d < columns; ++d) single(d);
    return;
  }
  int d = 0;
  for (; d + kWordLanes <= columns; d += kWordLanes) wide(d);
  if (d < columns) wide(columns - kWordLanes);
}

}  // namespace HPS_BUILD
}  // namespace hps
