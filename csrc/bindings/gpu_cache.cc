// hps._C.GpuCache and GpuPlan: the host build of gpu_cache, numpy arrays in, verbs of
// csrc/gpu_cache out.
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
#include "gpu_cache/gpu_cache.h"

using namespace nb::literals;

namespace hps {
namespace {

using Unlocked = nb::call_guard<nb::gil_scoped_release>;

std::unique_ptr<GpuCache> MakeCache(ThreadPool* pool, const std::string& optimizer_kind,
                                    const std::vector<double>& hyperparameters, int64_t dim,
                                    int64_t capacity_bytes, const std::string& initializer_kind,
                                    std::pair<double, double> initializer_numbers,
                                    uint64_t stream) {
  GpuCacheOptions options;
  options.layout = {ParseOptimizer(optimizer_kind), dim};
  options.numbers = ParseNumbers(options.layout.kind, hyperparameters);
  options.initializer = ParseInitializer(initializer_kind, initializer_numbers, stream);
  options.capacity_bytes = capacity_bytes;
  std::unique_ptr<GpuCache> cache;
  ThrowIfError(GpuCache::Open(options, HostLauncher(pool), &cache));
  return cache;
}

void CheckRows(const GpuCache& cache, const nb::ndarray<>& rows, int64_t count) {
  CheckShape(rows.shape(0) == static_cast<size_t>(count) &&
                 rows.shape(1) == static_cast<size_t>(cache.layout().dim),
             "a float32 array [occurrences of the plan, dim] is needed");
}

void CheckImages(const GpuCache& cache, const nb::ndarray<>& images, int64_t count) {
  CheckShape(images.shape(0) == static_cast<size_t>(count) &&
                 images.shape(1) == static_cast<size_t>(cache.layout().row_bytes()),
             "a uint8 array [rows, row_bytes] of as many rows is needed");
}

nb::dict Stats(const GpuCache& cache) {
  nb::dict stats;
  stats["hits"] = cache.count(kCountHits);
  stats["misses"] = cache.count(kCountMisses);
  stats["evictions"] = cache.count(kCountEvictions);
  stats["write_backs"] = cache.count(kCountWriteBacks);
  stats["refusals"] = cache.count(kCountRefusals);
  stats["second_bucket"] = cache.count(kCountSecondBucket);
  stats["rows"] = cache.count(kCountRows);
  stats["fresh"] = cache.count(kCountFresh);
  stats["dirty"] = cache.count(kCountDirty);
  stats["pins"] = cache.count(kCountPins);
  stats["bytes"] = cache.memory_bytes();
  stats["capacity_rows"] = cache.shape().num_slots();
  return stats;
}

void BindPlan(nb::module_& module) {
  nb::class_<GpuPlan>(module, "GpuPlan")
      .def(nb::init<>())
      .def_prop_ro("num_occurrences", &GpuPlan::num_occurrences)
      .def_prop_ro("num_unique", &GpuPlan::num_unique)
      .def_prop_ro("num_looked_up", &GpuPlan::num_unique)
      .def_prop_ro("num_missing", &GpuPlan::num_missing)
      .def_prop_ro(
          "unique_keys",
          [](const GpuPlan& plan) {
            const auto count = static_cast<size_t>(plan.num_unique());
            NewVector<uint64_t> keys(count);
            std::copy_n(plan.unique_keys(), count, keys.data.get());
            return keys.Give();
          },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "slots",
          [](const GpuPlan& plan) {
            const auto count = static_cast<size_t>(plan.num_unique());
            NewVector<int64_t> slots(count);
            std::copy_n(plan.batch().slots, count, slots.data.get());
            return slots.Give();
          },
          nb::rv_policy::automatic)
      .def(
          "matches",
          [](const GpuPlan& plan, Keys keys) {
            return plan.Matches(keys.data(), static_cast<int64_t>(keys.size()));
          },
          "keys"_a.noconvert());
}

void BindBatchVerbs(nb::class_<GpuCache>& cls) {
  cls.def(
         "make_plan",
         [](GpuCache& cache, Keys keys, std::optional<nb::handle_t<GpuPlan>> given) {
           nb::object plan = given ? nb::borrow(*given) : nb::cast(std::make_unique<GpuPlan>());
           auto& target = nb::cast<GpuPlan&>(plan);
           nb::gil_scoped_release unlocked;
           cache.MakePlan(keys.data(), static_cast<int64_t>(keys.size()), &target);
           return plan;
         },
         "keys"_a.noconvert(), "plan"_a.none() = nb::none())
      .def(
          "pull",
          [](GpuCache& cache, GpuPlan& plan, Keys keys, Matrix<float> out) {
            const auto count = static_cast<int64_t>(keys.size());
            CheckRows(cache, nb::ndarray<>(out), count);
            nb::gil_scoped_release unlocked;
            return cache.Pull(keys.data(), count, &plan, out.data());
          },
          "plan"_a, "keys"_a.noconvert(), "out"_a.noconvert())
      .def("find", &GpuCache::Find, "plan"_a, "first"_a, "count"_a, Unlocked())
      .def("reserve", &GpuCache::Reserve, "plan"_a, Unlocked())
      .def("cancel", &GpuCache::Cancel, "plan"_a, Unlocked())
      .def("abandon", &GpuCache::Abandon, "plan"_a, Unlocked())
      .def("release", &GpuCache::Release, "plan"_a, Unlocked())
      .def("is_current", &GpuCache::IsCurrent, "plan"_a)
      .def(
          "victims",
          [](const GpuCache& cache, nb::handle_t<GpuPlan> handle) {
            auto& plan = nb::cast<GpuPlan&>(handle);
            return View(plan.victims(),
                        {static_cast<size_t>(plan.num_victims()),
                         static_cast<size_t>(cache.layout().row_bytes())},
                        handle);
          },
          "plan"_a)
      .def(
          "missing_keys",
          [](const GpuCache&, nb::handle_t<GpuPlan> handle) {
            auto& plan = nb::cast<GpuPlan&>(handle);
            return View(plan.missing_keys(), {static_cast<size_t>(plan.num_missing())}, handle);
          },
          "plan"_a)
      .def(
          "fill",
          [](GpuCache& cache, GpuPlan& plan, Matrix<const uint8_t> rows,
             Vector<const uint8_t> found, float lr, bool create) {
            CheckImages(cache, nb::ndarray<>(rows), plan.num_missing());
            CheckShape(found.size() == rows.shape(0), "found [missing] is needed");
            nb::gil_scoped_release unlocked;
            cache.Fill(&plan, rows.data(), found.data(), lr, create);
          },
          "plan"_a, "rows"_a.noconvert(), "found"_a.noconvert(), "lr"_a, "create"_a);
}

void BindMoves(nb::class_<GpuCache>& cls) {
  cls.def(
         "gather",
         [](GpuCache& cache, GpuPlan& plan, Matrix<float> out) {
           CheckRows(cache, nb::ndarray<>(out), plan.num_occurrences());
           nb::gil_scoped_release unlocked;
           cache.Gather(plan, out.data());
         },
         "plan"_a, "out"_a.noconvert())
      .def(
          "pool",
          [](GpuCache& cache, GpuPlan& plan, Vector<const int64_t> offsets,
             std::optional<Vector<const float>> weights, bool mean, Matrix<float> out) {
            const auto width = static_cast<size_t>(cache.layout().dim);
            const size_t num_features = out.shape(1) / width;
            const auto num_occurrences = static_cast<size_t>(plan.num_occurrences());
            CheckShape(out.shape(1) % width == 0 &&
                           offsets.size() == out.shape(0) * num_features + 1 &&
                           (!weights || weights->size() == num_occurrences),
                       "out [B, F * dim], offsets [F * B + 1] and weights [L] are needed");
            const BagsView bags = {offsets.data(), weights ? weights->data() : nullptr,
                                   static_cast<int64_t>(out.shape(0)),
                                   static_cast<int64_t>(num_features), mean};
            nb::gil_scoped_release unlocked;
            cache.Pool(plan, bags, out.data());
          },
          "plan"_a, "offsets"_a.noconvert(), "weights"_a.noconvert().none(), "mean"_a,
          "out"_a.noconvert())
      .def(
          "read_rows",
          [](GpuCache& cache, GpuPlan& plan, Matrix<uint8_t> images) {
            CheckImages(cache, nb::ndarray<>(images), plan.window_size());
            nb::gil_scoped_release unlocked;
            cache.ReadRows(plan, images.data());
          },
          "plan"_a, "images"_a.noconvert())
      .def(
          "write_rows",
          [](GpuCache& cache, GpuPlan& plan, Matrix<const uint8_t> images) {
            CheckImages(cache, nb::ndarray<>(images), plan.window_size());
            nb::gil_scoped_release unlocked;
            cache.WriteRows(plan, images.data());
          },
          "plan"_a, "images"_a.noconvert());
}

void BindUpdates(nb::class_<GpuCache>& cls) {
  cls.def("create", &GpuCache::Create, "plan"_a, "lr"_a, Unlocked())
      .def("apply", &GpuCache::Apply, "plan"_a, "lr"_a, Unlocked())
      .def(
          "sum_gradients",
          [](GpuCache& cache, GpuPlan& plan, Matrix<const float> gradients) {
            CheckRows(cache, nb::ndarray<>(gradients), plan.num_occurrences());
            nb::gil_scoped_release unlocked;
            return cache.SumGradients(&plan, gradients.data());
          },
          "plan"_a, "grads"_a.noconvert())
      .def(
          "push",
          [](GpuCache& cache, GpuPlan& plan, Matrix<const float> gradients, float lr) {
            CheckRows(cache, nb::ndarray<>(gradients), plan.num_occurrences());
            nb::gil_scoped_release unlocked;
            const int64_t worst = cache.SumGradients(&plan, gradients.data());
            if (worst < 0) cache.Apply(&plan, lr);
            return worst;
          },
          "plan"_a, "grads"_a.noconvert(), "lr"_a)
      .def(
          "assign",
          [](GpuCache& cache, GpuPlan& plan, Matrix<const float> rows,
             std::optional<Matrix<const float>> state, float lr) {
            CheckRows(cache, nb::ndarray<>(rows), plan.num_occurrences());
            if (state) {
              const auto width = static_cast<size_t>(cache.layout().state_floats());
              CheckShape(state->shape(0) == rows.shape(0) && state->shape(1) == width,
                         "state must be [occurrences of the plan, state_floats]");
            }
            nb::gil_scoped_release unlocked;
            cache.Assign(&plan, rows.data(), state ? state->data() : nullptr, lr);
          },
          "plan"_a, "rows"_a.noconvert(), "state"_a.noconvert().none(), "lr"_a);
}

void BindRows(nb::class_<GpuCache>& cls) {
  cls.def(
         "contains",
         [](GpuCache& cache, Keys keys) {
           NewVector<uint8_t> presence(keys.size());
           {
             nb::gil_scoped_release unlocked;
             cache.Contains(keys.data(), static_cast<int64_t>(keys.size()), presence.data.get());
           }
           return presence.Give();
         },
         "keys"_a.noconvert())
      .def(
          "erase",
          [](GpuCache& cache, Keys keys) {
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
          [](GpuCache& cache, int64_t cursor, const std::string& what, Matrix<uint8_t> rows) {
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
          [](GpuCache& cache, Keys keys, Matrix<float> out) {
            const auto count = static_cast<int64_t>(keys.size());
            CheckRows(cache, nb::ndarray<>(out), count);
            nb::gil_scoped_release unlocked;
            cache.InitialWeights(keys.data(), count, out.data());
          },
          "keys"_a.noconvert(), "out"_a.noconvert())
      .def("mark_clean", &GpuCache::MarkClean, "first_cursor"_a, "end_cursor"_a, Unlocked())
      .def("clear", &GpuCache::Clear, Unlocked())
      .def("stats", &Stats);
}

template <CacheCounter kCounter>
int64_t CountIn(const GpuCache& cache) {
  return cache.count(kCounter);
}

void BindProperties(nb::class_<GpuCache>& cls) {
  cls.def_prop_ro("capacity_rows", [](const GpuCache& cache) { return cache.shape().num_slots(); })
      .def_prop_ro("row_bytes", [](const GpuCache& cache) { return cache.layout().row_bytes(); })
      .def_prop_ro("dim", [](const GpuCache& cache) { return cache.layout().dim; })
      .def_prop_ro("state_floats",
                   [](const GpuCache& cache) { return cache.layout().state_floats(); })
      .def_prop_ro("memory_bytes", &GpuCache::memory_bytes)
      .def_prop_ro("device", [](const GpuCache&) { return "cpu"; })
      .def_prop_ro("has_pool", [](const GpuCache&) { return true; })
      .def_prop_ro("num_buckets", [](const GpuCache& cache) { return cache.shape().num_buckets(); })
      .def_prop_ro("num_parts", [](const GpuCache& cache) { return cache.shape().num_parts; })
      .def_prop_ro("epoch", &GpuCache::epoch)
      .def_prop_ro("num_rows", &CountIn<kCountRows>)
      .def_prop_ro("num_fresh", &CountIn<kCountFresh>)
      .def_prop_ro("num_created", &CountIn<kCountCreated>)
      .def_prop_ro("num_dirty", &CountIn<kCountDirty>)
      .def_prop_ro("pins", &CountIn<kCountPins>);
}

}  // namespace

void BindGpuCache(nb::module_& module) {
  BindPlan(module);
  nb::class_<GpuCache> cls(module, "GpuCache");
  cls.def(nb::new_(&MakeCache), nb::kw_only(), "pool"_a, "optimizer_kind"_a, "hyperparameters"_a,
          "dim"_a, "capacity_bytes"_a, "initializer_kind"_a, "initializer_numbers"_a, "stream"_a,
          nb::keep_alive<0, 2>());
  BindProperties(cls);
  BindBatchVerbs(cls);
  BindMoves(cls);
  BindUpdates(cls);
  BindRows(cls);
}

}  // namespace hps
