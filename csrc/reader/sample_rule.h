// SampleRule: which examples of a log a reader keeps, by a hash of each one's content.
//
// The content is what an example says beside its label, so that equal impressions fall on the same
// side whether they were clicked or not. What is kept depends on the content alone: not on the
// place in the log, batches, threads or ranks. The numbers here may never change: a position in a
// log counts on them. Above it: KeepLines, csrc/bindings/reader.cc. Below it: common/key_hash.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/key_hash.h"

namespace hps {

class SampleRule {
 public:
  // Keeps everything.
  SampleRule() = default;
  // Keeps examples whose content's number u is in [low, high), 0 <= low < high <= 1; of those whose
  // label is 0 the share `negative_rate`, 0 < negative_rate <= 1, chosen by another number of it.
  SampleRule(double low, double high, double negative_rate)
      : low_(Steps(low)), high_(Steps(high)), negatives_(Steps(negative_rate)) {}

  bool keeps_all() const { return !has_range() && !has_rate(); }
  // True if the range leaves something out.
  bool has_range() const { return low_ > 0 || high_ < kSteps; }
  // True if some negatives are left out.
  bool has_rate() const { return negatives_ < kSteps; }

  // Whether an example is kept, by its content's 64-bit hash and whether its label is 0.
  bool Keeps(uint64_t hash, bool is_negative) const {
    const uint64_t step = hash >> kShift;
    if (step < low_ || step >= high_) return false;
    return !is_negative || (MixKey(hash ^ kNegativeSalt) >> kShift) < negatives_;
  }

 private:
  // u has as many bits as a double: u = (hash >> 11) / 2^53.
  static constexpr int kShift = 11;
  static constexpr uint64_t kSteps = uint64_t{1} << (64 - kShift);
  static constexpr uint64_t kNegativeSalt = 0x9E3779B97F4A7C15ULL;

  // u < limit just where hash >> 11 < Steps(limit): the product is exact.
  static uint64_t Steps(double limit) {
    return static_cast<uint64_t>(std::ceil(limit * static_cast<double>(kSteps)));
  }

  uint64_t low_ = 0;
  uint64_t high_ = kSteps;
  uint64_t negatives_ = kSteps;
};

}  // namespace hps
