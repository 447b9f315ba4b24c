// Bfloat16: the upper half of a float32.
//
// Above it: csrc/table, csrc/optimizer, csrc/batch and what is above those. Below it: nothing. What
// is rounded to the nearest one goes to the even one of two that are as near; NaN is 0x7fc0. (How
// that is done sixteen at a time: csrc/table/row_copy.h.)
#pragma once

#include "common/portable.h"

namespace hps {

struct Bfloat16 {
  uint16_t bits;
};

inline namespace HPS_BUILD {

HPS_HD uint32_t BitsOf(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(uint32_t, value);
#endif
}

HPS_HD float FloatOf(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

HPS_HD float Widened(Bfloat16 value) { return FloatOf(static_cast<uint32_t>(value.bits) << 16); }
HPS_HD float Widened(float value) { return value; }

// To the nearest.
HPS_HD Bfloat16 Narrowed(float value) {
  const uint32_t bits = BitsOf(value);
  if (value != value) return {0x7fc0};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// To one of the two next to it, away from zero as often as `random`, of 16 bits, says: so that the
// mean over all of them is the value, which is finite.
HPS_HD Bfloat16 NarrowedBy(float value, uint32_t random) {
  return {static_cast<uint16_t>((BitsOf(value) + random) >> 16)};
}

}  // namespace HPS_BUILD
}  // namespace hps
