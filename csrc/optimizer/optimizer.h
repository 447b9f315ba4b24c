// The row optimizers: one update of one row from the summed gradient of its key.
//
// Above it: dram_cache's batch loops (and the device kernels). Below it: lanes.h. Only + - x / and
// sqrt in float32, never contracted, so that host, any instruction set and device agree to the bit.
// A row is addressed as floats: header [0, 4), weights [4, 4 + dim), state behind them.
// Formulas: SGD, Adagrad and Adam as torch.optim; row-wise Adagrad as FBGEMM's; FTRL-Proximal after
// McMahan et al., KDD 2013, algorithm 1, whose power is one half.
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
};

inline namespace HPS_BUILD {

HPS_HD float SquareRoot(float value) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(value);
#else
  return __builtin_sqrtf(value);
#endif
}

template <class Lanes>
HPS_HD void SgdUpdate(Lanes lanes, float* row, const float* gradient, float lr) {
  float* weights = row + kRowHeaderFloats;
  lanes.for_each([=](int d) { weights[d] -= lr * gradient[d]; });
}

template <class Lanes>
HPS_HD void AdagradUpdate(Lanes lanes, float* row, const float* gradient, float lr, float eps) {
  float* weights = row + kRowHeaderFloats;
  float* accumulators = weights + lanes.size();
  lanes.for_each([=](int d) {
    const float accumulator = accumulators[d] + gradient[d] * gradient[d];
    accumulators[d] = accumulator;
    weights[d] -= lr * gradient[d] / (SquareRoot(accumulator) + eps);
  });
}

template <class Lanes>
HPS_HD void RowWiseAdagradUpdate(Lanes lanes, float* row, const float* gradient, float lr,
                                 float eps) {
  float* weights = row + kRowHeaderFloats;
  const float squares = lanes.sum([=](int d) { return gradient[d] * gradient[d]; });
  const float accumulator = row[kFirstScalar] + squares / static_cast<float>(lanes.size());
  row[kFirstScalar] = accumulator;
  const float step = lr / (SquareRoot(accumulator) + eps);
  lanes.for_each([=](int d) { weights[d] -= step * gradient[d]; });
}

// The header holds 1 - beta1^t and 1 - beta2^t rather than the powers: near t = 1 the difference to
// one would have lost half of its digits, and a new row's zeros mean t = 0.
template <class Lanes>
HPS_HD void AdamUpdate(Lanes lanes, float* row, const float* gradient, float lr,
                       const OptimizerNumbers& numbers) {
  float* weights = row + kRowHeaderFloats;
  float* first_moments = weights + lanes.size();
  float* second_moments = first_moments + lanes.size();
  const float correction1 = numbers.one_minus_beta1 + numbers.beta1 * row[kFirstScalar];
  const float correction2 = numbers.one_minus_beta2 + numbers.beta2 * row[kFirstScalar + 1];
  row[kFirstScalar] = correction1;
  row[kFirstScalar + 1] = correction2;
  const float step = lr / correction1;
  const float root = SquareRoot(correction2);
  const float beta1 = numbers.beta1, beta2 = numbers.beta2, eps = numbers.eps;
  const float share1 = numbers.one_minus_beta1, share2 = numbers.one_minus_beta2;
  lanes.for_each([=](int d) {
    const float first = beta1 * first_moments[d] + share1 * gradient[d];
    const float second = beta2 * second_moments[d] + share2 * (gradient[d] * gradient[d]);
    first_moments[d] = first;
    second_moments[d] = second;
    weights[d] -= step * first / (SquareRoot(second) / root + eps);
  });
}

template <class Lanes>
HPS_HD void FtrlUpdate(Lanes lanes, float* row, const float* gradient, float lr,
                       const OptimizerNumbers& numbers) {
  float* weights = row + kRowHeaderFloats;
  float* z = weights + lanes.size();
  float* n = z + lanes.size();
  const float beta = numbers.beta, l1 = numbers.l1, l2 = numbers.l2;
  lanes.for_each([=](int d) {
    const float old_root = SquareRoot(n[d]);
    const float squares = n[d] + gradient[d] * gradient[d];
    const float root = SquareRoot(squares);
    const float linear = z[d] + (gradient[d] - (root - old_root) / lr * weights[d]);
    n[d] = squares;
    z[d] = linear;
    const float magnitude = linear < 0 ? -linear : linear;
    const float shrunk = linear < 0 ? linear + l1 : linear - l1;
    weights[d] = magnitude <= l1 ? 0.0f : -shrunk / ((beta + root) / lr + l2);
  });
}

// The state that belongs to weights nobody has updated: a new row's, or an assigned row's.
template <class Lanes>
HPS_HD void StartState(Lanes lanes, OptimizerKind kind, float* row, float lr,
                       const OptimizerNumbers& numbers) {
  float* weights = row + kRowHeaderFloats;
  float* state = weights + lanes.size();
  const float start = numbers.initial_accumulator;
  row[kFirstScalar] = kind == OptimizerKind::kRowWiseAdagrad ? start : 0.0f;
  row[kFirstScalar + 1] = 0.0f;
  if (kind == OptimizerKind::kAdagrad) {
    lanes.for_each([=](int d) { state[d] = start; });
  } else if (kind == OptimizerKind::kAdam) {
    float* second_moments = state + lanes.size();
    lanes.for_each([=](int d) { state[d] = second_moments[d] = 0.0f; });
  } else if (kind == OptimizerKind::kFtrl) {
    // z such that the closed form returns the weights.
    float* n = state + lanes.size();
    const float scale = (numbers.beta + SquareRoot(start)) / lr + numbers.l2;
    const float l1 = numbers.l1;
    lanes.for_each([=](int d) {
      const float offset = weights[d] > 0 ? -l1 : (weights[d] < 0 ? l1 : 0.0f);
      state[d] = offset - weights[d] * scale;
      n[d] = start;
    });
  }
}

template <class Lanes>
HPS_HD void UpdateRow(Lanes lanes, OptimizerKind kind, float* row, const float* gradient, float lr,
                      const OptimizerNumbers& numbers) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return SgdUpdate(lanes, row, gradient, lr);
    case OptimizerKind::kAdagrad:
      return AdagradUpdate(lanes, row, gradient, lr, numbers.eps);
    case OptimizerKind::kRowWiseAdagrad:
      return RowWiseAdagradUpdate(lanes, row, gradient, lr, numbers.eps);
    case OptimizerKind::kAdam:
      return AdamUpdate(lanes, row, gradient, lr, numbers);
    case OptimizerKind::kFtrl:
      return FtrlUpdate(lanes, row, gradient, lr, numbers);
  }
}

}  // namespace HPS_BUILD
}  // namespace hps
