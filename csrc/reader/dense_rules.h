// DenseRules: from the dense columns of a log to those of a model. BucketRule: from one of them to
// the key of a bucket.
//
// Above it: batch_transform.h. Below it: signed_log.h, the hashes. Read-only once made, so that
// threads share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hps {

// How a batch holds a missing number: as NaN, or as kMissingDense.
enum class MissingNumber { kNan, kMarked };

// What is made of a dense column of the log, in the order of the fields.
struct DenseRule {
  size_t column = 0;           // of the log, from 0
  bool is_unlogged = false;    // the batch has the number's logarithm, and the number is asked for
  bool is_rounded = false;     // and is a whole one
  bool finds_missing = false;  // what is missing becomes `instead`
  bool is_filled = false;      // which then is clipped and so on; else it stays
  float instead = 0;
  bool is_clipped = false;
  float low = 0;
  float high = 0;
  bool is_logged = false;
  float mean = 0;  // (x - mean) * factor, where any column is brought to scale
  float factor = 1;

  bool has_steps() const { return is_unlogged || finds_missing || is_clipped || is_logged; }
};

class DenseRules {
 public:
  // Of `num_columns` dense columns of the log.
  DenseRules(size_t num_columns, MissingNumber missing)
      : num_columns_(num_columns), missing_(missing) {}

  // One more column of the model. `is_scaled`: its mean and factor count.
  void Add(const DenseRule& rule, bool is_scaled);

  size_t num_columns() const { return num_columns_; }
  MissingNumber missing() const { return missing_; }
  size_t size() const { return rules_.size(); }
  // False if the columns of the model are those of the log, bit for bit.
  bool changes_any() const;

  // Makes rows [first, last) of dst [rows, size()] from those of src [rows, num_columns()].
  void Apply(const float* src, size_t first, size_t last, float* dst) const;

 private:
  // Columns that more is done to than scaling, in rows of dst.
  void TakeSteps(const DenseRule& rule, size_t place, size_t num_rows, float* dst) const;

  const size_t num_columns_;
  const MissingNumber missing_;
  std::vector<DenseRule> rules_;
  std::vector<float> means_;
  std::vector<float> factors_;
  bool is_scaled_ = false;
  bool keeps_all_ = true;  // rule i is of column i
};

// The key of the bucket that a number lies in.
class BucketRule {
 public:
  // `bounds` rise: where buckets begin, in numbers as a batch has them. What is missing lies in
  // bucket `missing`, of which the one after the last is that of missing numbers alone.
  BucketRule(size_t column, MissingNumber how, std::vector<float> bounds, size_t missing,
             uint64_t seed);

  size_t column() const { return column_; }

  // From 0; bounds.size() + 1 is that of missing numbers.
  size_t Bucket(float value) const;
  uint64_t Key(float value) const { return keys_[Bucket(value)]; }

 private:
  size_t column_;
  MissingNumber how_;
  std::vector<float> bounds_;
  size_t missing_;
  std::vector<uint64_t> keys_;  // of each bucket
};

}  // namespace hps
