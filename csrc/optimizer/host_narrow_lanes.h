// What walks narrow rows on the host a register of columns at a time; the same numbers as one by
// one.
//
// Above it: narrow_lanes.h, where no device is compiled for. Below it: lanes.h, rounding.h,
// table/row_copy.h. A compiler makes poor vectors of loops over two widths of numbers, so weights
// are widened into a near buffer, walked as those of a float row, and rounded from there.
#pragma once

#include "optimizer/lanes.h"
#include "optimizer/rounding.h"
#include "table/row_copy.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int kNarrowBlock = 64;  // columns of a width that is not known, at a time

// The columns 0, 1, ... of a register. From memory: GCC builds a constant that it can see lane by
// lane, with a dozen instructions for each.
inline Words FirstColumns() {
  alignas(64) static constexpr uint32_t kColumns[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                        8, 9, 10, 11, 12, 13, 14, 15};
  Words columns;
  __builtin_memcpy(&columns, kColumns, sizeof(columns));
  return columns;
}

// NarrowedBy with what RandomOfColumn says; `first` is the column of src[0] and dst[0].
template <int kDim>
inline void RoundColumns(const float* src, int first, int dim, uint64_t seed, Bfloat16* dst) {
  const auto low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
  const Words from_first = FirstColumns() * low + high;
  ForWords<kDim>(
      dim,
      [=](int d) {
        const Words random = (from_first + static_cast<uint32_t>(first + d) * low) >> 16;
        StoreHalves((LoadWords(src + d) + random) >> 16, dst + d);
      },
      [=](int d) { dst[d] = NarrowedBy(src[d], RandomOfColumn(seed, first + d)); });
}

// A column of a block: weights are the widened ones.
inline float* InBlock(Bfloat16*, float* wide, int) { return wide; }
inline const float* InBlock(const Bfloat16*, float* wide, int) { return wide; }
inline float* InBlock(float* column, float*, int first) { return column + first; }
inline const float* InBlock(const float* column, float*, int first) { return column + first; }

template <Rounding kRounding, int kDim>
inline void RoundBlock(const float* wide, int first, int dim, uint64_t seed, Bfloat16* weights) {
  if constexpr (kRounding == Rounding::kNearest) {
    CopyColumns<kDim>(wide, dim, weights + first);
  } else {
    RoundColumns<kDim>(wide, first, dim, seed, weights + first);
  }
}
template <Rounding kRounding, int kDim>
inline void RoundBlock(const float*, int, int, uint64_t, const Bfloat16*) {}

// NarrowLanes::each on the host: the weights are the first of the columns.
template <int kDim, Rounding kRounding, class Body, class Weight, class... Columns>
inline void EachOnHost(HostLanes<kDim> lanes, RoundingTag<kRounding> rounding, Body body,
                       Weight* weights, Columns*... columns) {
  constexpr int kBlock = kDim > 0 ? kDim : kNarrowBlock;
  alignas(64) float wide[kBlock];
  const int dim = lanes.size();
  for (int first = 0; first < dim; first += kBlock) {
    const int count = dim - first < kBlock ? dim - first : kBlock;
    CopyColumns<kDim>(weights + first, count, wide);
    HostLanes<kDim>{count}.each(body, InBlock(weights, wide, first),
                                InBlock(columns, wide, first)...);
    RoundBlock<kRounding, kDim>(wide, first, count, rounding.seed, weights);
  }
}

template <int kDim>
inline uint32_t FoldOnHost(HostLanes<kDim> lanes, int64_t state_vectors, const Bfloat16* weights,
                           const float* state, const float* gradient) {
  const int dim = lanes.size();
  Words totals = {};
  Words factors = (FirstColumns() * 2 + 1) * kColumnFactor;
  int d = 0;
  for (; d + kWordLanes <= dim; d += kWordLanes) {
    Words words = LoadWords(gradient + d) ^ LoadHalves(weights + d) << 16;
    for (int64_t i = 0; i < state_vectors; ++i) {
      words = words * kStateFactor + LoadWords(state + i * dim + d);
    }
    totals += words * factors;
    factors += 2 * kWordLanes * kColumnFactor;
  }
  uint32_t total = 0;
  for (int lane = 0; lane < kWordLanes; ++lane) total += totals[lane];
  for (; d < dim; ++d) {
    total += WordOfColumn(d, dim, state_vectors, weights, state, gradient);
  }
  return total;
}

}  // namespace HPS_BUILD
}  // namespace hps
