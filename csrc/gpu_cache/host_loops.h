// Loops over work items on host threads, and the library calls between kernels as plain loops.
//
// Above it: gpu_cache.cc, gpu_cache_rows.cc. Below it: common/thread_pool.h.
#pragma once

#include <algorithm>

#include "common/float_mode.h"
#include "common/thread_pool.h"
#include "gpu_cache/host_row_group.h"

namespace hps {

inline constexpr int64_t kItemsPerThread = 2048;  // fewer are not worth waking a thread

// Calls body(first, end) for pieces of [0, count), one a thread.
template <class Body>
void ForPieces(ThreadPool* pool, int64_t count, Body body) {
  const int64_t useful = std::min<int64_t>(pool->num_threads(), count / kItemsPerThread);
  if (useful <= 1) {
    const DefaultFloatMode mode;  // the pool, which this goes past, sees to it otherwise
    body(int64_t{0}, count);
    return;
  }
  pool->Run([&](int worker) {
    if (worker < useful) body(count * worker / useful, count * (worker + 1) / useful);
  });
}

// Calls body(i) for every work item below `count`, over the threads if they are many.
template <class Body>
void ForItems(ThreadPool* pool, int64_t count, Body body) {
  ForPieces(pool, count, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) body(i);
  });
}

// What a device's library does between two kernels: inclusive prefix sum, in place.
inline void SumUp(int32_t* ranks, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) ranks[i] = sum += ranks[i];
}

}  // namespace hps
