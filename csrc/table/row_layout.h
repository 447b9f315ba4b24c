// RowLayout: where the fields of a row lie; the same bytes in HBM, in DRAM and on SSD.
//
//   | key u64 | optimizer's scalars, 2 x f32 | weights, dim x f32 | state, dim x states x f32 | pad
//   |
//
// The header is 16 bytes for every optimizer so far; unused scalars and the padding to a multiple
// of 16 are zero. Above it: table, optimizer, dram_cache, ssd_store. Below it: nothing.
#pragma once

#include "common/portable.h"

namespace hps {

// The numbers are stored on SSD: never renumber.
enum class OptimizerKind : uint32_t {
  kSgd = 1,
  kAdagrad = 2,
  kRowWiseAdagrad = 3,
  kAdam = 4,
  kFtrl = 5
};

inline constexpr int64_t kRowHeaderBytes = 16;
inline constexpr int64_t kRowHeaderFloats = 4;
inline constexpr int64_t kFirstScalar = 2;  // index of the first header scalar, in floats

struct RowLayout {
  OptimizerKind kind = OptimizerKind::kSgd;
  int64_t dim = 0;

  // State vectors as long as the weights: Adagrad one, Adam and FTRL two.
  HPS_HD_MEMBER int64_t state_vectors() const {
    switch (kind) {
      case OptimizerKind::kAdagrad:
        return 1;
      case OptimizerKind::kAdam:
      case OptimizerKind::kFtrl:
        return 2;
      default:
        return 0;
    }
  }
  // Scalars of the optimizer in the header: row-wise Adagrad one, Adam two.
  HPS_HD_MEMBER int64_t header_scalars() const {
    switch (kind) {
      case OptimizerKind::kRowWiseAdagrad:
        return 1;
      case OptimizerKind::kAdam:
        return 2;
      default:
        return 0;
    }
  }
  // Floats of optimizer state a row: header scalars, then state vectors.
  HPS_HD_MEMBER int64_t state_floats() const { return header_scalars() + dim * state_vectors(); }
  HPS_HD_MEMBER int64_t row_bytes() const {
    return (kRowHeaderBytes + 4 * dim * (1 + state_vectors()) + 15) / 16 * 16;
  }
};

}  // namespace hps
