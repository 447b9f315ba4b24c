// OwnedMutex: a mutex that knows which thread holds it, so that code that needs it held can say so.
//
// Above it: ssd_store, whose parts share one. Below it: check.h. Works with std::lock_guard,
// std::unique_lock and std::condition_variable_any.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "common/check.h"

namespace hps {

class OwnedMutex {
 public:
  void lock() {
    mutex_.lock();
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  void unlock() {
    holder_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
  }
  // A thread reads its own id only if it wrote it last, so no order of memory is needed.
  bool is_mine() const {
    return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  void AssertHeld() const { HPS_CHECK(is_mine()); }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> holder_{};
};

}  // namespace hps
