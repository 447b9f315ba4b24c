// Python's view of csrc/reader/batch_transform.h: rules are added one by one, then batches pass.
#include "reader/batch_transform.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/cache_options.h"
#include "bindings/reader_arrays.h"

namespace nb = nanobind;

namespace hps {
namespace {

// Nanoseconds of work from which threads share it: to wake one takes tens of thousands, and where
// other work holds the cores as much again until it runs.
constexpr double kLeastShared = 250'000;

using Numbers = std::optional<std::pair<float, float>>;

void AddDense(BatchTransform& transform, size_t column, bool is_unlogged, bool is_rounded,
              std::optional<float> missing, bool is_filled, const Numbers& clip, bool is_logged,
              const Numbers& scale) {
  CheckShape(column < transform.dense().num_columns(), "add_dense: the log has no such column");
  DenseRule rule;
  rule.column = column;
  rule.is_unlogged = is_unlogged;
  rule.is_rounded = is_rounded;
  rule.finds_missing = missing.has_value();
  rule.is_filled = is_filled;
  rule.instead = missing.value_or(0.0F);
  rule.is_clipped = clip.has_value();
  if (clip.has_value()) std::tie(rule.low, rule.high) = *clip;
  rule.is_logged = is_logged;
  if (scale.has_value()) std::tie(rule.mean, rule.factor) = *scale;
  transform.AddDense(rule, scale.has_value());
}

Fold FoldOf(std::optional<uint64_t> buckets, uint64_t seed) {
  if (!buckets.has_value()) return {};
  CheckShape(*buckets >= 1 && *buckets <= uint64_t{1} << 63, "buckets: from 1 to 2^63");
  return {*buckets, seed};
}

void CheckTable(const BatchTransform& transform, size_t table) {
  CheckShape(table < transform.table_sizes().size(), "the model has no such table");
}

void AddFeature(BatchTransform& transform, size_t column, size_t table, uint64_t seed,
                uint64_t missing, bool drops, bool fills, size_t most, bool is_last,
                std::optional<uint64_t> buckets) {
  CheckShape(column < transform.num_features(), "add_feature: the log has no such feature");
  CheckTable(transform, table);
  FeatureRule rule;
  rule.column = column;
  rule.drops = drops;
  rule.fills = fills;
  rule.missing = missing;
  rule.most = most;
  rule.is_last = is_last;
  rule.fold = FoldOf(buckets, seed);
  transform.AddFeature(std::move(rule), table);
}

void AddBucket(BatchTransform& transform, size_t column, size_t table, uint64_t seed,
               std::vector<float> bounds, size_t missing) {
  CheckShape(column < transform.dense().num_columns(), "add_bucket: the log has no such column");
  CheckShape(missing <= bounds.size() + 1, "add_bucket: there is no such bucket");
  CheckTable(transform, table);
  transform.AddBucket(
      BucketRule(column, transform.dense().missing(), std::move(bounds), missing, seed), table);
}

void AddCross(BatchTransform& transform, std::vector<size_t> parts, size_t table, uint64_t seed,
              size_t most, std::optional<uint64_t> buckets) {
  CheckShape(parts.size() >= 2 && parts.size() <= kMaxParts, "add_cross: 2 to 8 features");
  for (const size_t part : parts) {
    CheckShape(part < transform.num_made(), "add_cross: there is no such feature before it");
  }
  CheckShape(most >= 1, "add_cross: at least one key");
  CheckTable(transform, table);
  CrossRule rule;
  rule.parts = std::move(parts);
  rule.seed = seed;
  rule.most = most;
  rule.fold = FoldOf(buckets, seed);
  transform.AddCross(std::move(rule), table);
}

// `is_single`: whoever calls knows that each bag has one key. Returns (dense values or None, of
// each table (keys, offsets or None, weights or None) or None).
nb::tuple Apply(const BatchTransform& transform, const Vector<const int64_t>& keys,
                const Vector<const int64_t>& offsets,
                const std::optional<Vector<const float>>& weights, const Matrix<const float>& dense,
                bool is_single, ThreadPool* threads) {
  const size_t num_examples = dense.shape(0);
  CheckShape(dense.shape(1) == transform.dense().num_columns(),
             "apply: dense [B, dense columns of the log] is needed");
  const size_t num_bags = transform.num_features() * num_examples;
  CheckShape(offsets.size() == num_bags + 1, "apply: offsets [F * B + 1] are needed");
  CheckShape(!weights || weights->size() == keys.size(), "apply: weights [L] are needed");
  const RawBatch raw{num_examples,
                     dense.data(),
                     reinterpret_cast<const uint64_t*>(keys.data()),
                     offsets.data(),
                     weights ? weights->data() : nullptr,
                     keys.size(),
                     is_single && keys.size() == num_bags};
  MadeBatch made;
  bool is_valid = false;
  {
    nb::gil_scoped_release release;
    const bool is_worth = transform.WorkOf(raw) >= kLeastShared;
    is_valid = transform.Apply(raw, is_worth ? threads : nullptr, &made);
  }
  CheckShape(is_valid, "apply: offsets must rise from 0 to L");
  nb::object made_dense = nb::none();
  if (made.dense.data != nullptr) {
    made_dense = ToNumpy<float>(std::move(made.dense), num_examples, transform.dense().size(), 2);
  }
  if (!transform.changes_keys()) return nb::make_tuple(made_dense, nb::none());
  nb::list tables;
  for (TableIds& table : made.tables) tables.append(ToTuple(std::move(table)));
  return nb::make_tuple(made_dense, tables);
}

// Keys that a bag of a feature of the model becomes; `feature` counts those of the log alone.
std::vector<uint64_t> KeysOf(const BatchTransform& transform, size_t feature,
                             const std::vector<uint64_t>& keys) {
  CheckShape(feature < transform.features().size(), "keys_of: there is no such feature");
  std::vector<uint64_t> made(keys.size() + 1);
  const FeatureRule& rule = transform.features()[feature];
  made.resize(rule.Make(keys.data(), nullptr, keys.size(), made.data(), nullptr));
  return made;
}

// The bucket of a number as a batch has it; `column` counts those with buckets alone.
size_t BucketOf(const BatchTransform& transform, size_t column, float value) {
  CheckShape(column < transform.buckets().size(), "bucket_of: there is no such column");
  return transform.buckets()[column].Bucket(value);
}

}  // namespace

void BindBatchTransform(nb::module_& module) {
  nb::class_<BatchTransform>(module, "BatchTransform")
      .def(
          "__init__",
          [](BatchTransform* self, size_t num_features, size_t num_dense, bool is_marked,
             size_t num_tables) {
            const auto missing = is_marked ? MissingNumber::kMarked : MissingNumber::kNan;
            new (self) BatchTransform(num_features, num_dense, missing, num_tables);
          },
          nb::arg("num_features"), nb::arg("num_dense"), nb::arg("is_marked"),
          nb::arg("num_tables"))
      .def("add_dense", &AddDense, nb::kw_only(), nb::arg("column"), nb::arg("is_unlogged"),
           nb::arg("is_rounded"), nb::arg("missing").none(), nb::arg("is_filled"),
           nb::arg("clip").none(), nb::arg("is_logged"), nb::arg("scale").none())
      .def("add_feature", &AddFeature, nb::kw_only(), nb::arg("column"), nb::arg("table"),
           nb::arg("seed"), nb::arg("missing"), nb::arg("drops"), nb::arg("fills"), nb::arg("most"),
           nb::arg("is_last"), nb::arg("buckets").none())
      .def("add_bucket", &AddBucket, nb::kw_only(), nb::arg("column"), nb::arg("table"),
           nb::arg("seed"), nb::arg("bounds"), nb::arg("missing"))
      .def("add_cross", &AddCross, nb::kw_only(), nb::arg("parts"), nb::arg("table"),
           nb::arg("seed"), nb::arg("most"), nb::arg("buckets").none())
      .def("apply", &Apply, nb::arg("keys").noconvert(), nb::arg("offsets").noconvert(),
           nb::arg("weights").noconvert().none(), nb::arg("dense").noconvert(),
           nb::arg("is_single"), nb::arg("threads").none())
      .def("keys_of", &KeysOf, nb::arg("feature"), nb::arg("keys"))
      .def("bucket_of", &BucketOf, nb::arg("column"), nb::arg("value"));
}

}  // namespace hps
