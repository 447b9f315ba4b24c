// HostLauncher: runs a kernel's body for every work item on host threads.
//
// Above it: gpu_cache.cc, whose verbs launch kernels through it. Below it: common/thread_pool.h. A
// launcher offers
//     one(count, body)         body(group, i) for i below count, with a group of one lane
//     any(count, body)         the same with a group of any size
//     rows(dim, count, body)   the same with a group for row arithmetic
//     share(keys, ...)              copies a batch's keys, empties its id table
//     by_key(shares, count, body)   as one(), of the occurrences of a batch that was shared
// all but share() with two functions, if wanted, that ask the memory of the host for what an item
// will need: near(i), and before it far(i) for what near(i) itself reads.
#pragma once

#include <algorithm>
#include <cstring>

#include "common/float_mode.h"
#include "common/thread_pool.h"
#include "gpu_cache/host_row_group.h"
#include "gpu_cache/host_shares.h"

namespace hps {

struct Nothing {
  void operator()(int64_t) const {}
};

class HostLauncher {
 public:
  explicit HostLauncher(ThreadPool* pool) : pool_(pool) {}

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

  // Divides a batch's keys among the threads; copies them, and empties the id table.
  void share(const uint64_t* keys, const BatchArgs& batch, uint64_t* own_keys,
             HostShares* shares) const {
    const int64_t count = batch.num_occurrences;
    const auto entries = static_cast<int64_t>(batch.id_mask) + 1;
    const int num_owners = static_cast<int>(num_useful(count));
    shares->Reserve(count, num_owners, batch.id_mask);
    on_threads(num_owners, [=](int owner) {
      const int64_t first = entries * owner / num_owners;
      const int64_t end = entries * (owner + 1) / num_owners;
      std::fill(batch.id_table + first, batch.id_table + end, kNoPosition);
      shares->CopyPiece(keys, owner, own_keys, batch.places);
    });
  }

  // Owners begin at different pieces, so as to write to different lines of what has an element an
  // occurrence.
  template <class Body, class Near = Nothing, class Far = Nothing>
  void by_key(const HostShares& shares, int64_t, Body body, Near near = {}, Far far = {}) const {
    const int num_owners = shares.num_owners();
    on_threads(num_owners, [&](int owner) {
      for (int k = 0; k < num_owners; ++k) {
        LoopOver(HostGroup{}, shares.list((owner + k) % num_owners, owner), body, near, far);
      }
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

  // How many threads so many items are worth.
  int64_t num_useful(int64_t count) const {
    return std::clamp<int64_t>(count / kItemsPerThread, 1, pool_->num_threads());
  }

 private:
  static constexpr int64_t kItemsPerThread = 2048;  // fewer are not worth waking a thread

  static constexpr int64_t kItemsAtOnce = 32;

  template <class Group, class Body, class Near, class Far>
  void Run(Group group, int64_t count, Body body, Near near, Far far) const {
    const int64_t useful = num_useful(count);
    on_threads(useful, [&](int worker) {
      Loop(group, count * worker / useful, count * (worker + 1) / useful, body, near, far);
    });
  }

  template <class Group, class Body, class Near = Nothing, class Far = Nothing>
  static void LoopOver(Group group, HostShares::List list, Body body, Near near = {},
                       Far far = {}) {
    const uint32_t* const items = list.positions;
    Loop(
        group, 0, list.length, [=](auto same, int64_t j) { body(same, int64_t{items[j]}); },
        [=](int64_t j) { near(int64_t{items[j]}); }, [=](int64_t j) { far(int64_t{items[j]}); });
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
};

}  // namespace hps
