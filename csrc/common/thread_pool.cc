// The workers' protocol: generation_ counts the jobs, running_ the workers whose part of the
// current one is not done, taken_ says which parts somebody has begun.
#include "common/thread_pool.h"

#include <unistd.h>

#include <system_error>
#include <utility>

#include "common/check.h"
#include "common/float_mode.h"

namespace hps {
namespace {

constexpr int kLooks = 4000;  // some 40 microseconds, about what a wake-up takes

template <class Done>
void LookFor(Done done) {
  for (int i = 0; i < kLooks && !done(); ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : owner_(getpid()) {
  HPS_CHECK(num_threads >= 1);
  workers_.reserve(static_cast<size_t>(num_threads) - 1);
  taken_ = std::vector<std::atomic<uint64_t>>(static_cast<size_t>(num_threads));
  try {
    for (int worker = 1; worker < num_threads; ++worker) {
      workers_.emplace_back([this, worker] { Work(worker); });
    }
  } catch (const std::system_error&) {
    // The system grants no more threads: those that there are do the work of all.
  }
}

ThreadPool::~ThreadPool() {
  if (getpid() != owner_) {
    (void)waiting_.release();
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(const std::function<void(int)>& task) {
  const DefaultFloatMode mode;
  if (workers_.empty()) {
    task(0);
    return;
  }
  if (is_busy_.exchange(true, std::memory_order_acquire)) return RunInTurn(task);
  struct Free {
    ~Free() { is_busy->store(false, std::memory_order_release); }
    std::atomic<bool>* is_busy;
  } const free = {&is_busy_};
  RunWithWorkers(task);
}

void ThreadPool::RunInTurn(const std::function<void(int)>& task) {
  std::exception_ptr failure;
  for (int worker = 0; worker < num_threads(); ++worker) {
    try {
      task(worker);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void ThreadPool::RunWithWorkers(const std::function<void(int)>& task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    HPS_CHECK(running_ == 0);
    task_ = &task;
    running_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  start_.notify_all();
  Try(task, 0);
  // A worker that sleeps wakes up when its processor has time, often later than this.
  for (int worker = 1; worker < num_threads(); ++worker) {
    if (!Take(worker)) continue;
    Try(task, worker);
    --running_;
  }
  LookFor([this] { return running_.load(std::memory_order_relaxed) == 0; });
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0; });
  task_ = nullptr;
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Without the mutex, which a worker that is just done wants, too. A new job begins within it, as a
// worker takes its part, so none takes one of a job that is over.
bool ThreadPool::Take(int worker) {
  std::atomic<uint64_t>& taken = taken_[static_cast<size_t>(worker)];
  const uint64_t job = generation_.load(std::memory_order_relaxed);
  if (taken.load(std::memory_order_relaxed) == job) return false;
  return taken.exchange(job, std::memory_order_relaxed) != job;
}

void ThreadPool::Try(const std::function<void(int)>& task, int worker) {
  try {
    task(worker);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = std::current_exception();
  }
}

void ThreadPool::Work(int worker) {
  const DefaultFloatMode mode;  // a thread starts in the mode of the one that made it
  uint64_t seen = 0;
  for (;;) {
    const std::function<void(int)>* task = nullptr;
    LookFor([&] { return generation_.load(std::memory_order_relaxed) != seen; });
    {
      std::unique_lock<std::mutex> lock(mutex_);
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      if (!Take(worker)) continue;  // the job may be over, and what it calls gone
      task = task_;
    }
    Try(*task, worker);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (--running_ > 0) continue;
    }
    done_.notify_one();
  }
}

}  // namespace hps
