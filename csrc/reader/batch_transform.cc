// The passes over a batch. Above it: csrc/bindings/batch_transform.cc. Below it: DenseRules,
// key_rules.h, ThreadPool.
#include "reader/batch_transform.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "common/check.h"
#include "common/float_mode.h"

namespace hps {
namespace {

constexpr size_t kPieceRows = 512;  // of which keys and dense values stay in a core's cache

// Nanoseconds of one value, as measured.
constexpr double kDenseWork = 0.4;
constexpr double kLogWork = 15;
constexpr double kCopyWork = 0.6;
constexpr double kBucketWork = 12;
constexpr double kCrossWork = 6;

size_t NumPieces(size_t num_rows) { return (num_rows + kPieceRows - 1) / kPieceRows; }

// Calls task(piece) for each; a single piece, or all without a pool, on the calling thread.
template <typename Task>
void EachPiece(ThreadPool* pool, size_t count, const Task& task) {
  if (pool != nullptr && count > 1) {
    DealOut(pool, count, [&](size_t piece, int) { task(piece); });
    return;
  }
  const DefaultFloatMode mode;
  for (size_t piece = 0; piece < count; ++piece) task(piece);
}

bool AreRising(const RawBatch& raw, size_t num_bags) {
  bool is_rising = raw.offsets[0] == 0;
  for (size_t bag = 0; bag < num_bags; ++bag) is_rising &= raw.offsets[bag] <= raw.offsets[bag + 1];
  return is_rising && static_cast<uint64_t>(raw.offsets[num_bags]) == raw.num_keys;
}

}  // namespace

// Where the bags of each feature of the model begin in its table, by piece of rows.
struct BatchTransform::Ragged {
  size_t num_examples = 0;
  size_t num_pieces = 0;
  std::vector<TableIds>* tables = nullptr;
  std::vector<int64_t> begins;  // [features, pieces]; first how many keys they have

  int64_t& Begin(size_t feature, size_t piece) { return begins[feature * num_pieces + piece]; }
  size_t First(size_t piece) const { return piece * kPieceRows; }
  size_t Last(size_t piece) const { return std::min(num_examples, (piece + 1) * kPieceRows); }
  // Of each of the feature's bags, where it ends in the table; first how many keys it has.
  int64_t* Ends(const MadeFeature& made) {
    return (*tables)[made.table].offsets.data.get() + made.place * num_examples + 1;
  }
  uint64_t* Keys(const MadeFeature& made) { return (*tables)[made.table].keys.data.get(); }
  float* Weights(const MadeFeature& made) { return (*tables)[made.table].weights.data.get(); }
};

void BatchTransform::Add(Kind kind, size_t rule, size_t table) {
  HPS_CHECK(table < table_sizes_.size());
  made_.push_back({kind, rule, table, table_sizes_[table]++});
}

void BatchTransform::AddDense(const DenseRule& rule, bool is_scaled) {
  row_work_ += rule.is_logged || rule.is_unlogged ? kLogWork : kDenseWork;
  dense_.Add(rule, is_scaled);
}

void BatchTransform::AddFeature(FeatureRule rule, size_t table) {
  HPS_CHECK(rule.column < num_features_);
  has_drops_ = has_drops_ || rule.drops;
  row_work_ += kCopyWork + rule.fold.work();
  features_.push_back(std::move(rule));
  Add(Kind::kFeature, features_.size() - 1, table);
}

void BatchTransform::AddBucket(BucketRule rule, size_t table) {
  HPS_CHECK(rule.column() < dense_.num_columns());
  row_work_ += kBucketWork;
  buckets_.push_back(std::move(rule));
  Add(Kind::kBucket, buckets_.size() - 1, table);
}

void BatchTransform::AddCross(CrossRule rule, size_t table) {
  HPS_CHECK(rule.parts.size() >= 2 && rule.parts.size() <= kMaxParts && rule.most >= 1);
  for (const size_t part : rule.parts) HPS_CHECK(part < made_.size());
  row_work_ += kCrossWork + rule.fold.work();
  crosses_.push_back(std::move(rule));
  Add(Kind::kCross, crosses_.size() - 1, table);
}

bool BatchTransform::changes_keys() const {
  if (table_sizes_.size() != 1 || made_.size() != num_features_) return true;
  for (size_t i = 0; i < made_.size(); ++i) {
    if (made_[i].kind != Kind::kFeature) return true;
    const FeatureRule& rule = features_[made_[i].rule];
    if (rule.column != i || !rule.is_plain()) return true;
  }
  return false;
}

double BatchTransform::WorkOf(const RawBatch& raw) const {
  const double num_bags =
      static_cast<double>(num_features_) * static_cast<double>(raw.num_examples);
  const double length = num_bags > 0 ? static_cast<double>(raw.num_keys) / num_bags : 0;
  return row_work_ * static_cast<double>(raw.num_examples) * std::max(length, 1.0);
}

void BatchTransform::MakeDense(const RawBatch& raw, size_t first, size_t last,
                               MadeBatch* made) const {
  if (made->dense.data == nullptr) return;
  dense_.Apply(raw.dense, first, last, made->dense.data.get());
}

bool BatchTransform::MaySingle(const RawBatch& raw) const {
  return !has_drops_ && raw.weights == nullptr && raw.num_keys == num_features_ * raw.num_examples;
}

bool BatchTransform::Apply(const RawBatch& raw, ThreadPool* pool, MadeBatch* made) const {
  const size_t num_examples = raw.num_examples;
  if (dense_.changes_any()) made->dense.Allocate(num_examples * dense_.size());
  const bool has_keys = changes_keys();
  const bool may_single = has_keys && MaySingle(raw);
  if (has_keys) made->tables.resize(table_sizes_.size());
  for (size_t i = 0; may_single && i < table_sizes_.size(); ++i) {
    made->tables[i].keys.Allocate(table_sizes_[i] * num_examples);
  }
  std::atomic<bool> is_single{may_single};
  EachPiece(pool, NumPieces(num_examples), [&](size_t piece) {
    const size_t first = piece * kPieceRows;
    const size_t last = std::min(num_examples, first + kPieceRows);
    MakeDense(raw, first, last, made);
    if (may_single && !MakeSingle(raw, first, last, made)) is_single = false;
  });
  if (!has_keys || is_single) return true;
  if (!AreRising(raw, num_features_ * num_examples)) return false;
  MakeRagged(raw, pool, made);
  return true;
}

bool BatchTransform::MakeSingle(const RawBatch& raw, size_t first, size_t last,
                                MadeBatch* made) const {
  const size_t num_examples = raw.num_examples;
  const size_t count = last - first;
  const auto keys_of = [&](const MadeFeature& one) {
    return made->tables[one.table].keys.data.get() + one.place * num_examples + first;
  };
  std::array<const uint64_t*, kMaxParts> parts;
  for (const MadeFeature& one : made_) {
    uint64_t* keys = keys_of(one);
    if (one.kind == Kind::kFeature) {
      const FeatureRule& rule = features_[one.rule];
      const size_t begin = rule.column * num_examples + first;
      int64_t wrong = 0;
      for (size_t i = 0; !raw.is_single && i <= count; ++i) {
        wrong |= raw.offsets[begin + i] ^ static_cast<int64_t>(begin + i);
      }
      if (wrong != 0) return false;
      const uint64_t* src = raw.keys + begin;
      if (rule.fills && rule.fold.folds()) {
        for (size_t i = 0; i < count; ++i) keys[i] = rule.KeyOf(src[i]);
      } else if (rule.fold.folds()) {
        rule.fold.Each(src, count, keys);
      } else {
        std::copy_n(src, count, keys);
      }
    } else if (one.kind == Kind::kBucket) {
      const BucketRule& rule = buckets_[one.rule];
      const float* values = raw.dense + first * dense_.num_columns() + rule.column();
      for (size_t i = 0; i < count; ++i) keys[i] = rule.Key(values[i * dense_.num_columns()]);
    } else {
      const CrossRule& rule = crosses_[one.rule];
      for (size_t i = 0; i < rule.parts.size(); ++i) parts[i] = keys_of(made_[rule.parts[i]]);
      rule.MakeSingle(parts.data(), count, keys);
    }
  }
  return true;
}

void BatchTransform::MakeRagged(const RawBatch& raw, ThreadPool* pool, MadeBatch* made) const {
  const size_t num_examples = raw.num_examples;
  Ragged ragged{num_examples, NumPieces(num_examples), &made->tables, {}};
  ragged.begins.resize(made_.size() * ragged.num_pieces);
  for (size_t i = 0; i < table_sizes_.size(); ++i) {
    made->tables[i].offsets.Allocate(table_sizes_[i] * num_examples + 1);
    made->tables[i].offsets.data[0] = 0;
  }
  EachPiece(pool, ragged.num_pieces, [&](size_t piece) { CountBags(raw, piece, &ragged); });
  std::vector<int64_t> totals(table_sizes_.size(), 0);
  for (size_t feature = 0; feature < made_.size(); ++feature) {  // of a table in its order
    int64_t& total = totals[made_[feature].table];
    for (size_t piece = 0; piece < ragged.num_pieces; ++piece) {
      const int64_t count = ragged.Begin(feature, piece);
      ragged.Begin(feature, piece) = total;
      total += count;
    }
  }
  for (size_t i = 0; i < table_sizes_.size(); ++i) {
    made->tables[i].keys.Allocate(static_cast<size_t>(totals[i]));
    if (raw.weights != nullptr) made->tables[i].weights.Allocate(static_cast<size_t>(totals[i]));
  }
  EachPiece(pool, ragged.num_pieces, [&](size_t piece) { MakeBags(raw, piece, &ragged); });
}

void BatchTransform::CountBags(const RawBatch& raw, size_t piece, Ragged* ragged) const {
  const size_t first = ragged->First(piece);
  const size_t last = ragged->Last(piece);
  std::array<size_t, kMaxParts> counts;
  for (size_t feature = 0; feature < made_.size(); ++feature) {
    const MadeFeature& one = made_[feature];
    int64_t* ends = ragged->Ends(one);
    int64_t total = 0;
    if (one.kind == Kind::kFeature) {
      const FeatureRule& rule = features_[one.rule];
      const int64_t* offsets = raw.offsets + rule.column * raw.num_examples;
      for (size_t row = first; row < last; ++row) {
        const auto size = static_cast<size_t>(offsets[row + 1] - offsets[row]);
        ends[row] = static_cast<int64_t>(rule.Count(raw.keys + offsets[row], size));
        total += ends[row];
      }
    } else if (one.kind == Kind::kBucket) {
      std::fill(ends + first, ends + last, 1);
      total = static_cast<int64_t>(last - first);
    } else {
      const CrossRule& rule = crosses_[one.rule];
      for (size_t row = first; row < last; ++row) {
        for (size_t i = 0; i < rule.parts.size(); ++i) {
          counts[i] = static_cast<size_t>(ragged->Ends(made_[rule.parts[i]])[row]);
        }
        ends[row] = static_cast<int64_t>(rule.Count(counts.data()));
        total += ends[row];
      }
    }
    ragged->Begin(feature, piece) = total;
  }
}

void BatchTransform::MakeBags(const RawBatch& raw, size_t piece, Ragged* ragged) const {
  for (size_t feature = 0; feature < made_.size(); ++feature) {
    const MadeFeature& one = made_[feature];
    int64_t* ends = ragged->Ends(one);
    int64_t end = ragged->Begin(feature, piece);
    for (size_t row = ragged->First(piece); row < ragged->Last(piece); ++row) {
      ends[row] = end += ends[row];
    }
    if (one.kind == Kind::kFeature) {
      MakeFeature(raw, feature, piece, ragged);
    } else if (one.kind == Kind::kBucket) {
      MakeBuckets(raw, feature, piece, ragged);
    } else {
      MakeCross(feature, piece, ragged);
    }
  }
}

void BatchTransform::MakeFeature(const RawBatch& raw, size_t feature, size_t piece,
                                 Ragged* ragged) const {
  const MadeFeature& one = made_[feature];
  const FeatureRule& rule = features_[one.rule];
  const int64_t begin = ragged->Begin(feature, piece);
  uint64_t* keys = ragged->Keys(one) + begin;
  float* weights = raw.weights == nullptr ? nullptr : ragged->Weights(one) + begin;
  const int64_t* offsets = raw.offsets + rule.column * raw.num_examples;
  const size_t first = ragged->First(piece);
  const size_t last = ragged->Last(piece);
  if (rule.is_plain()) {
    std::copy(raw.keys + offsets[first], raw.keys + offsets[last], keys);
    if (weights != nullptr) {
      std::copy(raw.weights + offsets[first], raw.weights + offsets[last], weights);
    }
    return;
  }
  for (size_t row = first; row < last; ++row) {
    const auto size = static_cast<size_t>(offsets[row + 1] - offsets[row]);
    const float* src = weights == nullptr ? nullptr : raw.weights + offsets[row];
    const size_t count = rule.Make(raw.keys + offsets[row], src, size, keys, weights);
    keys += count;
    if (weights != nullptr) weights += count;
  }
}

void BatchTransform::MakeBuckets(const RawBatch& raw, size_t feature, size_t piece,
                                 Ragged* ragged) const {
  const MadeFeature& one = made_[feature];
  const BucketRule& rule = buckets_[one.rule];
  const int64_t begin = ragged->Begin(feature, piece);
  const size_t first = ragged->First(piece);
  const size_t count = ragged->Last(piece) - first;
  const float* values = raw.dense + first * dense_.num_columns() + rule.column();
  uint64_t* keys = ragged->Keys(one) + begin;
  for (size_t i = 0; i < count; ++i) keys[i] = rule.Key(values[i * dense_.num_columns()]);
  if (raw.weights != nullptr) std::fill_n(ragged->Weights(one) + begin, count, 1.0F);
}

void BatchTransform::MakeCross(size_t feature, size_t piece, Ragged* ragged) const {
  const CrossRule& rule = crosses_[made_[feature].rule];
  std::array<const uint64_t*, kMaxParts> bags;
  std::array<const float*, kMaxParts> weights;
  std::array<size_t, kMaxParts> counts;
  std::array<int64_t, kMaxParts> begins;
  const size_t num_parts = rule.parts.size();
  for (size_t i = 0; i < num_parts; ++i) begins[i] = ragged->Begin(rule.parts[i], piece);
  uint64_t* keys = ragged->Keys(made_[feature]);
  float* products = ragged->Weights(made_[feature]);
  int64_t begin = ragged->Begin(feature, piece);
  for (size_t row = ragged->First(piece); row < ragged->Last(piece); ++row) {
    for (size_t i = 0; i < num_parts; ++i) {
      const MadeFeature& part = made_[rule.parts[i]];
      const int64_t end = ragged->Ends(part)[row];
      bags[i] = ragged->Keys(part) + begins[i];
      if (products != nullptr) weights[i] = ragged->Weights(part) + begins[i];
      counts[i] = static_cast<size_t>(end - begins[i]);
      begins[i] = end;
    }
    const int64_t end = ragged->Ends(made_[feature])[row];
    float* row_products = products == nullptr ? nullptr : products + begin;
    rule.Make(bags.data(), weights.data(), counts.data(), static_cast<size_t>(end - begin),
              keys + begin, row_products);
    begin = end;
  }
}

}  // namespace hps
