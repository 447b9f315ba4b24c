// The Python module hps._C: one Bind function a component, and the small functions that several
// share.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "common/hash.h"

namespace nb = nanobind;

namespace hps {
void BindReader(nb::module_& module);
void BindSsdStore(nb::module_& module);
void BindUpdateLog(nb::module_& module);
}  // namespace hps

NB_MODULE(_C, module) {
  module.doc() = "Native core of hps.";
  // An autograd graph that lives until Python ends keeps a plan and its cache alive; that is no
  // leak.
  nb::set_leak_warnings(false);
  hps::BindArena(module);
  hps::BindBatchTransform(module);
  hps::BindDevicePlan(module);
  hps::BindLauncher(module);
  hps::BindDeviceVerbs(module);
  hps::BindDramCache(module);
  hps::BindFewRows(module);
  hps::BindGpuCache(module);
  hps::BindGpuKernels(module);
  module.def(
      "xxh64",
      [](nb::bytes data, uint64_t seed) { return hps::Xxh64(data.c_str(), data.size(), seed); },
      nb::arg("data"), nb::arg("seed") = 0);
  hps::BindLifeRules(module);
  hps::BindMachine(module);
  hps::BindPeerVerbs(module);
  hps::BindPinnedRows(module);
  hps::BindReader(module);
  hps::BindRecords(module);
  hps::BindShardPlan(module);
  hps::BindSpace(module);
  hps::BindSsdStore(module);
  hps::BindStepInputs(module);
  hps::BindTableBatch(module);
  hps::BindTurn(module);
  hps::BindUpdateLog(module);
}
