// How updates round narrow weights, and the bits by which they do it at random.
//
// Above it: narrow_lanes.h, host_narrow_lanes.h. Below it: common/bfloat16.h. One column at a time;
// the host has the same for a register of columns.
#pragma once

#include "common/bfloat16.h"

namespace hps {

// How a table rounds what updates make of its narrow weights; all else is rounded to the nearest.
enum class Rounding : uint32_t { kNearest = 1, kStochastic = 2 };

// How, known when compiled, and for one row the seed of its update.
template <Rounding kRounding>
struct RoundingTag {
  uint64_t seed;
};

inline namespace HPS_BUILD {

// Sixteen bits for the rounding of one column: a uniform seed gives them uniformly, and those of
// any two columns independently.
HPS_HD uint32_t RandomOfColumn(uint64_t seed, int column) {
  const auto low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
  return (high + static_cast<uint32_t>(column) * low) >> 16;
}

inline constexpr uint32_t kStateFactor = 0x85EBCA77U;
inline constexpr uint32_t kColumnFactor = 0x9E3779B1U;

// What one column of a row and its gradient add to the seed of an update.
HPS_HD uint32_t WordOfColumn(int d, int dim, int64_t state_vectors, const Bfloat16* weights,
                             const float* state, const float* gradient) {
  uint32_t word = BitsOf(gradient[d]) ^ static_cast<uint32_t>(weights[d].bits) << 16;
  for (int64_t i = 0; i < state_vectors; ++i)
    word = word * kStateFactor + BitsOf(state[i * dim + d]);
  return word * ((2 * static_cast<uint32_t>(d) + 1) * kColumnFactor);
}

}  // namespace HPS_BUILD
}  // namespace hps
