// Initial weights: a pure function of (stream, key, column), the same on every machine.
//
// Above it: dram_cache's batch loops (and the device kernels). Below it: key_hash.h. `stream`
// stands for (seed, table). The generator is counter-based: word i of a key is a mix of its state
// and i, so a row can be made anywhere, in any order, without a generator to carry along.
#pragma once

#include "common/key_hash.h"

namespace hps {

// The numbers are stored on SSD: never renumber.
enum class InitializerKind : uint32_t { kConstant = 1, kUniform = 2, kNormal = 3 };

struct InitializerSpec {
  InitializerKind kind = InitializerKind::kConstant;
  float first = 0;   // value | low  | std
  float second = 0;  // -     | high | mean
  uint64_t stream = 0;
};

inline namespace HPS_BUILD {

HPS_HD uint64_t RandomWord(uint64_t state, uint64_t counter) {
  return MixKey(state + (counter + 1) * 0x9E3779B97F4A7C15ULL);
}

HPS_HD float UniformWeight(uint64_t word, float low, float high) {
  const float unit = static_cast<float>(static_cast<int32_t>(word >> 40)) * (1.0f / 16777216.0f);
  return low + (high - low) * unit;
}

// The sum of twelve 16-bit integers has variance 65536^2 - 1 around 393210: close to normal, exact
// in float32, and free of libm, whose last bits differ from machine to machine.
HPS_HD float NormalWeight(uint64_t state, int column, float std, float mean) {
  int32_t sum = -393210;
  for (int word = 0; word < 3; ++word) {
    const uint64_t bits = RandomWord(state, 3 * static_cast<uint64_t>(column) + word);
    sum += static_cast<int32_t>(bits & 0xffff) + static_cast<int32_t>((bits >> 16) & 0xffff) +
           static_cast<int32_t>((bits >> 32) & 0xffff) + static_cast<int32_t>(bits >> 48);
  }
  return static_cast<float>(sum) * (std * (1.0f / 65536.0f)) + mean;
}

// `weights` are floats, or the Bfloat16s of a narrow row.
template <class Lanes, class Weight>
HPS_HD void InitializeWeights(Lanes lanes, const InitializerSpec& spec, uint64_t key,
                              Weight* weights) {
  const float first = spec.first, second = spec.second;
  if (spec.kind == InitializerKind::kConstant) {
    lanes.set(weights, [=](int) { return first; });
    return;
  }
  const uint64_t state = MixKey(spec.stream ^ MixKey(key));
  if (spec.kind == InitializerKind::kUniform) {
    lanes.set(weights, [=](int d) { return UniformWeight(RandomWord(state, d), first, second); });
  } else {
    lanes.set(weights, [=](int d) { return NormalWeight(state, d, first, second); });
  }
}

}  // namespace HPS_BUILD
}  // namespace hps
