// The device's kernels for emulated lanes. Compiled with -fsanitize=thread, whose calls at every
// access of memory grid.cc answers.
//
// Above it: grid.cc. Below it: csrc/gpu_cache/kernel_list.h. The loop is that of kernels.cu.
#define HPS_BUILD build_grid

#include "grid.h"

#define threadIdx (::grid::Thread())
#define __ballot_sync(members, vote) ::grid::Ballot(members, vote)
#define __shfl_sync(members, value, lane, width) ::grid::Shuffle(members, value, lane, width)
#define __syncwarp(members) ::grid::SyncWarp(members)

#include "gpu_cache/kernel_list.h"
#include "optimizer/device_lanes.h"

namespace hps {
namespace {

#define HPS_GRID_KERNEL(Name, Body, Args, kLanes)                            \
  void Run##Name(const void* words, int64_t count) {                         \
    Args args;                                                               \
    std::memcpy(&args, words, sizeof(args));                                 \
    const DeviceGroup<kLanes> group;                                         \
    const int64_t threads = ::grid::BlockSize().x;                           \
    const int64_t stride = ::grid::GridSize().x * threads / kLanes;          \
    int64_t i = (::grid::Block().x * threads + ::grid::Thread().x) / kLanes; \
    for (; i < count; i += stride) {                                         \
      ::grid::BeginItem();                                                   \
      Body(group, args, i);                                                  \
    }                                                                        \
  }
#define HPS_GRID_TABLES_KERNEL(Name, Body, Args, kLanes)                           \
  void Run##Name(const void* words, int64_t count) {                               \
    Tables tables;                                                                 \
    std::memcpy(&tables, words, sizeof(tables));                                   \
    const DeviceGroup<kLanes> group;                                               \
    const int64_t threads = ::grid::BlockSize().x;                                 \
    const int64_t stride = ::grid::GridSize().x * threads / kLanes;                \
    const int64_t i = (::grid::Block().x * threads + ::grid::Thread().x) / kLanes; \
    ForItems<Args>(tables, i, count, stride, [&](const Args& args, int64_t item) { \
      ::grid::BeginItem();                                                         \
      Body(group, args, item);                                                     \
    });                                                                            \
  }
HPS_GPU_KERNELS(HPS_GRID_KERNEL)
HPS_TABLES_KERNELS(HPS_GRID_TABLES_KERNEL)

}  // namespace
}  // namespace hps

namespace grid {

#define HPS_GRID_ENTRY(Name, Body, Args, kLanes) {#Name, sizeof(hps::Args), kLanes, hps::Run##Name},
#define HPS_GRID_TABLES_ENTRY(Name, Body, Args, kLanes) \
  {#Name, sizeof(hps::Tables), kLanes, hps::Run##Name},
const Kernel kKernels[] = {HPS_GPU_KERNELS(HPS_GRID_ENTRY)
                               HPS_TABLES_KERNELS(HPS_GRID_TABLES_ENTRY)};
const int kNumKernels = sizeof(kKernels) / sizeof(kKernels[0]);

}  // namespace grid
