// hps._C.GpuCache and GpuPlan: the host build of gpu_cache, numpy arrays in, verbs of
// csrc/gpu_cache out.
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings/admission.h"
#include "bindings/bind.h"
#include "bindings/row_cache.h"
#include "gpu_cache/gpu_cache.h"

using namespace nb::literals;

namespace hps {
namespace {

std::unique_ptr<GpuCache> MakeCache(ThreadPool* pool, const std::string& optimizer_kind,
                                    const std::vector<double>& hyperparameters, int64_t dim,
                                    int64_t capacity_bytes, const std::string& initializer_kind,
                                    std::pair<double, double> initializer_numbers, uint64_t stream,
                                    bool statistics, bool narrow, const std::string& rounding,
                                    float more_shows) {
  GpuCacheOptions options;
  options.layout = {ParseOptimizer(optimizer_kind), dim, statistics, narrow};
  options.rounding = ParseRounding(rounding);
  options.more_shows = more_shows;
  options.numbers = ParseNumbers(options.layout.kind, hyperparameters);
  options.initializer = ParseInitializer(initializer_kind, initializer_numbers, stream);
  options.capacity_bytes = capacity_bytes;
  std::unique_ptr<GpuCache> cache;
  ThrowIfError(GpuCache::Open(options, HostLauncher(pool), &cache));
  return cache;
}

struct GpuKind {
  using Cache = GpuCache;
  using Plan = GpuPlan;

  static const uint8_t* Victims(const Plan& plan) { return plan.victims(); }
  static int64_t NumVictims(const Plan& plan) { return plan.num_victims(); }
  static const uint64_t* MissingKeys(const Plan& plan) { return plan.missing_keys(); }
  static int64_t Pull(Cache* cache, const uint64_t* keys, int64_t count, Plan* plan, float* out) {
    return cache->Pull(keys, count, plan, out);
  }
  static void Gather(Cache* cache, Plan* plan, float* out) { cache->Gather(*plan, out); }
  static void SetOccurrences(Plan* plan, const uint32_t* shows, const uint32_t* clicks) {
    for (int owner = 0; owner < plan->shares()->num_owners(); ++owner) {
      KeyShare* share = plan->share(owner);
      hps::SetOccurrences(shows, clicks, share);
      for (int64_t i = 0; i < share->num_unique; ++i) {
        const uint32_t id = share->joint_ids[i];
        plan->shows()[id] = share->counts[id];
        if (plan->clicks() != nullptr) plan->clicks()[id] = share->clicks[id];
      }
    }
  }
  static void CopyFreshKeys(Plan* plan, uint64_t* keys) {
    std::copy_n(plan->fresh().keys, plan->num_listed(), keys);
  }
  static void ReadRows(Cache* cache, Plan* plan, uint8_t* rows) { cache->ReadRows(*plan, rows); }
  static void Contains(Cache* cache, const uint64_t* keys, int64_t count, uint8_t* presence) {
    cache->Contains(keys, count, presence);
  }
};

nb::dict Stats(const GpuCache& cache) {
  nb::dict stats;
  stats["hits"] = cache.count(kCountHits);
  stats["misses"] = cache.count(kCountMisses);
  stats["evictions"] = cache.count(kCountEvictions);
  stats["write_backs"] = cache.count(kCountWriteBacks);
  stats["refusals"] = cache.count(kCountRefusals);
  stats["second_bucket"] = cache.count(kCountSecondBucket);
  stats["spared"] = cache.count(kCountSpared);
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

template <CacheCounter kCounter>
int64_t CountIn(const GpuCache& cache) {
  return cache.count(kCounter);
}

}  // namespace

void BindGpuCache(nb::module_& module) {
  BindPlan(module);
  nb::class_<GpuCache> cls(module, "GpuCache");
  cls.def(nb::new_(&MakeCache), nb::kw_only(), "pool"_a, "optimizer_kind"_a, "hyperparameters"_a,
          "dim"_a, "capacity_bytes"_a, "initializer_kind"_a, "initializer_numbers"_a, "stream"_a,
          "statistics"_a = false, "narrow"_a = false, "rounding"_a = "nearest",
          "more_shows"_a = 0.0f, nb::keep_alive<0, 2>());
  RowCacheBinding<GpuKind>::Bind(&cls);
  BindAdmission<GpuKind>(&cls);
  cls.def("stats", &Stats)
      .def_prop_ro("device", [](const GpuCache&) { return "cpu"; })
      .def_prop_ro("num_growths", [](const GpuCache&) { return 0; })
      .def_prop_ro("num_rows", &CountIn<kCountRows>)
      .def_prop_ro("num_fresh", &CountIn<kCountFresh>)
      .def_prop_ro("num_created", &CountIn<kCountCreated>)
      .def_prop_ro("num_dirty", &CountIn<kCountDirty>)
      .def_prop_ro("pins", &CountIn<kCountPins>);
}

}  // namespace hps
