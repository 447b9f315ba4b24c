// HostLauncher: runs a kernel's body for every work item on host threads.
//
// Above it: gpu_cache.cc, whose verbs launch kernels through it. Below it: common/thread_pool.h. A
// launcher offers
//     one(count, body)         body(group, i) for i below count, with a group of one lane
//     any(count, body)         the same with a group of any size
//     rows(dim, count, body)   the same with a group for row arithmetic
//     rows_out(dim, count, out, body)   the same for rows that are written to out [count, dim]
// each with two functions, if wanted, that ask the memory of the host for what an item will need:
// near(i), and before it far(i) for what near(i) itself reads; and
//     alone()                  the same, on the calling thread
#pragma once

#include <algorithm>

#include "batch/key_loops.h"
#include "common/float_mode.h"
#include "common/thread_pool.h"
#include "gpu_cache/host_row_group.h"

namespace hps {

struct Nothing {
  void operator()(int64_t) const {}
};

class HostLauncher {
 public:
  static constexpr bool kRanksWords = true;  // flags are added up between two launches

  explicit HostLauncher(ThreadPool* pool) : pool_(pool), key_loops_(ChooseKeyLoops("auto")) {}

  template <class Body, class Near = Nothing, class Far = Nothing>
  void one(int64_t count, Body body, Near near = {}, Far far = {}) const {
    Run(HostGroup{}, count, body, near, far);
  }

  template <class Body, class Near = Nothing, class Far = Nothing>
  void any(int64_t count, Body body, Near near = {}, Far far = {}) const {
    Run(HostGroup{}, count, body, near, far);
  }

  template <class Body, class Near = Nothing, class Far = Nothing>
  void rows(int dim, int64_t count, Body body, Near near = {}, Far far = {}) const {
    WithDim(dim, [&](auto lanes) {
      Run(HostRowGroup<decltype(lanes)::kWidth>{}, count, body, near, far);
    });
  }

  template <class Body, class Near = Nothing, class Far = Nothing>
  void rows_out(int dim, int64_t count, const float* out, Body body, Near near = {},
                Far far = {}) const {
    const bool is_large = count * dim >= kStreamedFloats;
    WithDim(dim, [&](auto lanes) {
      constexpr int kWidth = decltype(lanes)::kWidth;
      if constexpr (kWidth > 0 && kWidth % 16 == 0) {
        if (is_large && CanStreamInOrder<kWidth>(out)) {
          return Run(HostStreamGroup<kWidth>{}, count, body, near, far);
        }
      }
      Run(HostRowGroup<kWidth>{}, count, body, near, far);
    });
  }

  // work(thread) on each of so many threads.
  template <class Work>
  void on_threads(int64_t num_threads, Work work) const {
    if (num_threads <= 1) {
      const DefaultFloatMode mode;  // the pool, which this goes past, sees to it otherwise
      return work(0);
    }
    pool_->Run([&](int worker) {
      if (worker < num_threads) work(worker);
    });
  }

  HostLauncher alone() const { return HostLauncher(nullptr, key_loops_); }
  // Null: the calling thread alone.
  ThreadPool* pool() const { return pool_; }
  int num_threads() const { return pool_ == nullptr ? 1 : pool_->num_threads(); }
  const KeyLoops& key_loops() const { return *key_loops_; }

 private:
  HostLauncher(ThreadPool* pool, const KeyLoops* key_loops) : pool_(pool), key_loops_(key_loops) {}

  static constexpr int64_t kItemsPerThread = 2048;  // fewer are not worth waking a thread

  static constexpr int64_t kItemsAtOnce = 32;

  // How many threads so many items are worth.
  int64_t num_useful(int64_t count) const {
    return std::clamp<int64_t>(count / kItemsPerThread, 1, num_threads());
  }

  template <class Group, class Body, class Near, class Far>
  void Run(Group group, int64_t count, Body body, Near near, Far far) const {
    const int64_t useful = num_useful(count);
    on_threads(useful, [&](int worker) {
      Loop(group, count * worker / useful, count * (worker + 1) / useful, body, near, far);
      EndItems(group);
    });
  }

  // Asking goes in short loops of its own: a prefetch retires only once its page is known, and how
  // many such waits go on at once is up to how many prefetches the processor has in view. By value:
  // arguments that nobody else can change stay in registers.
  template <class Group, class Body, class Near, class Far>
  static void Loop(Group group, int64_t first, int64_t end, Body body, Near near, Far far) {
    const auto some = [end](int64_t begin, auto work) {
      const int64_t stop = std::min(begin + kItemsAtOnce, end);
      for (int64_t i = begin; i < stop; ++i) work(i);
    };
    some(first, far);
    some(first + kItemsAtOnce, far);
    some(first, near);
    for (int64_t i = first; i < end; i += kItemsAtOnce) {
      some(i + 2 * kItemsAtOnce, far);
      some(i + kItemsAtOnce, near);
      some(i, [&](int64_t item) { body(group, item); });
    }
  }

  ThreadPool* const pool_;
  const KeyLoops* const key_loops_;
};

}  // namespace hps
