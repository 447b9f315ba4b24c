// The row optimizers: one update of one row from the summed gradient of its key.
//
// Above it: dram_cache's batch loops (and the device kernels). Below it: lanes.h. Only + - x / and
// sqrt in float32, never contracted, so that host, any instruction set and device agree to the bit.
// A row is addressed as floats: header [0, 4), then weights and state, where its walker says.
// Formulas: SGD, Adagrad and Adam as torch.optim; row-wise Adagrad as FBGEMM's; FTRL-Proximal after
// McMahan et al., KDD 2013, algorithm 1, whose power is one half. Weights may decay before all but
// FTRL's update, decoupled from the gradient: Loshchilov and Hutter, ICLR 2019, algorithm 2.
#pragma once

#include "optimizer/lanes.h"
#include "table/row_layout.h"

namespace hps {

// The numbers of a table's optimizer; what a kind does not use is 0.
struct OptimizerNumbers {
  float eps = 0;
  float initial_accumulator = 0;
  float beta1 = 0;
  float beta2 = 0;
  float one_minus_beta1 = 0;  // rounded once from float64: 1 - 0.999f is off by 1e-5
  float one_minus_beta2 = 0;
  float beta = 0;
  float l1 = 0;
  float l2 = 0;
  float weight_decay = 0;
};

inline namespace HPS_BUILD {

HPS_HD float SquareRoot(float value) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(value);
#else
  return __builtin_sqrtf(value);
#endif
}

// What a step keeps of each weight before its update. 1 - 0 is 1, and a factor of 1 changes no bit.
HPS_HD float KeptShare(float lr, const OptimizerNumbers& numbers) {
  return 1.0f - lr * numbers.weight_decay;
}

template <class Lanes, class Gradient>
HPS_HD void SgdUpdate(Lanes lanes, float* row, Gradient gradient, float lr, float kept) {
  lanes.each([=](float& weight, float g) { weight = kept * weight - lr * g; }, lanes.weights(row),
             gradient);
}

template <class Lanes, class Gradient>
HPS_HD void AdagradUpdate(Lanes lanes, float* row, Gradient gradient, float lr, float eps,
                          float kept) {
  lanes.each(
      [=](float& weight, float& accumulator, float g) {
        accumulator += g * g;
        weight = kept * weight - lr * g / (SquareRoot(accumulator) + eps);
      },
      lanes.weights(row), lanes.state(row), gradient);
}

template <class Lanes, class Gradient>
HPS_HD void RowWiseAdagradUpdate(Lanes lanes, float* row, Gradient gradient, float lr, float eps,
                                 float kept) {
  const float squares = lanes.sum([](float g) { return g * g; }, gradient);
  const float accumulator = row[kFirstScalar] + squares / static_cast<float>(lanes.size());
  lanes.scalar([=] { row[kFirstScalar] = accumulator; });
  lanes.note(accumulator);
  const float step = lr / (SquareRoot(accumulator) + eps);
  lanes.each([=](float& weight, float g) { weight = kept * weight - step * g; }, lanes.weights(row),
             gradient);
}

// The header holds 1 - beta1^t and 1 - beta2^t rather than the powers: near t = 1 the difference to
// one would have lost half of its digits, and a new row's zeros mean t = 0.
template <class Lanes, class Gradient>
HPS_HD void AdamUpdate(Lanes lanes, float* row, Gradient gradient, float lr,
                       const OptimizerNumbers& numbers, float kept) {
  float* first_moments = lanes.state(row);
  const float correction1 = numbers.one_minus_beta1 + numbers.beta1 * row[kFirstScalar];
  const float correction2 = numbers.one_minus_beta2 + numbers.beta2 * row[kFirstScalar + 1];
  lanes.scalar([=] {
    row[kFirstScalar] = correction1;
    row[kFirstScalar + 1] = correction2;
  });
  lanes.note(correction1);
  lanes.note(correction2);
  const float step = lr / correction1;
  const float root = SquareRoot(correction2);
  const float beta1 = numbers.beta1, beta2 = numbers.beta2, eps = numbers.eps;
  const float share1 = numbers.one_minus_beta1, share2 = numbers.one_minus_beta2;
  lanes.each(
      [=](float& weight, float& first, float& second, float g) {
        first = beta1 * first + share1 * g;
        second = beta2 * second + share2 * (g * g);
        weight = kept * weight - step * first / (SquareRoot(second) / root + eps);
      },
      lanes.weights(row), first_moments, first_moments + lanes.size(), gradient);
}

template <class Lanes, class Gradient>
HPS_HD void FtrlUpdate(Lanes lanes, float* row, Gradient gradient, float lr,
                       const OptimizerNumbers& numbers) {
  float* linears = lanes.state(row);
  const float beta = numbers.beta, l1 = numbers.l1, l2 = numbers.l2;
  lanes.each(
      [=](float& weight, float& z, float& n, float g) {
        const float old_root = SquareRoot(n);
        const float squares = n + g * g;
        const float root = SquareRoot(squares);
        const float linear = z + (g - (root - old_root) / lr * weight);
        n = squares;
        z = linear;
        const float magnitude = linear < 0 ? -linear : linear;
        const float shrunk = linear < 0 ? linear + l1 : linear - l1;
        weight = magnitude <= l1 ? 0.0f : -shrunk / ((beta + root) / lr + l2);
      },
      lanes.weights(row), linears, linears + lanes.size(), gradient);
}

// The state that belongs to weights nobody has updated: a new row's, or an assigned row's.
template <class Lanes>
HPS_HD void StartState(Lanes lanes, OptimizerKind kind, float* row, float lr,
                       const OptimizerNumbers& numbers) {
  if (kind == OptimizerKind::kSgd) return;  // nor scalars: a packed row has its key in their place
  const auto* weights = lanes.weights(row);
  float* state = lanes.state(row);
  const float start = numbers.initial_accumulator;
  lanes.scalar([=] {
    row[kFirstScalar] = kind == OptimizerKind::kRowWiseAdagrad ? start : 0.0f;
    row[kFirstScalar + 1] = 0.0f;
  });
  if (kind == OptimizerKind::kAdagrad) {
    lanes.set(state, [=](int) { return start; });
  } else if (kind == OptimizerKind::kAdam) {
    lanes.set(state, [](int) { return 0.0f; });
    lanes.set(state + lanes.size(), [](int) { return 0.0f; });
  } else if (kind == OptimizerKind::kFtrl) {
    // z such that the closed form returns the weights.
    const float scale = (numbers.beta + SquareRoot(start)) / lr + numbers.l2;
    const float l1 = numbers.l1;
    lanes.each(
        [=](float weight, float& z) {
          const float offset = weight > 0 ? -l1 : (weight < 0 ? l1 : 0.0f);
          z = offset - weight * scale;
        },
        weights, state);
    lanes.set(state + lanes.size(), [=](int) { return start; });
  }
}

// The gradient: a column that is only read.
template <class Lanes, class Gradient>
HPS_HD void UpdateRow(Lanes lanes, OptimizerKind kind, float* row, Gradient given, float lr,
                      const OptimizerNumbers& numbers) {
  const auto gradient = AsRead(given);
  const float kept = KeptShare(lr, numbers);
  switch (kind) {
    case OptimizerKind::kSgd:
      return SgdUpdate(lanes, row, gradient, lr, kept);
    case OptimizerKind::kAdagrad:
      return AdagradUpdate(lanes, row, gradient, lr, numbers.eps, kept);
    case OptimizerKind::kRowWiseAdagrad:
      return RowWiseAdagradUpdate(lanes, row, gradient, lr, numbers.eps, kept);
    case OptimizerKind::kAdam:
      return AdamUpdate(lanes, row, gradient, lr, numbers, kept);
    case OptimizerKind::kFtrl:
      return FtrlUpdate(lanes, row, gradient, lr, numbers);
  }
}

}  // namespace HPS_BUILD
}  // namespace hps
