// A trial of an update: what it would make of a row is computed and looked at, and not stored.
//
// Above it: the updates of dram_cache and gpu_cache, which try what may overflow before the first
// row of a step changes. Below it: optimizer.h, whose text is the same for a trial and for the
// update. Most steps need none: safe_gradient.h says which.
#pragma once

#include "optimizer/narrow_lanes.h"
#include "optimizer/optimizer.h"

namespace hps {

// Bits of a float without its sign: they are ordered as the magnitudes are, NaN above infinity.
inline constexpr uint32_t kInfinityBits = 0x7f800000;
// What a batch says of its gradients where none is larger: 2^20. So a device need not note most.
inline constexpr uint32_t kOrdinaryBits = 0x49800000;

// The state beyond which a step is tried whatever its gradients are; see safe_gradient.h.
// FtrlIsTame may take twice as much for tame.
inline constexpr float kTameFirstMoment = 0x1p30f;
inline constexpr float kTameFtrlWeight = 0x1p30f;
inline constexpr float kTameFtrlLinear = 0x1p100f;

inline namespace HPS_BUILD {

HPS_HD uint32_t MagnitudeBits(float value) { return BitsOf(value) & 0x7fffffffu; }

// x - x is 0, or NaN if x is not finite.
HPS_HD bool IsFinite(float value) { return value - value == 0.0f; }

// The walker of a trial: bodies work on copies, and `are_finite` falls once one is not.
template <class Lanes>
struct TrialLanes {
  Lanes lanes;
  bool* are_finite;

  HPS_HD_MEMBER int size() const { return lanes.size(); }
  template <class Float>
  HPS_HD_MEMBER auto weights(Float* row) const {
    return lanes.weights(row);
  }
  HPS_HD_MEMBER float* state(float* row) const { return lanes.state(row); }

  template <class Body, class... Columns>
  HPS_HD_MEMBER void each(Body body, Columns... columns) const {
    bool* const all = are_finite;
    lanes.each(
        [=](auto... values) {
          body(values...);
          *all = *all && (IsFinite(values) && ...);
        },
        AsRead(columns)...);
  }

  template <class Term, class Column>
  HPS_HD_MEMBER float sum(Term term, Column column) const {
    return lanes.sum(term, AsRead(column));
  }

  template <class Body>
  HPS_HD_MEMBER void scalar(Body) const {}

  HPS_HD_MEMBER void note(float value) const { *are_finite = *are_finite && IsFinite(value); }
};

// The same for a narrow row: what a weight is rounded to is to be finite, too.
template <class Lanes, Rounding kRounding>
struct TrialLanes<NarrowLanes<Lanes, kRounding>> {
  NarrowLanes<Lanes, kRounding> lanes;
  bool* are_finite;

  HPS_HD_MEMBER int size() const { return lanes.size(); }
  HPS_HD_MEMBER Bfloat16* weights(float* row) const { return lanes.weights(row); }
  HPS_HD_MEMBER float* state(float* row) const { return lanes.state(row); }

  template <class Body, class... Columns>
  HPS_HD_MEMBER void each(Body body, Columns*... columns) const {
    bool* const all = are_finite;
    lanes.visit(
        [=](auto... held) {
          body(held.value...);
          *all = *all && (IsFinite(held.value) && ...) && (IsFinite(held.kept()) && ...);
        },
        columns...);
  }

  template <class Term>
  HPS_HD_MEMBER float sum(Term term, const float* column) const {
    return lanes.sum(term, column);
  }

  template <class Body>
  HPS_HD_MEMBER void scalar(Body) const {}

  HPS_HD_MEMBER void note(float value) const { *are_finite = *are_finite && IsFinite(value); }
};

// True if an update would leave a row finite; on a device, as far as this lane sees. The state of a
// fresh row has been started.
template <class Lanes, class Gradient>
HPS_HD bool UpdateIsFinite(Lanes lanes, OptimizerKind kind, float* row, Gradient gradient, float lr,
                           const OptimizerNumbers& numbers) {
  bool are_finite = true;
  UpdateRow(TrialLanes<Lanes>{lanes, &are_finite}, kind, row, gradient, lr, numbers);
  return are_finite;
}

// False if steps of a row must be tried from now on. Of FTRL, whose z may grow by more than its
// gradients; other kinds of state cannot grow out of what is tame by ordinary gradients.
template <class Lanes>
HPS_HD bool FtrlIsTame(Lanes lanes, float* row) {
  // As arithmetic, which runs in as many lanes as the update: what is beyond overflows, and then
  // the difference is NaN.
  const auto of_weights = [](float weight) {
    const float scaled = weight * (0x1p127f / kTameFtrlWeight);
    return scaled - scaled;
  };
  const auto of_linears = [](float z) {
    const float scaled = z * (0x1p127f / kTameFtrlLinear);
    return scaled - scaled;
  };
  return lanes.sum(of_weights, lanes.weights(row)) + lanes.sum(of_linears, lanes.state(row)) ==
         0.0f;
}

}  // namespace HPS_BUILD
}  // namespace hps
