// The verbs of hps/contracts/row_cache.py that every native cache binds alike.
//
// Above it: dram_cache.cc, gpu_cache.cc beside it. Below it: nanobind, cache_options.h. A cache is
// described by a struct of its Cache and Plan types and of what they spell differently:
//     Victims, NumVictims, MissingKeys (of a plan), Pull, Gather, ReadRows, Contains,
//     SetOccurrences (of a plan with sums, see batch/key_shares.h)
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>

#include "bindings/bags.h"
#include "bindings/cache_options.h"
#include "bindings/translate.h"
#include "table/life_table.h"

namespace hps {

using Unlocked = nb::call_guard<nb::gil_scoped_release>;
using Labels = std::optional<Vector<const uint8_t>>;
using Statistics = std::optional<Matrix<const uint8_t>>;
using Whole = std::optional<Vector<const uint32_t>>;

template <class Kind>
class RowCacheBinding {
 public:
  using Cache = typename Kind::Cache;
  using Plan = typename Kind::Plan;

  static void Bind(nb::class_<Cache>* cls) {
    BindShape(cls);
    BindBatchVerbs(cls);
    BindPooling(cls);
    BindMoves(cls);
    BindUpdates(cls);
    BindCounts(cls);
    BindRows(cls);
  }

 private:
  static void CheckRows(const Cache& cache, const nb::ndarray<>& rows, size_t count) {
    CheckShape(rows.shape(0) == count && rows.shape(1) == static_cast<size_t>(cache.layout().dim),
               "a float32 array [occurrences of the plan, dim] is needed");
  }

  static void CheckOccurrences(const Cache& cache, const Plan& plan, const nb::ndarray<>& rows) {
    CheckRows(cache, rows, static_cast<size_t>(plan.num_occurrences()));
  }

  static void CheckImages(const Cache& cache, const nb::ndarray<>& images, int64_t count) {
    CheckShape(images.shape(0) == static_cast<size_t>(count) &&
                   images.shape(1) == static_cast<size_t>(cache.layout().row_bytes()),
               "a uint8 array [rows, row_bytes] of as many rows is needed");
  }

  // Of the plan's occurrences, each 0 or 1.
  static const uint8_t* LabelsOf(const Labels& labels, const Plan& plan) {
    if (!labels) return nullptr;
    CheckShape(labels->size() == static_cast<size_t>(plan.num_occurrences()),
               "uint8 labels [occurrences of the plan] are needed");
    return labels->data();
  }

  // Whole numbers of the plan's occurrences.
  static const uint32_t* WholeOf(const Whole& numbers, const Plan& plan) {
    if (!numbers) return nullptr;
    CheckShape(numbers->size() == static_cast<size_t>(plan.num_occurrences()),
               "uint32 shows and clicks [occurrences of the plan] are needed");
    return numbers->data();
  }

  // Of as many rows, as the layout has them.
  static const RowStatistics* StatisticsOf(const Cache& cache, const Statistics& statistics,
                                           size_t count) {
    if (!statistics) return nullptr;
    const bool fits = statistics->shape(0) == count && statistics->shape(1) == kStatisticsBytes;
    CheckShape(
        fits && cache.layout().has_statistics,
        "uint8 statistics [occurrences of the plan, 16], of a table that has them, are needed");
    return reinterpret_cast<const RowStatistics*>(statistics->data());
  }

  static void BindShape(nb::class_<Cache>* cls) {
    using namespace nb::literals;
    // On the host the verb itself returns the culprit.
    cls->def_prop_ro("failed_key", [](const Cache&) { return nb::none(); });
    cls->def_prop_ro("capacity_rows", [](const Cache& cache) { return cache.shape().num_slots(); })
        .def_prop_ro("num_buckets", [](const Cache& cache) { return cache.shape().num_buckets(); })
        .def_prop_ro("num_parts", [](const Cache& cache) { return cache.shape().num_parts; })
        .def_prop_ro("row_bytes", [](const Cache& cache) { return cache.layout().row_bytes(); })
        .def_prop_ro("dim", [](const Cache& cache) { return cache.layout().dim; })
        .def_prop_ro("state_floats",
                     [](const Cache& cache) { return cache.layout().state_floats(); })
        .def_prop_ro("memory_bytes", &Cache::memory_bytes)
        .def_prop_ro("threads", &Cache::pool, nb::rv_policy::reference)
        .def_prop_ro("epoch", &Cache::epoch);
  }

  static void BindBatchVerbs(nb::class_<Cache>* cls) {
    using namespace nb::literals;
    cls->def(
           "make_plan",
           [](Cache& cache, Keys keys, std::optional<nb::handle_t<Plan>> given) {
             nb::object plan = given ? nb::borrow(*given) : nb::cast(std::make_unique<Plan>());
             auto& target = nb::cast<Plan&>(plan);
             nb::gil_scoped_release unlocked;
             cache.MakePlan(keys.data(), static_cast<int64_t>(keys.size()), &target);
             return plan;
           },
           "keys"_a.noconvert(), "plan"_a.none() = nb::none())
        .def(
            "pull",
            [](Cache& cache, Plan& plan, Keys keys, Matrix<float> out) {
              CheckRows(cache, nb::ndarray<>(out), keys.size());
              nb::gil_scoped_release unlocked;
              return Kind::Pull(&cache, keys.data(), static_cast<int64_t>(keys.size()), &plan,
                                out.data());
            },
            "plan"_a, "keys"_a.noconvert(), "out"_a.noconvert())
        .def(
            "find",
            [](Cache& cache, Plan& plan, int64_t first, int64_t count) {
              cache.Find(&plan, first, count);
            },
            "plan"_a, "first"_a, "count"_a, Unlocked())
        .def("want", &Cache::Want, "plan"_a, Unlocked())
        .def("reserve", &Cache::Reserve, "plan"_a, Unlocked())
        .def("cancel", &Cache::Cancel, "plan"_a, Unlocked())
        .def("abandon", &Cache::Abandon, "plan"_a, Unlocked())
        .def("release", &Cache::Release, "plan"_a, Unlocked())
        .def("is_current", &Cache::IsCurrent, "plan"_a);
  }

  static void BindPooling(nb::class_<Cache>* cls) {
    using namespace nb::literals;
    cls->def(
           "pull_pooled",
           [](Cache& cache, Plan& plan, Keys keys, Offsets offsets, Weights weights, bool mean,
              Matrix<float> out) {
             const auto dim = static_cast<size_t>(cache.layout().dim);
             const auto count = static_cast<int64_t>(keys.size());
             const BagsView bags = BagsOf(offsets, weights, mean, out, dim, count);
             nb::gil_scoped_release unlocked;
             return cache.PullPooled(keys.data(), count, bags, &plan, {out.data()});
           },
           "plan"_a, "keys"_a.noconvert(), "offsets"_a.noconvert(), "weights"_a.noconvert().none(),
           "mean"_a, "out"_a.noconvert())
        .def(
            "pool",
            [](Cache& cache, Plan& plan, Offsets offsets, Weights weights, bool mean,
               Matrix<float> out) {
              const auto dim = static_cast<size_t>(cache.layout().dim);
              const BagsView bags =
                  BagsOf(offsets, weights, mean, out, dim, plan.num_occurrences());
              nb::gil_scoped_release unlocked;
              cache.Pool(&plan, bags, {out.data()});
            },
            "plan"_a, "offsets"_a.noconvert(), "weights"_a.noconvert().none(), "mean"_a,
            "out"_a.noconvert())
        .def(
            "sum_bag_gradients",
            [](Cache& cache, Plan& plan, Offsets offsets, Weights weights, bool mean,
               Matrix<const float> gradients, Labels labels) {
              const auto dim = static_cast<size_t>(cache.layout().dim);
              const BagsView bags =
                  BagsOfGradients(offsets, weights, mean, gradients, dim, plan.num_occurrences());
              const uint8_t* flags = LabelsOf(labels, plan);
              nb::gil_scoped_release unlocked;
              return cache.SumGradients(&plan, gradients.data(), &bags, flags);
            },
            "plan"_a, "offsets"_a.noconvert(), "weights"_a.noconvert().none(), "mean"_a,
            "grads"_a.noconvert(), "labels"_a.noconvert().none() = nb::none());
  }

  static void BindMoves(nb::class_<Cache>* cls) {
    using namespace nb::literals;
    cls->def(
           "victims",
           [](const Cache& cache, nb::handle_t<Plan> handle) {
             auto& plan = nb::cast<Plan&>(handle);
             return View(Kind::Victims(plan),
                         {static_cast<size_t>(Kind::NumVictims(plan)),
                          static_cast<size_t>(cache.layout().row_bytes())},
                         handle);
           },
           "plan"_a)
        .def(
            "missing_keys",
            [](const Cache&, nb::handle_t<Plan> handle) {
              auto& plan = nb::cast<Plan&>(handle);
              return View(Kind::MissingKeys(plan), {static_cast<size_t>(plan.num_missing())},
                          handle);
            },
            "plan"_a)
        .def(
            "fill",
            [](Cache& cache, Plan& plan, Matrix<const uint8_t> rows, Vector<const uint8_t> found,
               float lr, bool create) {
              CheckImages(cache, nb::ndarray<>(rows), plan.num_missing());
              CheckShape(found.size() == rows.shape(0), "found [missing] is needed");
              nb::gil_scoped_release unlocked;
              cache.Fill(&plan, rows.data(), found.data(), lr, create);
            },
            "plan"_a, "rows"_a.noconvert(), "found"_a.noconvert(), "lr"_a, "create"_a)
        .def(
            "gather",
            [](Cache& cache, Plan& plan, Matrix<float> out) {
              CheckOccurrences(cache, plan, nb::ndarray<>(out));
              nb::gil_scoped_release unlocked;
              Kind::Gather(&cache, &plan, out.data());
            },
            "plan"_a, "out"_a.noconvert())
        .def(
            "read_rows",
            [](Cache& cache, Plan& plan, Matrix<uint8_t> images) {
              CheckImages(cache, nb::ndarray<>(images), plan.window_size());
              nb::gil_scoped_release unlocked;
              Kind::ReadRows(&cache, &plan, images.data());
            },
            "plan"_a, "images"_a.noconvert());
  }

  static void BindUpdates(nb::class_<Cache>* cls) {
    using namespace nb::literals;
    cls->def("create", &Cache::Create, "plan"_a, "lr"_a, Unlocked())
        .def("apply", &Cache::Apply, "plan"_a, "lr"_a, Unlocked())
        .def(
            "sum_gradients",
            [](Cache& cache, Plan& plan, Matrix<const float> gradients, Labels labels) {
              CheckOccurrences(cache, plan, nb::ndarray<>(gradients));
              const uint8_t* flags = LabelsOf(labels, plan);
              nb::gil_scoped_release unlocked;
              return cache.SumGradients(&plan, gradients.data(), nullptr, flags);
            },
            "plan"_a, "grads"_a.noconvert(), "labels"_a.noconvert().none() = nb::none())
        .def(
            "sum_here",
            [](Cache& cache, Plan& plan, Keys keys, Matrix<const float> gradients, float lr) {
              CheckRows(cache, nb::ndarray<>(gradients), keys.size());
              nb::gil_scoped_release unlocked;
              int64_t worst = -1;
              const auto count = static_cast<int64_t>(keys.size());
              const int64_t num_missing =
                  cache.SumHere(keys.data(), count, gradients.data(), lr, &plan, &worst);
              return std::make_pair(num_missing, worst);
            },
            "plan"_a, "keys"_a.noconvert(), "grads"_a.noconvert(), "lr"_a)
        .def("may_overflow", &Cache::MayOverflow, "plan"_a, "lr"_a)
        .def("find_overflow", &Cache::FindOverflow, "plan"_a, "lr"_a, Unlocked())
        .def("watch", &Cache::Watch)
        .def_prop_ro("is_watched", &Cache::is_watched)
        .def(
            "push",
            [](Cache& cache, Plan& plan, Matrix<const float> gradients, float lr, Labels labels) {
              CheckOccurrences(cache, plan, nb::ndarray<>(gradients));
              const uint8_t* flags = LabelsOf(labels, plan);
              nb::gil_scoped_release unlocked;
              int64_t worst = cache.SumGradients(&plan, gradients.data(), nullptr, flags);
              if (worst < 0) worst = cache.FindOverflow(&plan, lr);
              if (worst < 0) cache.Apply(&plan, lr);
              return worst;
            },
            "plan"_a, "grads"_a.noconvert(), "lr"_a, "labels"_a.noconvert().none() = nb::none())
        .def(
            "assign",
            [](Cache& cache, Plan& plan, Matrix<const float> rows,
               std::optional<Matrix<const float>> state, float lr, Statistics statistics) {
              CheckOccurrences(cache, plan, nb::ndarray<>(rows));
              if (state) {
                const auto width = static_cast<size_t>(cache.layout().state_floats());
                CheckShape(state->shape(0) == rows.shape(0) && state->shape(1) == width,
                           "state must be [occurrences of the plan, state_floats]");
              }
              const RowStatistics* counted = StatisticsOf(cache, statistics, rows.shape(0));
              nb::gil_scoped_release unlocked;
              cache.Assign(&plan, rows.data(), state ? state->data() : nullptr, counted, lr);
            },
            "plan"_a, "rows"_a.noconvert(), "state"_a.noconvert().none(), "lr"_a,
            "statistics"_a.noconvert().none() = nb::none());
  }

  // Of tables with statistics.
  static void BindCounts(nb::class_<Cache>* cls) {
    using namespace nb::literals;
    cls->def(
           "set_occurrences",
           [](Cache& cache, Plan& plan, Whole shows, Whole clicks) {
             CheckShape(cache.layout().has_statistics, "a table that counts is needed");
             const uint32_t* all = WholeOf(shows, plan);
             const uint32_t* clicked = WholeOf(clicks, plan);
             nb::gil_scoped_release unlocked;
             Kind::SetOccurrences(&plan, all, clicked);
           },
           "plan"_a, "shows"_a.noconvert().none(), "clicks"_a.noconvert().none())
        .def(
            "set_period", [](Cache& cache, uint32_t period) { cache.SetPeriod(period); },
            "period"_a)
        .def(
            "set_rules",
            [](Cache& cache, const LifeTable* table) {
              cache.SetRules(table == nullptr ? LifeRules{} : table->rules());
            },
            "rules"_a.none(), nb::keep_alive<1, 2>())
        .def("drop_dead", &Cache::DropDead, "period"_a, Unlocked());
  }

  static void BindRows(nb::class_<Cache>* cls) {
    using namespace nb::literals;
    cls->def(
           "contains",
           [](Cache& cache, Keys keys) {
             NewVector<uint8_t> presence(keys.size());
             {
               nb::gil_scoped_release unlocked;
               Kind::Contains(&cache, keys.data(), static_cast<int64_t>(keys.size()),
                              presence.data.get());
             }
             return presence.Give();
           },
           "keys"_a.noconvert())
        .def(
            "erase",
            [](Cache& cache, Keys keys) {
              NewVector<uint8_t> presence(keys.size());
              {
                nb::gil_scoped_release unlocked;
                const auto count = static_cast<int64_t>(keys.size());
                ThrowIfError(cache.Erase(keys.data(), count, presence.data.get()));
              }
              return presence.Give();
            },
            "keys"_a.noconvert())
        .def(
            "scan",
            [](Cache& cache, int64_t cursor, const std::string& what, Matrix<uint8_t> rows) {
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
            [](Cache& cache, Keys keys, Matrix<float> out) {
              CheckRows(cache, nb::ndarray<>(out), keys.size());
              nb::gil_scoped_release unlocked;
              cache.InitialWeights(keys.data(), static_cast<int64_t>(keys.size()), out.data());
            },
            "keys"_a.noconvert(), "out"_a.noconvert())
        .def("mark_clean", &Cache::MarkClean, "first_cursor"_a, "end_cursor"_a, Unlocked())
        .def("clear", &Cache::Clear, Unlocked());
  }
};

}  // namespace hps
