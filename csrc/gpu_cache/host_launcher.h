// HostLauncher: runs a kernel's body for every work item on host threads.
//
// Above it: gpu_cache.cc, whose verbs launch kernels through it. Below it: common/thread_pool.h. A
// launcher offers
//     one(count, body)         body(group, i) for i below count, with a group of one lane
//     any(count, body)         the same with a group of any size
//     rows(dim, count, body)   the same with a group for row arithmetic
//     pieces(count, work)      work(piece) for a few pieces: a library call of a device
// all but the last with a function to call before each work item, if wanted, which asks the memory
// of the host for what later ones need.
#pragma once

#include <algorithm>

#include "common/float_mode.h"
#include "common/thread_pool.h"
#include "gpu_cache/host_row_group.h"

namespace hps {

struct Nothing {
  void operator()(int64_t) const {}
};

class HostLauncher {
 public:
  explicit HostLauncher(ThreadPool* pool) : pool_(pool) {}

  template <class Body, class Ahead = Nothing>
  void one(int64_t count, Body body, Ahead ahead = {}) const {
    Run(HostGroup{}, count, body, ahead);
  }

  template <class Body, class Ahead = Nothing>
  void any(int64_t count, Body body, Ahead ahead = {}) const {
    Run(HostGroup{}, count, body, ahead);
  }

  template <class Body, class Ahead = Nothing>
  void rows(int dim, int64_t count, Body body, Ahead ahead = {}) const {
    WithDim(dim,
            [&](auto lanes) { Run(HostRowGroup<decltype(lanes)::kWidth>{}, count, body, ahead); });
  }

  // work(piece) for every piece below `count`, each worth a thread.
  template <class Work>
  void pieces(int count, Work work) const {
    const DefaultFloatMode mode;
    if (pool_->num_threads() > 1) {
      DealOut(pool_, static_cast<size_t>(count),
              [&](size_t piece, int) { work(static_cast<int>(piece)); });
    } else {
      for (int piece = 0; piece < count; ++piece) work(piece);
    }
  }

 private:
  static constexpr int64_t kItemsPerThread = 2048;  // fewer are not worth waking a thread

  template <class Group, class Body, class Ahead>
  void Run(Group group, int64_t count, Body body, Ahead ahead) const {
    const int64_t useful = std::min<int64_t>(pool_->num_threads(), count / kItemsPerThread);
    if (useful <= 1) {
      const DefaultFloatMode mode;  // the pool, which this goes past, sees to it otherwise
      return Loop(group, 0, count, body, ahead);
    }
    pool_->Run([&](int worker) {
      if (worker >= useful) return;
      Loop(group, count * worker / useful, count * (worker + 1) / useful, body, ahead);
    });
  }

  // By value: arguments that nobody else can change stay in registers.
  template <class Group, class Body, class Ahead>
  static void Loop(Group group, int64_t first, int64_t end, Body body, Ahead ahead) {
    for (int64_t i = first; i < end; ++i) {
      ahead(i);
      body(group, i);
    }
  }

  ThreadPool* const pool_;
};

}  // namespace hps
