// hps._C.DramCache, BatchPlan, ThreadPool: numpy arrays in, verbs of csrc/dram_cache out.
//
// Every array argument is refused unless it has exactly the dtype and layout named: a silent copy
// would be a silent loss of what was written to it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "bindings/bind.h"
#include "bindings/cache_options.h"
#include "bindings/translate.h"
#include "common/hash.h"
#include "dram_cache/dram_cache.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hps {
namespace {

using Unlocked = nb::call_guard<nb::gil_scoped_release>;

std::unique_ptr<DramCache> MakeCache(ThreadPool* pool, const std::string& optimizer_kind,
                                     const std::vector<double>& hyperparameters, int64_t dim,
                                     int64_t capacity_bytes, const std::string& instruction_set,
                                     const std::string& initializer_kind,
                                     std::pair<double, double> initializer_numbers,
                                     uint64_t stream) {
  DramCacheOptions options;
  options.layout = {ParseOptimizer(optimizer_kind), dim};
  options.numbers = ParseNumbers(options.layout.kind, hyperparameters);
  options.initializer = ParseInitializer(initializer_kind, initializer_numbers, stream);
  options.capacity_bytes = capacity_bytes;
  options.instruction_set = instruction_set;
  std::unique_ptr<DramCache> cache;
  ThrowIfError(DramCache::Open(options, pool, &cache));
  return cache;
}

int64_t RowsOf(const DramCache& cache, const nb::ndarray<>& rows, size_t count) {
  CheckShape(rows.shape(0) == count && rows.shape(1) == static_cast<size_t>(cache.layout().dim),
             "a float32 array [occurrences of the plan, dim] is needed");
  return static_cast<int64_t>(count);
}

nb::dict Stats(const DramCache& cache) {
  const DramCacheCounters& counters = cache.counters();
  nb::dict stats;
  stats["hits"] = counters.hits;
  stats["misses"] = counters.misses;
  stats["evictions"] = counters.evictions;
  stats["write_backs"] = counters.write_backs;
  stats["refusals"] = counters.refusals;
  stats["second_bucket"] = counters.second_bucket;
  stats["spared"] = counters.spared;
  stats["rows"] = cache.num_rows();
  stats["fresh"] = cache.num_fresh();
  stats["dirty"] = cache.num_dirty();
  stats["pins"] = cache.num_pins();
  stats["bytes"] = cache.memory_bytes();
  stats["capacity_rows"] = cache.shape().num_slots();
  return stats;
}

void BindPlan(nb::module_& module) {
  nb::class_<BatchPlan>(module, "BatchPlan")
      .def(nb::init<>())
      .def_prop_ro("num_occurrences", &BatchPlan::num_occurrences)
      .def_prop_ro("num_unique", &BatchPlan::num_unique)
      .def_prop_ro("num_looked_up", &BatchPlan::num_looked_up)
      .def_prop_ro("num_missing", &BatchPlan::num_missing)
      .def_prop_ro(
          "unique_keys",
          [](const BatchPlan& plan) {
            NewVector<uint64_t> keys(static_cast<size_t>(plan.num_unique()));
            plan.CopyUniqueKeys(keys.data.get());
            return keys.Give();
          },
          nb::rv_policy::automatic)
      .def(
          "matches",
          [](const BatchPlan& plan, Keys keys) {
            return plan.Matches(keys.data(), static_cast<int64_t>(keys.size()));
          },
          "keys"_a.noconvert());
}

void BindBatchVerbs(nb::class_<DramCache>& cls) {
  cls.def(
         "make_plan",
         [](DramCache& cache, Keys keys, std::optional<nb::handle_t<BatchPlan>> given) {
           nb::object plan = given ? nb::borrow(*given) : nb::cast(std::make_unique<BatchPlan>());
           auto& target = nb::cast<BatchPlan&>(plan);
           nb::gil_scoped_release unlocked;
           cache.MakePlan(keys.data(), static_cast<int64_t>(keys.size()), &target);
           return plan;
         },
         "keys"_a.noconvert(), "plan"_a.none() = nb::none())
      .def(
          "pull",
          [](DramCache& cache, BatchPlan& plan, Keys keys, Matrix<float> out) {
            RowsOf(cache, nb::ndarray<>(out), keys.size());
            nb::gil_scoped_release unlocked;
            return cache.Pull(keys.data(), static_cast<int64_t>(keys.size()), &plan, out.data());
          },
          "plan"_a, "keys"_a.noconvert(), "out"_a.noconvert())
      .def(
          "find",
          [](DramCache& cache, BatchPlan& plan, int64_t first, int64_t count) {
            cache.Find(&plan, first, count);
          },
          "plan"_a, "first"_a, "count"_a, Unlocked())
      .def("want", &DramCache::Want, "plan"_a, Unlocked())
      .def("reserve", &DramCache::Reserve, "plan"_a, Unlocked())
      .def("cancel", &DramCache::Cancel, "plan"_a, Unlocked())
      .def("abandon", &DramCache::Abandon, "plan"_a, Unlocked())
      .def("release", &DramCache::Release, "plan"_a, Unlocked())
      .def("is_current", &DramCache::IsCurrent, "plan"_a)
      .def(
          "victims",
          [](const DramCache& cache, nb::handle_t<BatchPlan> handle) {
            auto& plan = nb::cast<BatchPlan&>(handle);
            return View(plan.victims.data(),
                        {static_cast<size_t>(plan.num_victims),
                         static_cast<size_t>(cache.layout().row_bytes())},
                        handle);
          },
          "plan"_a)
      .def(
          "missing_keys",
          [](const DramCache&, nb::handle_t<BatchPlan> handle) {
            auto& plan = nb::cast<BatchPlan&>(handle);
            return View(plan.missing_keys.data(), {static_cast<size_t>(plan.num_missing())},
                        handle);
          },
          "plan"_a)
      .def(
          "fill",
          [](DramCache& cache, BatchPlan& plan, Matrix<const uint8_t> rows,
             Vector<const uint8_t> found, float lr, bool create) {
            const auto missing = static_cast<size_t>(plan.num_missing());
            CheckShape(found.size() == missing && rows.shape(0) == missing &&
                           rows.shape(1) == static_cast<size_t>(cache.layout().row_bytes()),
                       "rows [missing, row_bytes] and found [missing] are needed");
            nb::gil_scoped_release unlocked;
            cache.Fill(&plan, rows.data(), found.data(), lr, create);
          },
          "plan"_a, "rows"_a.noconvert(), "found"_a.noconvert(), "lr"_a, "create"_a)
      .def(
          "gather",
          [](DramCache& cache, BatchPlan& plan, Matrix<float> out) {
            RowsOf(cache, nb::ndarray<>(out), static_cast<size_t>(plan.num_occurrences()));
            nb::gil_scoped_release unlocked;
            cache.Gather(&plan, out.data());
          },
          "plan"_a, "out"_a.noconvert());
}

void BindUpdates(nb::class_<DramCache>& cls) {
  cls.def("create", &DramCache::Create, "plan"_a, "lr"_a, Unlocked())
      .def("apply", &DramCache::Apply, "plan"_a, "lr"_a, Unlocked())
      .def(
          "sum_gradients",
          [](DramCache& cache, BatchPlan& plan, Matrix<const float> gradients) {
            RowsOf(cache, nb::ndarray<>(gradients), static_cast<size_t>(plan.num_occurrences()));
            nb::gil_scoped_release unlocked;
            return cache.SumGradients(&plan, gradients.data());
          },
          "plan"_a, "grads"_a.noconvert())
      .def(
          "push",
          [](DramCache& cache, BatchPlan& plan, Matrix<const float> gradients, float lr) {
            RowsOf(cache, nb::ndarray<>(gradients), static_cast<size_t>(plan.num_occurrences()));
            nb::gil_scoped_release unlocked;
            const int64_t worst = cache.SumGradients(&plan, gradients.data());
            if (worst < 0) cache.Apply(&plan, lr);
            return worst;
          },
          "plan"_a, "grads"_a.noconvert(), "lr"_a)
      .def(
          "assign",
          [](DramCache& cache, BatchPlan& plan, Matrix<const float> rows,
             std::optional<Matrix<const float>> state, float lr) {
            const auto count = static_cast<size_t>(plan.num_occurrences());
            RowsOf(cache, nb::ndarray<>(rows), count);
            if (state) {
              const auto width = static_cast<size_t>(cache.layout().state_floats());
              CheckShape(state->shape(0) == count && state->shape(1) == width,
                         "state must be [occurrences of the plan, state_floats]");
            }
            nb::gil_scoped_release unlocked;
            cache.Assign(&plan, rows.data(), state ? state->data() : nullptr, lr);
          },
          "plan"_a, "rows"_a.noconvert(), "state"_a.noconvert().none(), "lr"_a);
}

void BindImages(nb::class_<DramCache>& cls) {
  const auto check = [](const DramCache& cache, const BatchPlan& plan, const nb::ndarray<>& rows) {
    CheckShape(rows.shape(0) == static_cast<size_t>(plan.window_size()) &&
                   rows.shape(1) == static_cast<size_t>(cache.layout().row_bytes()),
               "images uint8 [keys of the window, row_bytes] are needed");
  };
  cls.def(
         "read_rows",
         [check](DramCache& cache, BatchPlan& plan, Matrix<uint8_t> rows) {
           check(cache, plan, nb::ndarray<>(rows));
           nb::gil_scoped_release unlocked;
           cache.ReadRows(&plan, rows.data());
         },
         "plan"_a, "images"_a.noconvert())
      .def(
          "write_rows",
          [check](DramCache& cache, BatchPlan& plan, Matrix<const uint8_t> rows) {
            check(cache, plan, nb::ndarray<>(rows));
            nb::gil_scoped_release unlocked;
            cache.WriteRows(&plan, rows.data());
          },
          "plan"_a, "images"_a.noconvert());
}

void BindRows(nb::class_<DramCache>& cls) {
  cls.def(
         "contains",
         [](const DramCache& cache, Keys keys) {
           NewVector<uint8_t> presence(keys.size());
           {
             nb::gil_scoped_release unlocked;
             for (size_t i = 0; i < keys.size(); ++i) {
               presence.data[i] = static_cast<uint8_t>(cache.Contains(keys.data()[i]));
             }
           }
           return presence.Give();
         },
         "keys"_a.noconvert())
      .def(
          "erase",
          [](DramCache& cache, Keys keys) {
            NewVector<uint8_t> presence(keys.size());
            {
              nb::gil_scoped_release unlocked;
              ThrowIfError(
                  cache.Erase(keys.data(), static_cast<int64_t>(keys.size()), presence.data.get()));
            }
            return presence.Give();
          },
          "keys"_a.noconvert())
      .def(
          "scan",
          [](const DramCache& cache, int64_t cursor, const std::string& what,
             Matrix<uint8_t> rows) {
            CheckShape(rows.shape(1) == static_cast<size_t>(cache.layout().row_bytes()),
                       "rows must be uint8 [n, row_bytes]");
            CheckShape(what == "stored" || what == "dirty", "what must be 'stored' or 'dirty'");
            nb::gil_scoped_release unlocked;
            const int64_t count = cache.Scan(&cursor, what == "dirty",
                                             static_cast<int64_t>(rows.shape(0)), rows.data());
            return std::make_pair(count, cursor);
          },
          "cursor"_a, "what"_a, "rows"_a.noconvert())
      .def(
          "initial_weights",
          [](const DramCache& cache, Keys keys, Matrix<float> out) {
            const int64_t count = RowsOf(cache, nb::ndarray<>(out), keys.size());
            nb::gil_scoped_release unlocked;
            cache.InitialWeights(keys.data(), count, out.data());
          },
          "keys"_a.noconvert(), "out"_a.noconvert())
      .def("mark_clean", &DramCache::MarkClean, "first_cursor"_a, "end_cursor"_a, Unlocked())
      .def("clear", &DramCache::Clear, Unlocked())
      .def("stats", &Stats);
}

void BindProperties(nb::class_<DramCache>& cls) {
  cls.def_prop_ro("capacity_rows", [](const DramCache& cache) { return cache.shape().num_slots(); })
      .def_prop_ro("row_bytes", [](const DramCache& cache) { return cache.layout().row_bytes(); })
      .def_prop_ro("dim", [](const DramCache& cache) { return cache.layout().dim; })
      .def_prop_ro("state_floats",
                   [](const DramCache& cache) { return cache.layout().state_floats(); })
      .def_prop_ro("memory_bytes", &DramCache::memory_bytes)
      .def_prop_ro("has_pool", [](const DramCache&) { return false; })
      .def_prop_ro("instruction_set", &DramCache::instruction_set)
      .def_prop_ro("num_buckets",
                   [](const DramCache& cache) { return cache.shape().num_buckets(); })
      .def_prop_ro("num_parts", [](const DramCache& cache) { return cache.shape().num_parts; })
      .def_prop_ro("epoch", &DramCache::epoch)
      .def_prop_ro("num_rows", &DramCache::num_rows)
      .def_prop_ro("num_fresh", &DramCache::num_fresh)
      .def_prop_ro("num_created", &DramCache::num_created)
      .def_prop_ro("num_dirty", &DramCache::num_dirty)
      .def_prop_ro("pins", &DramCache::num_pins);
}

nb::dict LayoutOf(const std::string& kind, int64_t dim) {
  const RowLayout layout{ParseOptimizer(kind), dim};
  nb::dict fields;
  fields["row_bytes"] = layout.row_bytes();
  fields["state_floats"] = layout.state_floats();
  fields["header_scalars"] = layout.header_scalars();
  fields["state_vectors"] = layout.state_vectors();
  return fields;
}

// Two 64-bit sums over the rows of two seeded hashes of a row's bytes: independent of the order.
std::pair<uint64_t, uint64_t> DigestRows(Matrix<const uint8_t> rows) {
  nb::gil_scoped_release unlocked;
  uint64_t low = 0;
  uint64_t high = 0;
  for (size_t i = 0; i < rows.shape(0); ++i) {
    const uint8_t* row = rows.data() + i * rows.shape(1);
    low += Xxh64(row, rows.shape(1), 0);
    high += Xxh64(row, rows.shape(1), 0x9E3779B97F4A7C15ULL);
  }
  return {low, high};
}

}  // namespace

void BindDramCache(nb::module_& module) {
  nb::class_<ThreadPool>(module, "ThreadPool")
      .def(nb::init<int>(), "num_threads"_a)
      .def_prop_ro("num_threads", &ThreadPool::num_threads);
  BindPlan(module);
  nb::class_<DramCache> cls(module, "DramCache");
  cls.def(nb::new_(&MakeCache), nb::kw_only(), "pool"_a, "optimizer_kind"_a, "hyperparameters"_a,
          "dim"_a, "capacity_bytes"_a, "instruction_set"_a, "initializer_kind"_a,
          "initializer_numbers"_a, "stream"_a, nb::keep_alive<0, 2>());
  BindProperties(cls);
  BindBatchVerbs(cls);
  BindUpdates(cls);
  BindImages(cls);
  BindRows(cls);
  module.def("row_layout", &LayoutOf, "kind"_a, "dim"_a);
  module.def("digest_rows", &DigestRows, "rows"_a.noconvert());
}

}  // namespace hps
