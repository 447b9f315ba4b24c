// HostRowGroup: the lane group of size one with the width of rows known when compiled.
//
// Above it: gpu_cache's host build. Below it: table/host_group.h, optimizer/lanes.h.
#pragma once

#include "optimizer/lanes.h"
#include "table/host_group.h"

namespace hps {
inline namespace HPS_BUILD {

template <int kDim>
struct HostRowGroup : HostGroup {};

template <int kDim>
inline HostLanes<kDim> LanesOf(HostRowGroup<kDim>, int dim) {
  return {dim};
}

inline HostLanes<0> LanesOf(HostGroup, int dim) { return {dim}; }

}  // namespace HPS_BUILD
}  // namespace hps
