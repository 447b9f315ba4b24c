// Threads of a native baseline that work in step, and the median of what they took.
//
// Above it: the .cc files of baselines (benchmarks/common/native.py compiles them). Below it:
// nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

// Waits for all threads; spins, since nothing else may run while a baseline is measured.
class Barrier {
 public:
  explicit Barrier(int num_threads) : num_threads_(num_threads) {}
  void Wait() {
    const int64_t turn = turn_.load();
    if (waiting_.fetch_add(1) + 1 == num_threads_) {
      waiting_ = 0;
      ++turn_;
    }
    while (turn_.load() == turn) {
    }
  }

 private:
  const int num_threads_;
  std::atomic<int> waiting_{0};
  std::atomic<int64_t> turn_{0};
};

// Calls work(worker) on so many threads, this one among them; returns when all have ended.
template <class Work>
void RunOnThreads(int num_threads, const Work& work) {
  std::vector<std::thread> others;
  for (int worker = 1; worker < num_threads; ++worker) others.emplace_back(work, worker);
  work(0);
  for (std::thread& other : others) other.join();
}

inline double MedianOf(std::vector<double> seconds) {
  const auto middle = seconds.begin() + static_cast<int64_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}
