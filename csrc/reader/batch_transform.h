// BatchTransform: what a features file makes of a batch, dense values and keys, in one pass.
//
// Rows are dealt out to threads in pieces of a fixed size; what is made does not depend on the
// number of threads. Where each bag of the log has one key and keeps one, which is found on the
// way, there is one pass; else a pass counts the keys of all bags, and another makes them. Above
// it: csrc/bindings/batch_transform.cc (hps/features/transform.py describes what is made). Below
// it: dense_rules.h, key_rules.h, ThreadPool. Any number of threads may apply one at once, each
// with a pool of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/thread_pool.h"
#include "reader/dense_rules.h"
#include "reader/key_rules.h"
#include "reader/text_batch.h"

namespace hps {

// A batch as a reader makes it: one table, of num_features features, as TableIds has it.
struct RawBatch {
  size_t num_examples = 0;
  const float* dense = nullptr;  // [B, number of dense columns]
  const uint64_t* keys = nullptr;
  const int64_t* offsets = nullptr;  // [F * B + 1]
  const float* weights = nullptr;    // [L], or null
  size_t num_keys = 0;               // L
  bool is_single = false;            // each bag has one key: L is F * B, and offsets are not read
};

struct MadeBatch {
  Array<float> dense;            // null if nothing is made of them
  std::vector<TableIds> tables;  // offsets are null if every bag has one key
};

class BatchTransform {
 public:
  // Of a log with so many features and dense columns, for a model with so many tables.
  BatchTransform(size_t num_features, size_t num_dense, MissingNumber missing, size_t num_tables)
      : num_features_(num_features), dense_(num_dense, missing), table_sizes_(num_tables, 0) {}

  // One more dense column of the model, as DenseRules has it.
  void AddDense(const DenseRule& rule, bool is_scaled);
  // One more feature of the model, at the end of a table. A cross is of features added before.
  void AddFeature(FeatureRule rule, size_t table);
  void AddBucket(BucketRule rule, size_t table);
  void AddCross(CrossRule rule, size_t table);

  size_t num_features() const { return num_features_; }
  const DenseRules& dense() const { return dense_; }
  const std::vector<size_t>& table_sizes() const { return table_sizes_; }
  const std::vector<FeatureRule>& features() const { return features_; }
  const std::vector<BucketRule>& buckets() const { return buckets_; }
  // Features that a cross may be of.
  size_t num_made() const { return made_.size(); }
  // False if all features of the log stay as they are, in one table.
  bool changes_keys() const;

  // Nanoseconds that a batch takes one thread, roughly: whether others are worth waking.
  double WorkOf(const RawBatch& raw) const;

  // Makes keys if changes_keys(), dense values if dense().changes_any(). `pool` may be null. False
  // if the offsets do not divide the keys into F * B bags.
  bool Apply(const RawBatch& raw, ThreadPool* pool, MadeBatch* made) const;

 private:
  enum class Kind { kFeature, kBucket, kCross };

  // A feature of the model: a rule of its kind, and where its bags lie.
  struct MadeFeature {
    Kind kind;
    size_t rule;
    size_t table;
    size_t place;  // in the table
  };
  struct Ragged;  // what the passes over bags of any length share

  void Add(Kind kind, size_t rule, size_t table);
  // Rows [first, last) of dense values, if any are to be made.
  void MakeDense(const RawBatch& raw, size_t first, size_t last, MadeBatch* made) const;
  // The same of keys. False if some bag of the log has not one key.
  bool MakeSingle(const RawBatch& raw, size_t first, size_t last, MadeBatch* made) const;
  bool MaySingle(const RawBatch& raw) const;
  void MakeRagged(const RawBatch& raw, ThreadPool* pool, MadeBatch* made) const;
  void CountBags(const RawBatch& raw, size_t piece, Ragged* ragged) const;
  void MakeBags(const RawBatch& raw, size_t piece, Ragged* ragged) const;
  void MakeFeature(const RawBatch& raw, size_t feature, size_t piece, Ragged* ragged) const;
  void MakeBuckets(const RawBatch& raw, size_t feature, size_t piece, Ragged* ragged) const;
  void MakeCross(size_t feature, size_t piece, Ragged* ragged) const;

  const size_t num_features_;
  DenseRules dense_;
  std::vector<size_t> table_sizes_;  // features of each table
  std::vector<FeatureRule> features_;
  std::vector<BucketRule> buckets_;
  std::vector<CrossRule> crosses_;
  std::vector<MadeFeature> made_;  // in the order in which they were added
  bool has_drops_ = false;
  double row_work_ = 0;  // nanoseconds of an example whose bags have one key
};

}  // namespace hps
