// Up to which gradient no step of a table can overflow, optimizer by optimizer.
//
// Above it: safe_gradient.h. Below it: the optimizers' numbers.
#include "optimizer/safe_gradient.h"

#include <algorithm>
#include <cfloat>
#include <vector>

namespace hps {
namespace {

constexpr double kMostAdded = 0x1p102;  // half of what a finite number can bear
constexpr double kMostComputed = 0x1p126;

float AdagradLimit(double eps, double lr) {
  // |g| / sqrt(a + g * g) is 1 at most, and a bit; below 2^-63 the square is lost, and eps divides.
  const bool is_safe = eps > 0 && lr <= 0x1p60 && lr * 0x1p-63 / eps <= kMostAdded;
  return is_safe ? static_cast<float>(std::min(0x1p51, kMostComputed / std::max(lr, 1.0))) : -1.0f;
}

float RowWiseAdagradLimit(double eps, double lr) {
  // The step is lr / eps where the squares are lost, and then no gradient is above 2^-50.
  return eps > 0 && lr <= 0x1p60 && lr / eps <= kMostComputed ? 0x1p50f : -1.0f;
}

float AdamLimit(const OptimizerNumbers& numbers, double lr) {
  const double step = lr / static_cast<double>(numbers.one_minus_beta1);
  const double most = step * static_cast<double>(kTameFirstMoment);
  const double eps = static_cast<double>(numbers.eps);
  return eps > 0 && most <= kMostComputed && most <= kMostAdded * eps ? 0x1p28f : -1.0f;
}

double LargestInitial(const InitializerSpec& initializer) {
  const double first = std::fabs(static_cast<double>(initializer.first));
  const double second = std::fabs(static_cast<double>(initializer.second));
  if (initializer.kind == InitializerKind::kConstant) return first;
  return initializer.kind == InitializerKind::kUniform ? std::max(first, second)
                                                       : 6 * first + second;
}

float FtrlLimit(const OptimizerNumbers& numbers, const InitializerSpec& initializer, double lr) {
  const double beta = static_cast<double>(numbers.beta), l1 = static_cast<double>(numbers.l1);
  const double l2 = static_cast<double>(numbers.l2);
  const double start = std::sqrt(static_cast<double>(numbers.initial_accumulator));
  const double divisor = beta / lr + l2;  // what the closed form divides by, at least
  const double initial = LargestInitial(initializer);
  const bool is_safe = lr >= 0x1p-28 && lr <= 0x1p60 && beta <= 0x1p60 && l1 <= 0x1p99 &&
                       divisor >= 0x1p-20 && divisor <= 0x1p100 &&
                       initial <= static_cast<double>(kTameFtrlWeight) &&
                       initial * ((beta + start) / lr + l2) <= 0x1p99;
  return is_safe ? 0x1p42f : -1.0f;
}

float SafeGradient(OptimizerKind kind, const OptimizerNumbers& numbers,
                   const InitializerSpec& initializer, double lr) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return static_cast<float>(std::min(static_cast<double>(FLT_MAX), kMostAdded / lr));
    case OptimizerKind::kAdagrad:
      return AdagradLimit(static_cast<double>(numbers.eps), lr);
    case OptimizerKind::kRowWiseAdagrad:
      return RowWiseAdagradLimit(static_cast<double>(numbers.eps), lr);
    case OptimizerKind::kAdam:
      return AdamLimit(numbers, lr);
    case OptimizerKind::kFtrl:
      return FtrlLimit(numbers, initializer, lr);
  }
  return -1.0f;
}

bool AreWithin(const float* values, int64_t count, float least, float most) {
  bool are_within = true;
  for (int64_t i = 0; i < count; ++i) are_within &= (values[i] >= least) & (values[i] <= most);
  return are_within;
}

// The weights, as floats; of a narrow row widened into `wide` [dim].
const float* WeightsOf(const RowLayout& layout, const float* row, float* wide) {
  const float* const weights = row + kRowHeaderFloats;
  if (!layout.is_narrow) return weights;
  const auto* const narrow = reinterpret_cast<const Bfloat16*>(weights);
  std::transform(narrow, narrow + layout.dim, wide,
                 [](Bfloat16 weight) { return Widened(weight); });
  return wide;
}

bool IsTame(const RowLayout& layout, const float* row, float* wide) {
  const int64_t dim = layout.dim;
  const float* const weights = WeightsOf(layout, row, wide);
  const float* const first = row + kRowHeaderFloats + layout.weight_floats();
  const float* const second = first + dim;
  switch (layout.kind) {
    case OptimizerKind::kSgd:
      return AreWithin(weights, dim, -FLT_MAX, FLT_MAX);
    case OptimizerKind::kAdagrad:
      return AreWithin(weights, dim, -FLT_MAX, FLT_MAX) && AreWithin(first, dim, 0, FLT_MAX);
    case OptimizerKind::kRowWiseAdagrad:
      return AreWithin(weights, dim, -FLT_MAX, FLT_MAX) &&
             AreWithin(row + kFirstScalar, 1, 0, FLT_MAX);
    case OptimizerKind::kAdam:
      return AreWithin(weights, dim, -FLT_MAX, FLT_MAX) && AreWithin(row + kFirstScalar, 2, 0, 2) &&
             AreWithin(first, dim, -kTameFirstMoment, kTameFirstMoment) &&
             AreWithin(second, dim, 0, FLT_MAX);
    case OptimizerKind::kFtrl:
      return AreWithin(weights, dim, -kTameFtrlWeight, kTameFtrlWeight) &&
             AreWithin(first, dim, -kTameFtrlLinear, kTameFtrlLinear) &&
             AreWithin(second, dim, 0, FLT_MAX);
  }
  return false;
}

}  // namespace

uint32_t SafeGradientBits(OptimizerKind kind, const OptimizerNumbers& numbers,
                          const InitializerSpec& initializer, float lr) {
  if (!(lr >= 0.0f) || !IsFinite(lr)) return 0;
  // What decays does not grow: the bounds are those of what a step adds.
  if (!(std::fabs(KeptShare(lr, numbers)) <= 1.0f)) return 0;
  const float limit = SafeGradient(kind, numbers, initializer, static_cast<double>(lr));
  // What a batch tells of its gradients is 2^20 at least.
  return limit >= 0x1p20f ? MagnitudeBits(limit) : 0;
}

bool AreTame(const RowLayout& layout, const uint8_t* images, int64_t count, const uint8_t* found) {
  const int64_t row_bytes = layout.row_bytes();
  std::vector<float> wide(layout.is_narrow ? static_cast<size_t>(layout.dim) : 0);
  for (int64_t i = 0; i < count; ++i) {
    if (found[i] == 0) continue;
    const uint8_t* const image = images + i * row_bytes;
    if (!IsTame(layout, FloatsOfRow(image, layout.header_bytes()), wide.data())) return false;
  }
  return true;
}

}  // namespace hps
