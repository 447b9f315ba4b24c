// The gpu_cache's kernels for a device: groups of lanes stride over the items of each body.
//
// Above it: hps/gpu_cache, which launches them; the whole text is compiled at run time by NVRTC,
// and by nvcc in tests. Below it: kernel_list.h. All lanes of a group come to a body together, and
// the groups of a launch, however many, do all of its items. The second launch bound says how many
// blocks of a multiprocessor are worth registers: left alone, the assembler spills a few to fit
// more.
#include "gpu_cache/kernel_list.h"
#include "optimizer/device_lanes.h"

namespace hps {

#define HPS_DEVICE_KERNEL(Name, Body, Args, kLanes)                                     \
  extern "C" __global__ void __launch_bounds__(256, 2)                                  \
      Name(const __grid_constant__ Args args, long long count) {                        \
    const DeviceGroup<kLanes> group;                                                    \
    const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x / kLanes;       \
    int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes; \
    for (; i < count; i += stride) Body(group, args, i);                                \
  }

#define HPS_DEVICE_TABLES_KERNEL(Name, Body, Args, kLanes)                                    \
  extern "C" __global__ void __launch_bounds__(256, 2)                                        \
      Name(const __grid_constant__ Tables tables, long long count) {                          \
    const DeviceGroup<kLanes> group;                                                          \
    const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x / kLanes;             \
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes; \
    ForItems<Args>(tables, i, count, stride,                                                  \
                   [&](const Args& args, int64_t item) { Body(group, args, item); });         \
  }

HPS_GPU_KERNELS(HPS_DEVICE_KERNEL)
HPS_TABLES_KERNELS(HPS_DEVICE_TABLES_KERNEL)

}  // namespace hps
