// Steps of dense values, a column of some rows at a time; then the scaling, row by row.
// Above it: BatchTransform. Below it: signed_log.h, common/hash.h.
#include "reader/dense_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/hash.h"
#include "reader/decimal_hash.h"
#include "reader/signed_log.h"
#include "reader/text_schema.h"

namespace hps {
namespace {

constexpr size_t kRows = 256;  // that steps are taken of at once
constexpr char kMissingBucket[] = "missing";

using Values = std::array<float, kRows>;
using Flags = std::array<bool, kRows>;

inline bool IsMissing(float value, MissingNumber how) {
  return how == MissingNumber::kMarked ? value == kMissingDense : value != value;
}

void ReplaceMissing(const Flags& is_missing, float instead, size_t count, Values* values) {
  for (size_t i = 0; i < count; ++i) (*values)[i] = is_missing[i] ? instead : (*values)[i];
}

}  // namespace

void DenseRules::Add(const DenseRule& rule, bool is_scaled) {
  HPS_CHECK(rule.column < num_columns_);
  keeps_all_ = keeps_all_ && rule.column == rules_.size();
  is_scaled_ = is_scaled_ || is_scaled;
  rules_.push_back(rule);
  means_.push_back(is_scaled ? rule.mean : 0.0F);
  factors_.push_back(is_scaled ? rule.factor : 1.0F);
}

bool DenseRules::changes_any() const {
  const bool steps = std::any_of(rules_.begin(), rules_.end(),
                                 [](const DenseRule& rule) { return rule.has_steps(); });
  return steps || is_scaled_ || !keeps_all_ || rules_.size() != num_columns_;
}

void DenseRules::TakeSteps(const DenseRule& rule, size_t place, size_t num_rows, float* dst) const {
  const size_t width = rules_.size();
  Values values;
  Flags is_missing;
  for (size_t first = 0; first < num_rows; first += kRows) {
    const size_t count = std::min(kRows, num_rows - first);
    float* column = dst + first * width + place;
    for (size_t i = 0; i < count; ++i) values[i] = column[i * width];
    if (rule.finds_missing) {
      for (size_t i = 0; i < count; ++i) is_missing[i] = IsMissing(values[i], missing_);
    }
    for (size_t i = 0; rule.is_unlogged && i < count; ++i) {
      const double number = OfSignedLog(values[i]);
      values[i] = static_cast<float>(rule.is_rounded ? std::nearbyint(number) : number);
    }
    if (rule.finds_missing && rule.is_filled) {
      ReplaceMissing(is_missing, rule.instead, count, &values);
    }
    for (size_t i = 0; rule.is_clipped && i < count; ++i) {
      const float value = values[i];  // NaN stays
      const float raised = value <= rule.low ? rule.low : value;
      values[i] = raised >= rule.high ? rule.high : raised;
    }
    for (size_t i = 0; rule.is_logged && i < count; ++i) values[i] = SignedLog(values[i]);
    if (rule.finds_missing && !rule.is_filled) {
      ReplaceMissing(is_missing, rule.instead, count, &values);
    }
    for (size_t i = 0; i < count; ++i) column[i * width] = values[i];
  }
}

void DenseRules::Apply(const float* src, size_t first, size_t last, float* dst) const {
  const size_t width = rules_.size();
  const size_t num_rows = last - first;
  src += first * num_columns_;
  dst += first * width;
  const bool steps = std::any_of(rules_.begin(), rules_.end(),
                                 [](const DenseRule& rule) { return rule.has_steps(); });
  const bool is_same = keeps_all_ && width == num_columns_;
  if (!is_same) {
    for (size_t row = 0; row < num_rows; ++row) {
      for (size_t i = 0; i < width; ++i) {
        dst[row * width + i] = src[row * num_columns_ + rules_[i].column];
      }
    }
  } else if (steps || !is_scaled_) {
    std::copy_n(src, num_rows * width, dst);
  }
  for (size_t i = 0; steps && i < width; ++i) {
    if (rules_[i].has_steps()) TakeSteps(rules_[i], i, num_rows, dst);
  }
  if (!is_scaled_) return;
  const float* values = is_same && !steps ? src : dst;
  const float* means = means_.data();
  const float* factors = factors_.data();
  for (size_t row = 0; row < num_rows; ++row, values += width, dst += width) {
    for (size_t i = 0; i < width; ++i) dst[i] = (values[i] - means[i]) * factors[i];
  }
}

BucketRule::BucketRule(size_t column, MissingNumber how, std::vector<float> bounds, size_t missing,
                       uint64_t seed)
    : column_(column), how_(how), bounds_(std::move(bounds)), missing_(missing) {
  HPS_CHECK(missing <= bounds_.size() + 1);
  for (uint64_t bucket = 0; bucket <= bounds_.size(); ++bucket) {
    keys_.push_back(HashDecimal(bucket, seed));
  }
  keys_.push_back(Xxh64(kMissingBucket, sizeof(kMissingBucket) - 1, seed));
}

size_t BucketRule::Bucket(float value) const {
  if (IsMissing(value, how_)) return missing_;
  const auto above = std::upper_bound(bounds_.begin(), bounds_.end(), value);
  return static_cast<size_t>(above - bounds_.begin());
}

}  // namespace hps
