// hps._C.TableBatch, TablePlaces: a step over several tables, a native call a phase.
//
// Arrays are checked here as far as memory depends on it; what hps.nn says of them is said there.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bindings/bind.h"
#include "bindings/cache_options.h"
#include "bindings/fields.h"
#include "bindings/tensor_view.h"
#include "bindings/translate.h"
#include "dram_cache/dram_cache.h"
#include "gpu_cache/gpu_cache.h"
#include "table_batch/table_batch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hps {
namespace {

using DramRows = RowsIn<DramCache, BatchPlan>;
using Weights = std::optional<TensorView>;
using GpuRows = RowsIn<GpuCache, GpuPlan>;

using Read = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Written = nb::ndarray<nb::c_contig, nb::device::cpu>;

// float32, or bfloat16; of numpy, which has no such numbers, their bits as int16.
bool IsNarrow(nb::dlpack::dtype dtype) {
  constexpr nb::dlpack::dtype kBfloat16 = {static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16,
                                           1};
  const bool is_narrow = dtype == nb::dtype<int16_t>() || dtype == kBfloat16;
  CheckShape(is_narrow || dtype == nb::dtype<float>(), "float32 or bfloat16 [B, width] is needed");
  return is_narrow;
}

constexpr const char* kMatrix = "float32 or bfloat16 [B, width] is needed";

TensorView OutputOf(nb::handle out) { return TensorView::Of<Written>(out, 2, kMatrix); }
TensorView GradientsOf(nb::handle gradients) { return TensorView::Of<Read>(gradients, 2, kMatrix); }
TensorView VectorOf(nb::handle vector, const char* what) {
  return TensorView::Of<Read>(vector, 1, what);
}

OutputValues OutputValuesOf(const TensorView& out) {
  if (IsNarrow(out.dtype())) return {nullptr, static_cast<Bfloat16*>(out.data())};
  return {static_cast<float*>(out.data())};
}

GradientValues GradientValuesOf(const TensorView& gradients) {
  const OutputValues values = OutputValuesOf(gradients);
  return {values.wide, values.narrow};
}

// The places of all tables' features in the rows of an output.
struct TablePlaces {
  std::vector<FeaturePlaces> tables;
  std::vector<std::vector<int64_t>> features;  // of each table, their places among all
  std::vector<int64_t> dims;
  int64_t width = 0;
};

TablePlaces MakePlaces(const std::vector<int64_t>& dims, const std::vector<bool>& are_means,
                       const std::vector<std::vector<int64_t>>& columns,
                       const std::vector<std::vector<int64_t>>& features, int64_t width) {
  CheckShape(are_means.size() == columns.size() && dims.size() == columns.size(),
             "a dim, a mean and columns a table are needed");
  TablePlaces places;
  for (size_t table = 0; table < columns.size(); ++table) {
    for (const int64_t column : columns[table]) {
      CheckShape(0 <= column && dims[table] <= width && column <= width - dims[table],
                 "columns within the width are needed");
    }
    places.tables.push_back({are_means[table], columns[table]});
  }
  places.features = features;
  places.dims = dims;
  places.width = width;
  return places;
}

const uint64_t* KeysOf(const TensorView& keys) {
  const bool is_right =
      keys.dtype() == nb::dtype<int64_t>() || keys.dtype() == nb::dtype<uint64_t>();
  CheckShape(is_right, "int64 or uint64 keys are needed");
  return static_cast<const uint64_t*>(keys.data());
}

const float* FloatsOf(const TensorView& weights) {
  return static_cast<const float*>(weights.data());
}

bool AreNarrow(const TensorView& offsets) {
  const bool is_narrow = offsets.dtype() == nb::dtype<int32_t>();
  CheckShape(is_narrow || offsets.dtype() == nb::dtype<int64_t>(),
             "int64 or int32 offsets are needed");
  CheckShape(offsets.shape(0) > 0, "offsets [bags + 1] are needed");
  return is_narrow;
}

int64_t At(const TensorView& offsets, bool is_narrow, int64_t place) {
  return is_narrow ? static_cast<const int32_t*>(offsets.data())[place]
                   : static_cast<const int64_t*>(offsets.data())[place];
}

// A table's keys, offsets and weights, by the fields of hps.Ids.
struct IdsNames {
  PyObject* const keys = PyUnicode_InternFromString("keys_L");
  PyObject* const offsets = PyUnicode_InternFromString("offsets");
  PyObject* const weights = PyUnicode_InternFromString("weights_L");
};

const IdsNames& NamesOfIds() {
  static const IdsNames* const names = new IdsNames;  // Python's, to the end of the process
  return *names;
}

constexpr int64_t kFewKeys = 1024;

// Lets Python's lock go while many keys are worked on. With few it is kept: the caller holds the
// server's lock, and a thread that let Python's go for some microseconds would wait for both, as
// would every other, however many score one example at a time. Native code waits for no thread that
// needs Python.
class UnlockedIfLong {
 public:
  explicit UnlockedIfLong(int64_t num_keys) {
    if (num_keys > kFewKeys) unlocked_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> unlocked_;
};

// A batch, and the arrays that it has not copied yet.
class Handle {
 public:
  Handle(const nb::list& caches, TableCounts* counts, const nb::tuple& names)
      : batch_(RowsOf(caches, *counts), counts), names_(names) {
    CheckShape(names.size() == caches.size(), "a name of each table is needed");
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // The pieces of each table's own tensors, which have the fields of hps.Ids.
  void TakeParts(const nb::list& features, int64_t num_examples) {
    const size_t num_tables = batch_.num_tables();
    const IdsNames& names = NamesOfIds();
    CheckShape(features.size() == num_tables, "keys, offsets and weights of each table are needed");
    std::vector<std::vector<TablePiece>> pieces(num_tables);
    Kept kept;
    for (size_t table = 0; table < num_tables; ++table) {
      const nb::handle ids = features[table];
      const auto own = VectorOf(GetField(ids, names.keys), "keys [L] are needed");
      const auto starts = VectorOf(GetField(ids, names.offsets), "offsets [bags + 1] are needed");
      const Weights factors = WeightsOf(GetField(ids, names.weights));
      TablePiece piece = {};
      piece.keys = KeysOf(own);
      piece.count = own.shape(0);
      piece.is_narrow = AreNarrow(starts);
      piece.offsets = starts.data();
      piece.num_bags = starts.shape(0) - 1;
      CheckShape(num_examples == 0 ? piece.num_bags == 0 : piece.num_bags % num_examples == 0,
                 "offsets [F * B + 1] are needed");
      CheckShape(At(starts, piece.is_narrow, 0) == 0, "the first offset must be 0");
      CheckWeights(factors, piece.count);
      piece.weights = factors ? FloatsOf(*factors) : nullptr;
      pieces[table].push_back(piece);
      kept.Add(own, starts, factors);
    }
    kept_ = std::move(kept);
    num_keys_ = NumKeys(pieces);
    const UnlockedIfLong unlocked(num_keys_);
    batch_.Begin(pieces, num_examples);
  }

  // The same of features one after the other in the same arrays; `features` has those of each
  // table, by their place.
  void TakeJoint(const nb::handle all_keys, const nb::handle all_offsets,
                 const nb::handle all_weights, const TablePlaces& places, int64_t num_examples) {
    const auto keys = VectorOf(all_keys, "keys [L] are needed");
    const auto offsets = VectorOf(all_offsets, "offsets [bags + 1] are needed");
    const Weights weights = WeightsOf(all_weights);
    const std::vector<std::vector<int64_t>>& features = places.features;
    CheckShape(features.size() == batch_.num_tables(), "the features of each table are needed");
    const bool is_narrow = AreNarrow(offsets);
    const auto num_bags = offsets.shape(0) - 1;
    const auto count = keys.shape(0);
    CheckWeights(weights, count);
    CheckShape(At(offsets, is_narrow, 0) == 0 && At(offsets, is_narrow, num_bags) == count,
               "offsets must rise from 0 to L");
    const uint64_t* const first_key = KeysOf(keys);
    const int64_t step = is_narrow ? sizeof(int32_t) : sizeof(int64_t);
    std::vector<std::vector<TablePiece>> pieces(features.size());
    for (size_t table = 0; table < features.size(); ++table) {
      int64_t next = -1;
      for (const int64_t feature : features[table]) {
        CheckShape(feature >= 0 && (feature + 1) * num_examples <= num_bags,
                   "offsets of all features are needed");
        const int64_t first = At(offsets, is_narrow, feature * num_examples);
        const int64_t end = At(offsets, is_narrow, (feature + 1) * num_examples);
        CheckShape(0 <= first && first <= end && end <= count, "offsets must rise from 0 to L");
        if (feature == next) {  // it goes on where the last one ends
          pieces[table].back().count += end - first;
          pieces[table].back().num_bags += num_examples;
        } else {
          pieces[table].push_back(
              {first_key + first, end - first,
               static_cast<const char*>(offsets.data()) + feature * num_examples * step, is_narrow,
               num_examples, weights ? FloatsOf(*weights) + first : nullptr});
        }
        next = feature + 1;
      }
    }
    Kept kept;
    kept.Add(keys, offsets, weights);
    kept_ = std::move(kept);
    num_keys_ = NumKeys(pieces);
    const UnlockedIfLong unlocked(num_keys_);
    batch_.Begin(pieces, num_examples);
  }

  bool Pull(const TablePlaces& places, nb::handle given) {
    const TensorView out = OutputOf(given);
    CheckStage(TableBatch::Stage::kBegun);
    CheckPlaces(places, out);
    const OutputValues values = OutputValuesOf(out);
    const Kept kept = std::move(kept_);
    const UnlockedIfLong unlocked(num_keys_);
    batch_.Pull(places.tables, places.width, values);
    return IsWhole();
  }

  bool Hold() {
    CheckStage(TableBatch::Stage::kBegun);
    const Kept kept = std::move(kept_);
    const UnlockedIfLong unlocked(num_keys_);
    batch_.Hold();
    return IsWhole();
  }

  bool Find() {
    CheckPlans();
    const UnlockedIfLong unlocked(num_keys_);
    batch_.Find();
    return IsWhole();
  }

  void Pool(const TablePlaces& places, nb::handle given) {
    const TensorView out = OutputOf(given);
    CheckPlans();
    CheckPlaces(places, out);
    const OutputValues values = OutputValuesOf(out);
    const UnlockedIfLong unlocked(num_keys_);
    batch_.Pool(places.tables, places.width, values);
  }

  // The tables that are left to PoolOver.
  std::vector<size_t> LayOver(const nb::list& overlays, const TablePlaces& places,
                              nb::handle given) {
    const TensorView out = OutputOf(given);
    CheckPlans();
    CheckPlaces(places, out);
    CheckShape(overlays.size() == batch_.num_tables(), "an overlay of each table, or None");
    std::vector<const RowOverlay*> laid;
    for (size_t table = 0; table < overlays.size(); ++table) {
      laid.push_back(overlays[table].is_none() ? nullptr
                                               : nb::cast<const RowOverlay*>(overlays[table]));
      CheckDim(table, laid.back());
    }
    const OutputValues values = OutputValuesOf(out);
    const UnlockedIfLong unlocked(num_keys_);
    return batch_.LayOver(laid, places.tables, places.width, values);
  }

  void PoolOver(size_t table, const RowOverlay* overlay, const Matrix<const float>& values,
                const TablePlaces& places, nb::handle given) {
    const TensorView out = OutputOf(given);
    batch_with(table);
    CheckPlans();
    CheckPlaces(places, out);
    CheckDim(table, overlay);
    CheckShape(values.shape(0) == static_cast<size_t>(batch_.num_keys(table)) &&
                   values.shape(1) == static_cast<size_t>(overlay->dim()),
               "values [keys of the table, dim] are needed");
    const OutputValues pooled = OutputValuesOf(out);
    const UnlockedIfLong unlocked(num_keys_);
    batch_.PoolOver(table, *overlay, values.data(), places.tables[table], places.width, pooled);
  }

  // A step, unless a row is not in place, which is None. The first table with a culprit and which
  // key it is, and then nothing is applied; or (-1, -1). Calls what deciding() returns right before
  // the rows change, and applied() right after; either may be None.
  std::optional<std::pair<int64_t, int64_t>> Step(
      const TablePlaces& places, nb::handle given, const nb::dict& rates,
      const std::optional<Vector<const uint8_t>>& labels, const nb::object& deciding,
      const nb::object& applied) {
    const TensorView gradients = GradientsOf(given);
    CheckPlans();
    CheckPlaces(places, gradients);
    ReadRates(rates);
    CheckShape(gradients.shape(0) * gradients.shape(1) >> 32 == 0,
               "fewer than 2^32 gradients are needed");
    CheckShape(!labels || labels->size() == static_cast<size_t>(batch_.num_examples()),
               "uint8 labels [B] are needed");
    const GradientValues values = GradientValuesOf(gradients);
    const uint8_t* flags = labels ? labels->data() : nullptr;
    {
      const UnlockedIfLong unlocked(num_keys_);
      batch_.Find();
      if (!IsWhole()) return {};
      batch_.Sum(places.tables, places.width, values, flags, rates_);
      if (Culprit().first >= 0) return Culprit();
      if (deciding.is_none()) batch_.Apply(rates_);
    }
    if (!deciding.is_none()) {
      for (const nb::handle decide : nb::list(deciding())) decide();
      const UnlockedIfLong unlocked(num_keys_);
      batch_.Apply(rates_);
    }
    if (!applied.is_none()) applied();
    return Culprit();
  }

  void Release() {
    const UnlockedIfLong unlocked(num_keys_);
    batch_.Release();
  }

  TableBatch* batch() { return &batch_; }
  // The batch, of which a table is asked for.
  TableBatch* batch_with(size_t table) {
    CheckShape(table < batch_.num_tables(), "the number of a table is needed");
    return &batch_;
  }
  // The same, where what was taken of it is asked for.
  TableBatch* taken_with(size_t table) {
    CheckStage(TableBatch::Stage::kTaken);
    return batch_with(table);
  }

 private:
  struct Kept {
    void Add(const TensorView& keys, const TensorView& offsets, const Weights& own) {
      views.insert(views.end(), {keys, offsets});
      if (own) views.push_back(*own);
    }

    std::vector<TensorView> views;
  };

  static std::vector<std::unique_ptr<TableRows>> RowsOf(const nb::list& caches,
                                                        const TableCounts& counts) {
    CheckShape(caches.size() > 0, "a cache is needed");
    CheckShape(counts.hits.size() == caches.size(), "counts of each table are needed");
    std::vector<std::unique_ptr<TableRows>> rows;
    for (const nb::handle cache : caches) {
      DramCache* dram = nullptr;
      GpuCache* gpu = nullptr;
      if (nb::try_cast(cache, dram, false) && dram != nullptr) {
        rows.push_back(std::make_unique<DramRows>(dram));
      } else if (nb::try_cast(cache, gpu, false) && gpu != nullptr) {
        rows.push_back(std::make_unique<GpuRows>(gpu));
      } else {
        CheckShape(false, "DramCaches or GpuCaches are needed");
      }
      CheckShape(rows.back()->pool() == rows[0]->pool(),
                 "caches that share their threads are needed");
    }
    return rows;
  }
  static int64_t NumKeys(const std::vector<std::vector<TablePiece>>& pieces) {
    int64_t count = 0;
    for (const std::vector<TablePiece>& of_table : pieces) {
      for (const TablePiece& piece : of_table) count += piece.count;
    }
    return count;
  }
  static Weights WeightsOf(nb::handle weights) {
    if (weights.is_none()) return {};
    constexpr const char* kNeeded = "float32 weights [L] are needed";
    Weights found = VectorOf(weights, kNeeded);
    CheckShape(found->dtype() == nb::dtype<float>(), kNeeded);
    return found;
  }
  void CheckStage(TableBatch::Stage stage) const {
    CheckShape(batch_.stage() == stage, "keys are taken first, and looked up once");
  }
  // That each table was looked up, and its plan is of the batch.
  void CheckPlans() {
    CheckStage(TableBatch::Stage::kTaken);
    for (size_t table = 0; table < batch_.num_tables(); ++table) {
      CheckShape(!batch_.is_refused(table) &&
                     batch_.rows(table)->num_occurrences() == batch_.num_keys(table),
                 "keys that were taken, and not refused, are needed");
    }
  }
  static void CheckWeights(const Weights& weights, int64_t count) {
    CheckShape(!weights || weights->shape(0) == count, "weights [L] are needed");
  }

  void CheckPlaces(const TablePlaces& places, const TensorView& values) const {
    CheckShape(places.tables.size() == batch_.num_tables(), "places of each table are needed");
    CheckShape(values.shape(0) == batch_.num_examples() && values.shape(1) == places.width,
               kMatrix);
    for (size_t table = 0; table < places.tables.size(); ++table) {
      const auto num_features = static_cast<int64_t>(places.tables[table].columns.size());
      CheckShape(batch_.rows(table)->layout().dim == places.dims[table] &&
                     batch_.num_bags(table) == num_features * batch_.num_examples(),
                 "places of each feature are needed");
    }
  }
  void CheckDim(size_t table, const RowOverlay* overlay) const {
    CheckShape(overlay == nullptr || overlay->dim() == batch_.rows(table)->layout().dim,
               "rows of the table's dim are needed");
  }
  // The learning rate of each table, by its name.
  void ReadRates(const nb::dict& rates) {
    rates_.resize(batch_.num_tables());
    for (size_t table = 0; table < rates_.size(); ++table) {
      PyObject* const name = nb::handle(names_[table]).ptr();
      PyObject* const rate = PyDict_GetItemWithError(rates.ptr(), name);
      if (rate == nullptr && PyErr_Occurred() == nullptr) PyErr_SetObject(PyExc_KeyError, name);
      const double value = rate == nullptr ? -1.0 : PyFloat_AsDouble(rate);
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      rates_[table] = static_cast<float>(value);
    }
  }

  bool IsWhole() const {
    for (size_t table = 0; table < batch_.num_tables(); ++table) {
      if (batch_.num_missing(table) > 0) return false;
      if (batch_.is_refused(table)) return false;
    }
    return true;
  }
  std::pair<int64_t, int64_t> Culprit() const {
    for (size_t table = 0; table < batch_.num_tables(); ++table) {
      if (batch_.culprit(table) >= 0) return {static_cast<int64_t>(table), batch_.culprit(table)};
    }
    return {-1, -1};
  }

  TableBatch batch_;
  const nb::tuple names_;
  Kept kept_;
  int64_t num_keys_ = 0;      // taken
  std::vector<float> rates_;  // of the last step
};

// The plan of a table's keys, which keeps the batch alive.
nb::object PlanOf(nb::handle batch, TableRows* rows) {
  constexpr auto kPolicy = nb::rv_policy::reference_internal;
  if (auto* own = dynamic_cast<DramRows*>(rows)) return nb::cast(own->plan(), kPolicy, batch);
  auto* own = dynamic_cast<GpuRows*>(rows);
  CheckShape(own != nullptr, "rows of a cache are needed");
  return nb::cast(own->plan(), kPolicy, batch);
}

template <class Value>
auto Copy(const Value* values, int64_t count) {
  NewVector<Value> copy(static_cast<size_t>(count));
  std::copy_n(values, count, copy.data.get());
  return copy.Give();
}

template <class Value>
auto ForTables(Value (*value)(TableBatch*, size_t)) {
  return [value](Handle& handle) {
    TableBatch* batch = handle.batch();
    std::vector<Value> values;
    for (size_t table = 0; table < batch->num_tables(); ++table) {
      values.push_back(value(batch, table));
    }
    return values;
  };
}

void BindOverlay(nb::module_& module) {
  nb::class_<RowOverlay>(module, "RowOverlay")
      .def(nb::new_([](const Keys& keys, const Matrix<const float>& rows) {
             CheckShape(rows.shape(0) == keys.size() && rows.shape(1) > 0,
                        "rows [keys, dim] are needed");
             const nb::gil_scoped_release unlocked;
             return std::make_unique<RowOverlay>(keys.data(), static_cast<int64_t>(keys.size()),
                                                 rows.data(), static_cast<int32_t>(rows.shape(1)));
           }),
           "keys"_a.noconvert(), "rows"_a.noconvert())
      .def(
          "write_over",
          [](const RowOverlay& overlay, const Keys& keys, const Matrix<float>& rows) {
            CheckShape(
                rows.shape(0) == keys.size() && rows.shape(1) == static_cast<size_t>(overlay.dim()),
                "rows [keys, dim] are needed");
            return overlay.WriteOver(keys.data(), static_cast<int64_t>(keys.size()), rows.data());
          },
          "keys"_a.noconvert(), "rows"_a.noconvert())
      .def_prop_ro("dim", &RowOverlay::dim);
}

void BindPlacesAndCounts(nb::module_& module) {
  nb::class_<TablePlaces>(module, "TablePlaces")
      .def(nb::new_(&MakePlaces), "dims"_a, "are_means"_a, "columns"_a, "features"_a, "width"_a);
  nb::class_<TableCounts>(module, "TableCounts")
      .def(nb::init<size_t>(), "num_tables"_a)
      .def(
          "steps", [](const TableCounts& counts, size_t table) { return counts.steps.at(table); },
          "table"_a)
      .def("take", [](TableCounts& counts) {
        std::vector<std::pair<int64_t, double>> taken;
        for (size_t table = 0; table < counts.hits.size(); ++table) {
          taken.emplace_back(std::exchange(counts.hits[table], 0),
                             std::exchange(counts.seconds[table], 0.0));
        }
        return taken;
      });
}

}  // namespace

void BindTableBatch(nb::module_& module) {
  BindPlacesAndCounts(module);
  BindOverlay(module);
  nb::class_<Handle>(module, "TableBatch")
      .def(nb::init<const nb::list&, TableCounts*, const nb::tuple&>(), "caches"_a, "counts"_a,
           "names"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("take_parts", &Handle::TakeParts, "features"_a, "num_examples"_a)
      .def("take_joint", &Handle::TakeJoint, "keys"_a, "offsets"_a, "weights"_a.none(), "places"_a,
           "num_examples"_a)
      .def("pull", &Handle::Pull, "places"_a, "out"_a)
      .def("hold", &Handle::Hold)
      .def("find", &Handle::Find)
      .def("pool", &Handle::Pool, "places"_a, "out"_a)
      .def("lay_over", &Handle::LayOver, "overlays"_a, "places"_a, "out"_a)
      .def("pool_over", &Handle::PoolOver, "table"_a, "overlay"_a, "values"_a.noconvert(),
           "places"_a, "out"_a)
      .def("step", &Handle::Step, "places"_a, "grads"_a, "rates"_a, "labels"_a.noconvert().none(),
           "deciding"_a.none(), "applied"_a.none())
      .def("release", &Handle::Release)
      .def(
          "plan",
          [](nb::handle_t<Handle> self, size_t table) {
            return PlanOf(self, nb::cast<Handle&>(self).batch_with(table)->rows(table));
          },
          "table"_a)
      .def(
          "keys",
          [](Handle& handle, size_t table) {
            TableBatch* batch = handle.taken_with(table);
            CheckShape(batch->rows(table)->num_occurrences() == batch->num_keys(table),
                       "keys that were taken, and not refused, are needed");
            return Copy(batch->keys(table), batch->num_keys(table));
          },
          "table"_a)
      .def(
          "offsets",
          [](Handle& handle, size_t table) {
            TableBatch* batch = handle.taken_with(table);
            return Copy(batch->offsets(table), batch->num_bags(table) + 1);
          },
          "table"_a)
      .def(
          "weights",
          [](Handle& handle, size_t table) -> nb::object {
            TableBatch* batch = handle.taken_with(table);
            if (batch->weights(table) == nullptr) return nb::none();
            return nb::cast(Copy(batch->weights(table), batch->num_keys(table)));
          },
          "table"_a)
      .def_prop_ro("num_keys", ForTables<int64_t>([](TableBatch* batch, size_t table) {
                     return batch->num_keys(table);
                   }))
      .def_prop_ro("num_missing", ForTables<int64_t>([](TableBatch* batch, size_t table) {
                     return batch->num_missing(table);
                   }))
      .def_prop_ro("are_refused", ForTables<bool>([](TableBatch* batch, size_t table) {
                     return batch->is_refused(table);
                   }))
      .def(
          "take_back_hits",
          [](Handle& handle, size_t table) { handle.batch_with(table)->TakeBackHits(table); },
          "table"_a);
}

}  // namespace hps
