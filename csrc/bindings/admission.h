// The verbs of hps/contracts/row_cache.py, AdmittingCache, that every native cache binds alike.
//
// Above it: dram_cache.cc, gpu_cache.cc beside it. Below it: row_cache.h. A cache is described as
// there; of a plan it also says
//     NumListed, CopyFreshKeys (to keys [NumListed])
#pragma once

#include "bindings/row_cache.h"

namespace hps {

template <class Kind>
void BindAdmission(nb::class_<typename Kind::Cache>* cls) {
  using namespace nb::literals;
  using Cache = typename Kind::Cache;
  using Plan = typename Kind::Plan;
  cls->def(
         "list_fresh",
         [](Cache& cache, Plan& plan, Cache* beside) {
           const nb::gil_scoped_release unlocked;
           return cache.ListFresh(&plan, beside);
         },
         "plan"_a, "beside"_a.none())
      .def(
          "fresh_keys",
          [](const Cache&, Plan& plan) {
            NewVector<uint64_t> keys(static_cast<size_t>(plan.num_listed()));
            Kind::CopyFreshKeys(&plan, keys.data.get());
            return keys.Give();
          },
          "plan"_a)
      .def("admit_counted", &Cache::AdmitCounted, "plan"_a, "records"_a, "least"_a, Unlocked())
      .def(
          "admit_scored",
          [](Cache& cache, Plan& plan, const Cache& scores, float least, const LifeTable& others) {
            const nb::gil_scoped_release unlocked;
            cache.AdmitScored(&plan, scores, least, others.rules());
          },
          "plan"_a, "scores"_a, "least"_a, "others"_a)
      .def("admit_drawn", &Cache::AdmitDrawn, "plan"_a, "number"_a, "probability"_a, Unlocked());
}

}  // namespace hps
