// Half: half of a float32's bits, as IEEE 754 has it.
//
// Above it: csrc/gpu_cache/peers.h, which sends floats so. Below it: bfloat16.h, for bits of
// floats. Rounded to the nearest, to the even one of two that are as near; beyond 65504 it is
// infinite; NaN is 0x7e00 with the sign. numpy's conversions give the same (but for bits of NaN).
#pragma once

#include "common/bfloat16.h"

namespace hps {

struct Half {
  uint16_t bits;
};

inline namespace HPS_BUILD {

HPS_HD Half Halved(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};  // 65520 and above
  if (magnitude < 0x38800000) {  // below 2^-14: multiples of 2^-24
    // Adding 1/2 leaves the multiple in the lowest bits, rounded as all sums are.
    const uint32_t rounded = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
    return {static_cast<uint16_t>(sign | rounded)};
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return {static_cast<uint16_t>(sign | ((rounded - (uint32_t{112} << 23)) >> 13))};
}

HPS_HD float Widened(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t magnitude = value.bits & 0x7fff;
  if (magnitude < 0x400) {  // exact: a whole number of 10 bits times 2^-24
    return FloatOf(sign | BitsOf(static_cast<float>(magnitude) * 0x1p-24f));
  }
  if (magnitude >= 0x7c00) return FloatOf(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  return FloatOf(sign | ((magnitude << 13) + (uint32_t{112} << 23)));
}

}  // namespace HPS_BUILD
}  // namespace hps
