// RowLayout: where the fields of a row lie; the same bytes in HBM, in DRAM and on SSD.
//
//   | key u64 | statistics | optimizer's scalars, 2 x f32 | weights, dim x f32
//   | state, dim x states x f32 | pad |
//
// The weights of a narrow table are bfloat16, and padded to a multiple of 16 bytes, so that the
// state starts where the columns of a device may.
//
// Key, statistics and scalars are the header. Statistics are there in tables that count, and lie
// right behind the key:
//
//   | show f32 | click f32 | last period u32 | period of death u32 |
//
// So the header is 16 bytes for every optimizer so far, or 32 with statistics, and what follows
// them is where it is without them, 16 bytes later: optimizers address a row from there
// (FloatsOfRow). Unused scalars and the padding to a multiple of 16 are zero. Above it: table,
// optimizer, dram_cache, ssd_store. Below it: nothing.
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

inline constexpr int64_t kRowHeaderBytes = 16;  // of a row without statistics
inline constexpr int64_t kStatisticsBytes = 16;
inline constexpr int64_t kStatisticsAt = 8;  // in bytes
// Of the floats that an optimizer sees: where the weights and the first scalar are.
inline constexpr int64_t kRowHeaderFloats = 4;
inline constexpr int64_t kFirstScalar = 2;

inline constexpr uint32_t kMostPeriod = 0x7fffffff;
inline constexpr uint32_t kNeverDies = 0;  // of a period of death: nothing lives before period 0

// What a row knows of the updates that reached it; life_rules.h is what sets it.
struct RowStatistics {
  float show;            // occurrences
  float click;           // of these, with label 1
  uint32_t last_period;  // of the newest update, assignment or creation
  uint32_t dies_at;      // the row is absent from this period on; kNeverDies: it is not
};
static_assert(sizeof(RowStatistics) == kStatisticsBytes);

struct RowLayout {
  OptimizerKind kind = OptimizerKind::kSgd;
  int64_t dim = 0;
  bool has_statistics = false;
  bool is_narrow = false;

  HPS_HD_MEMBER int64_t header_bytes() const {
    return kRowHeaderBytes + (has_statistics ? kStatisticsBytes : 0);
  }

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
  // What bfloat16 weights take, in floats.
  static HPS_HD_MEMBER int64_t NarrowFloats(int64_t dim) { return (dim + 7) / 8 * 4; }
  // From the first weight to the first state vector.
  HPS_HD_MEMBER int64_t weight_floats() const { return is_narrow ? NarrowFloats(dim) : dim; }
  HPS_HD_MEMBER int64_t row_bytes() const {
    return (header_bytes() + 4 * (weight_floats() + dim * state_vectors()) + 15) / 16 * 16;
  }
};

inline namespace HPS_BUILD {

// A row as its optimizer sees it: scalars at kFirstScalar, weights at kRowHeaderFloats.
HPS_HD const float* FloatsOfRow(const uint8_t* row, int64_t header_bytes) {
  return reinterpret_cast<const float*>(row + (header_bytes - kRowHeaderBytes));
}

// True if a row with statistics is absent in a period.
HPS_HD bool IsDead(const uint8_t* row, uint32_t period) {
  const uint32_t dies_at = reinterpret_cast<const RowStatistics*>(row + kStatisticsAt)->dies_at;
  return dies_at != kNeverDies && dies_at <= period;
}

}  // namespace HPS_BUILD

}  // namespace hps
