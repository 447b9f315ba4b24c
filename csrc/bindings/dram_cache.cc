// hps._C.DramCache, BatchPlan, ThreadPool: numpy arrays in, verbs of csrc/dram_cache out.
//
// Every array argument is refused unless it has exactly the dtype and layout named: a silent copy
// would be a silent loss of what was written to it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "bindings/admission.h"
#include "bindings/bind.h"
#include "bindings/row_cache.h"
#include "common/hash.h"
#include "dram_cache/dram_cache.h"
#include "optimizer/safe_gradient.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hps {
namespace {

std::unique_ptr<DramCache> MakeCache(ThreadPool* pool, const std::string& optimizer_kind,
                                     const std::vector<double>& hyperparameters, int64_t dim,
                                     int64_t capacity_bytes, const std::string& instruction_set,
                                     const std::string& initializer_kind,
                                     std::pair<double, double> initializer_numbers, uint64_t stream,
                                     bool statistics, bool narrow, const std::string& rounding,
                                     float more_shows, bool packed) {
  DramCacheOptions options;
  options.layout = {ParseOptimizer(optimizer_kind), dim, statistics, narrow};
  options.rounding = ParseRounding(rounding);
  options.more_shows = more_shows;
  options.is_packed = packed;
  options.numbers = ParseNumbers(options.layout.kind, hyperparameters);
  options.initializer = ParseInitializer(initializer_kind, initializer_numbers, stream);
  options.capacity_bytes = capacity_bytes;
  options.instruction_set = instruction_set;
  std::unique_ptr<DramCache> cache;
  ThrowIfError(DramCache::Open(options, pool, &cache));
  return cache;
}

struct DramKind {
  using Cache = DramCache;
  using Plan = BatchPlan;

  static uint8_t* Victims(Plan& plan) { return plan.victims.data(); }
  static int64_t NumVictims(const Plan& plan) { return plan.num_victims; }
  static uint64_t* MissingKeys(Plan& plan) { return plan.missing_keys.data(); }
  static int64_t Pull(Cache* cache, const uint64_t* keys, int64_t count, Plan* plan, float* out) {
    return cache->Pull(keys, count, plan, {out, cache->layout().dim});
  }
  static void Gather(Cache* cache, Plan* plan, float* out) {
    cache->Gather(plan, {out, cache->layout().dim});
  }
  static void SetOccurrences(Plan* plan, const uint32_t* shows, const uint32_t* clicks) {
    plan->ForWorkersInTurn(
        [&](WorkerBatch* worker) { hps::SetOccurrences(shows, clicks, worker); });
  }
  static void CopyFreshKeys(Plan* plan, uint64_t* keys) {
    plan->ForWorkersInTurn([&](WorkerBatch* worker) {
      keys = std::copy_n(worker->fresh_keys, worker->num_listed, keys);
    });
  }
  static void ReadRows(Cache* cache, Plan* plan, uint8_t* rows) { cache->ReadRows(plan, rows); }
  static void Contains(Cache* cache, const uint64_t* keys, int64_t count, uint8_t* presence) {
    for (int64_t i = 0; i < count; ++i)
      presence[i] = static_cast<uint8_t>(cache->Contains(keys[i]));
  }
};

void CheckHere(const DramCache& cache, const nb::ndarray<>& rows, size_t count, size_t flags) {
  const auto row_bytes = static_cast<size_t>(cache.layout().row_bytes());
  CheckShape(rows.shape(0) == count && flags == count && rows.shape(1) == row_bytes,
             "uint8 rows [n, row_bytes] and a flag of each are needed");
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

nb::dict LayoutOf(const std::string& kind, int64_t dim, bool statistics, bool narrow) {
  const RowLayout layout{ParseOptimizer(kind), dim, statistics, narrow};
  nb::dict fields;
  fields["row_bytes"] = layout.row_bytes();
  fields["header_bytes"] = layout.header_bytes();
  fields["state_floats"] = layout.state_floats();
  fields["header_scalars"] = layout.header_scalars();
  fields["state_vectors"] = layout.state_vectors();
  return fields;
}

// True if every found one of row images [n, row_bytes] is tame (optimizer/safe_gradient.h).
bool ImagesAreTame(const std::string& kind, int64_t dim, Matrix<const uint8_t> images,
                   Vector<const uint8_t> found, bool statistics, bool narrow) {
  const RowLayout layout{ParseOptimizer(kind), dim, statistics, narrow};
  CheckShape(
      images.shape(1) == static_cast<size_t>(layout.row_bytes()) && images.shape(0) == found.size(),
      "images [n, row_bytes] and found [n] are needed");
  const nb::gil_scoped_release unlocked;
  return AreTame(layout, images.data(), static_cast<int64_t>(found.size()), found.data());
}

// What a launcher of the device's kernels needs to know of a learning rate.
uint32_t SafeBitsOf(const std::string& kind, const std::vector<double>& hyperparameters,
                    const std::string& initializer_kind,
                    std::pair<double, double> initializer_numbers, float lr) {
  const OptimizerKind optimizer = ParseOptimizer(kind);
  return SafeGradientBits(optimizer, ParseNumbers(optimizer, hyperparameters),
                          ParseInitializer(initializer_kind, initializer_numbers, 0), lr);
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

// Rows by key, without a plan.
void BindRowsHere(nb::class_<DramCache>* cls) {
  cls->def(
         "read_here",
         [](DramCache& cache, Keys keys, Matrix<uint8_t> rows, Vector<uint8_t> found) {
           CheckHere(cache, nb::ndarray<>(rows), keys.size(), found.size());
           const nb::gil_scoped_release unlocked;
           const RowsHere here = cache.ReadHere(keys.data(), static_cast<int64_t>(keys.size()),
                                                rows.data(), found.data());
           return std::make_pair(here.num_rows, here.num_pinned);
         },
         "keys"_a.noconvert(), "rows"_a.noconvert(), "found"_a.noconvert())
      .def(
          "write_here",
          [](DramCache& cache, Matrix<const uint8_t> rows, Vector<uint8_t> done) {
            CheckHere(cache, nb::ndarray<>(rows), rows.shape(0), done.size());
            const nb::gil_scoped_release unlocked;
            return cache.WriteHere(rows.data(), static_cast<int64_t>(done.size()), done.data());
          },
          "rows"_a.noconvert(), "done"_a.noconvert());
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
          "initializer_numbers"_a, "stream"_a, "statistics"_a = false, "narrow"_a = false,
          "rounding"_a = "nearest", "more_shows"_a = 0.0f, "packed"_a = false,
          nb::keep_alive<0, 2>());
  RowCacheBinding<DramKind>::Bind(&cls);
  BindAdmission<DramKind>(&cls);
  cls.def(
      "assign_here",  // keeps Python's lock: few keys are given
      [](DramCache& cache, Keys keys, Matrix<const float> rows, float lr) {
        CheckShape(rows.shape(0) == keys.size() &&
                       rows.shape(1) == static_cast<size_t>(cache.layout().dim),
                   "rows [keys, dim] are needed");
        NewVector<uint8_t> done(keys.size());
        cache.AssignHere(keys.data(), static_cast<int64_t>(keys.size()), rows.data(), lr,
                         done.data.get());
        return done.Give();
      },
      "keys"_a.noconvert(), "rows"_a.noconvert(), "lr"_a);
  BindRowsHere(&cls);
  cls.def(
         "expect",
         [](DramCache* cache, int64_t num_rows) {
           const nb::gil_scoped_release unlocked;
           cache->Expect(num_rows);
         },
         "num_rows"_a)
      .def_prop_ro("num_growths", &DramCache::num_growths)
      .def("stats", &Stats)
      .def_prop_ro("instruction_set", &DramCache::instruction_set)
      .def_prop_ro("num_rows", &DramCache::num_rows)
      .def_prop_ro("num_fresh", &DramCache::num_fresh)
      .def_prop_ro("num_created", &DramCache::num_created)
      .def_prop_ro("num_dirty", &DramCache::num_dirty)
      .def_prop_ro("pins", &DramCache::num_pins);
  module.def(
      "copy_by_bag",
      [](ThreadPool& pool, Matrix<const float> gradients, Matrix<float> out) {
        const size_t num_examples = gradients.shape(0), dim = out.shape(1);
        CheckShape(gradients.size() == out.size() && dim > 0 && gradients.shape(1) % dim == 0,
                   "gradients [B, F * dim] and out [F * B, dim] are needed");
        nb::gil_scoped_release unlocked;
        CopyByBag(gradients.data(), static_cast<int64_t>(num_examples),
                  static_cast<int64_t>(gradients.shape(1) / dim), static_cast<int64_t>(dim), &pool,
                  out.data());
      },
      "pool"_a, "grads"_a.noconvert(), "out"_a.noconvert());
  module.def("row_layout", &LayoutOf, "kind"_a, "dim"_a, "statistics"_a = false,
             "narrow"_a = false);
  module.def("digest_rows", &DigestRows, "rows"_a.noconvert());
  module.attr("MAX_PERIOD") = kMostPeriod;
  module.attr("TAME_FIRST_MOMENT") = kTameFirstMoment;
  module.attr("TAME_FTRL_WEIGHT") = kTameFtrlWeight;
  module.attr("TAME_FTRL_LINEAR") = kTameFtrlLinear;
  module.def("are_tame", &ImagesAreTame, "kind"_a, "dim"_a, "images"_a.noconvert(),
             "found"_a.noconvert(), "statistics"_a = false, "narrow"_a = false);
  module.def("safe_gradient_bits", &SafeBitsOf, "optimizer_kind"_a, "hyperparameters"_a,
             "initializer_kind"_a, "initializer_numbers"_a, "lr"_a);
}

}  // namespace hps
