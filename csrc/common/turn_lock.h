// TurnLock: a mutex that threads get in the order in which they asked for it.
//
// Above it: ssd_store, whose checkpoint must not starve beside a thread that does nothing but
// append: a std::mutex goes to the thread that runs at the moment, which is the one that just let
// go. For sections that are long beside a thread's wake-up. Works with std::lock_guard.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "common/check.h"

namespace hps {

class TurnLock {
 public:
  void lock() {
    std::unique_lock<std::mutex> hold(mutex_);
    const uint64_t turn = next_turn_++;
    changed_.wait(hold, [this, turn] { return turn == current_turn_; });
    holder_ = std::this_thread::get_id();
  }
  void unlock() {
    const std::lock_guard<std::mutex> hold(mutex_);
    holder_ = std::thread::id();
    ++current_turn_;
    changed_.notify_all();
  }
  // The calling thread has the turn.
  void AssertHeld() {
    const std::lock_guard<std::mutex> hold(mutex_);
    HPS_CHECK(holder_ == std::this_thread::get_id());
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_turn_ = 0;
  uint64_t current_turn_ = 0;
  std::thread::id holder_;  // guarded by mutex_
};

}  // namespace hps
