// HostLauncher: runs a kernel's body for every work item on host threads.
//
// Above it: gpu_cache.cc, whose verbs launch kernels through it. Below it: common/thread_pool.h. A
// launcher offers
//     one(count, body)         body(group, i) for i below count, with a group of one lane
//     any(count, body)         the same with a group of any size
//     rows(dim, count, body)   the same with a group for row arithmetic
#pragma once

#include <algorithm>

#include "common/float_mode.h"
#include "common/thread_pool.h"
#include "gpu_cache/host_row_group.h"

namespace hps {

class HostLauncher {
 public:
  explicit HostLauncher(ThreadPool* pool) : pool_(pool) {}

  template <class Body>
  void one(int64_t count, Body body) const {
    Run(HostGroup{}, count, body);
  }

  template <class Body>
  void any(int64_t count, Body body) const {
    Run(HostGroup{}, count, body);
  }

  template <class Body>
  void rows(int dim, int64_t count, Body body) const {
    WithDim(dim, [&](auto lanes) { Run(HostRowGroup<decltype(lanes)::kWidth>{}, count, body); });
  }

 private:
  static constexpr int64_t kItemsPerThread = 2048;  // fewer are not worth waking a thread

  template <class Group, class Body>
  void Run(Group group, int64_t count, Body body) const {
    const int64_t useful = std::min<int64_t>(pool_->num_threads(), count / kItemsPerThread);
    if (useful <= 1) {
      const DefaultFloatMode mode;  // the pool, which this goes past, sees to it otherwise
      for (int64_t i = 0; i < count; ++i) body(group, i);
      return;
    }
    pool_->Run([&](int worker) {
      if (worker >= useful) return;
      const int64_t end = count * (worker + 1) / useful;
      for (int64_t i = count * worker / useful; i < end; ++i) body(group, i);
    });
  }

  ThreadPool* const pool_;
};

}  // namespace hps
