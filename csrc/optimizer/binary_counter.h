// BinaryCounter: sums of runs combined as a binary counter does, in registers.
//
// Above it: gpu_cache's pooling and gradient sums; the host's gradient sums, whose hot keys keep
// the same order in memory (csrc/batch/gradient_sums_body.h), take the length of a run. Below it:
// nothing. Neighbours of equal size are added; what is left over at the end is added youngest to
// oldest.
#pragma once

#include "common/portable.h"

namespace hps {

inline constexpr int kRunLength = 32;  // terms summed one after the other

inline namespace HPS_BUILD {

#if defined(__CUDA_ARCH__)
#define HPS_UNROLL _Pragma("unroll")
#else
#define HPS_UNROLL
#endif

class BinaryCounter {
 public:
  HPS_HD_MEMBER void add(float run) {
    float carry = run;
    bool is_carried = true;
    // Every level by its number, so that the levels stay registers.
    HPS_UNROLL for (int level = 0; level < kLevels; ++level) {
      if (!is_carried) break;
      if (num_runs_ >> level & 1) {
        carry = levels_[level] + carry;
      } else {
        levels_[level] = carry;
        is_carried = false;
      }
    }
    ++num_runs_;
  }

  // Of one run at least.
  HPS_HD_MEMBER float total() const {
    float sum = 0;
    bool has_sum = false;
    HPS_UNROLL for (int level = 0; level < kLevels; ++level) {
      if (!(num_runs_ >> level & 1)) continue;
      sum = has_sum ? levels_[level] + sum : levels_[level];
      has_sum = true;
    }
    return sum;
  }

 private:
  static constexpr int kLevels = 26;  // a batch has fewer than 2^31 occurrences

  uint32_t num_runs_ = 0;
  float levels_[kLevels] = {};
};

}  // namespace HPS_BUILD
}  // namespace hps
