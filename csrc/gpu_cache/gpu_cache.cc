// GpuCache: its verbs, compiled for the threads of the host.
#include "gpu_cache/gpu_cache.h"

#include "gpu_cache/admission_body.h"
#include "gpu_cache/row_verbs_body.h"

namespace hps {

template class GpuCacheOver<HostLauncher>;

}  // namespace hps
