// What module.cc calls: one Bind function a component.
#pragma once

#include <nanobind/nanobind.h>

namespace hps {

void BindArena(nanobind::module_& module);
void BindBatchTransform(nanobind::module_& module);
void BindDevicePlan(nanobind::module_& module);
void BindDeviceVerbs(nanobind::module_& module);
void BindDramCache(nanobind::module_& module);
void BindFewRows(nanobind::module_& module);
void BindGpuCache(nanobind::module_& module);
void BindGpuKernels(nanobind::module_& module);
void BindLauncher(nanobind::module_& module);
void BindLifeRules(nanobind::module_& module);
void BindMachine(nanobind::module_& module);
void BindPeerVerbs(nanobind::module_& module);
void BindPinnedRows(nanobind::module_& module);
void BindRecords(nanobind::module_& module);
void BindShardPlan(nanobind::module_& module);
void BindStepInputs(nanobind::module_& module);
void BindTableBatch(nanobind::module_& module);
void BindSpace(nanobind::module_& module);
void BindTurn(nanobind::module_& module);

}  // namespace hps
