// ThreadPool where workers wake up late: a job does not wait for one that has not begun, and a late
// one finds nothing left to do.
//
// Above it: CTest. Below it: csrc/common/thread_pool.h. A worker is held by a signal, whose handler
// stays until it is told to go.
#include "common/thread_pool.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <stdexcept>

#include "common/check.h"

namespace hps {
namespace {

constexpr int kThreads = 3;
constexpr int kHeldAtMost = 5000;  // milliseconds; nobody who may wait for the held waits longer

std::atomic<int> num_held{0};
std::atomic<bool> holds{false};

// Whatever a handler calls must be safe in one: this is.
void Hold(int) {
  ++num_held;
  for (int i = 0; holds && i < kHeldAtMost; ++i) usleep(1000);
  --num_held;
}

// Keeps all workers of a pool of kThreads from running.
class HeldWorkers {
 public:
  explicit HeldWorkers(ThreadPool* pool) {
    std::array<pthread_t, kThreads> threads;
    std::array<std::atomic<bool>, kThreads> have_come = {};
    pool->Run([&](int worker) {
      threads[static_cast<size_t>(worker)] = pthread_self();
      have_come[static_cast<size_t>(worker)] = true;
      for (const auto& has_come : have_come) {  // so that each part is its own thread's
        while (!has_come) usleep(100);
      }
    });
    holds = true;
    for (size_t worker = 1; worker < kThreads; ++worker) {
      HPS_CHECK(pthread_kill(threads[worker], SIGUSR1) == 0);
    }
    while (num_held < kThreads - 1) usleep(100);
  }
  ~HeldWorkers() {
    holds = false;
    while (num_held > 0) usleep(100);
  }
};

void JobsDoNotWaitForWorkersThatSleep() {
  ThreadPool pool(kThreads);
  std::array<std::atomic<int>, kThreads> calls = {};
  const auto count = [&](int worker) { ++calls[static_cast<size_t>(worker)]; };
  {
    const HeldWorkers held(&pool);
    pool.Run(count);
    pool.Run(count);
    HPS_CHECK(num_held == kThreads - 1);  // they were all the while
  }
  for (const std::atomic<int>& one : calls) HPS_CHECK(one == 2);
}

void LateWorkersTakeNothingThatWasDone() {
  ThreadPool pool(kThreads);
  std::array<std::atomic<int>, kThreads> calls = {};
  for (int job = 1; job <= 20; ++job) {
    {
      const HeldWorkers held(&pool);
      const auto count = [&](int worker) { ++calls[static_cast<size_t>(worker)]; };
      pool.Run(count);  // gone when they wake up
    }
    usleep(1000);
    for (const std::atomic<int>& one : calls) HPS_CHECK(one == job);
  }
}

void WhatAWorkersPartThrowsComesFromTheCallerToo() {
  ThreadPool pool(kThreads);
  bool has_thrown = false;
  const HeldWorkers held(&pool);
  try {
    pool.Run([](int worker) {
      if (worker == kThreads - 1) throw std::runtime_error("of a part");
    });
  } catch (const std::runtime_error&) {
    has_thrown = true;
  }
  HPS_CHECK(has_thrown);
  pool.Run([](int) {});  // as before
}

}  // namespace
}  // namespace hps

int main() {
  struct sigaction action = {};
  action.sa_handler = hps::Hold;
  action.sa_flags = SA_RESTART;
  HPS_CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
  hps::JobsDoNotWaitForWorkersThatSleep();
  hps::LateWorkersTakeNothingThatWasDone();
  hps::WhatAWorkersPartThrowsComesFromTheCallerToo();
  std::puts("ok");
  return 0;
}
