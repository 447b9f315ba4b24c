// ThreadPool: runs one function on every worker and waits; workers block between calls.
//
// Above it: dram_cache, ssd_store, reader. Below it: nothing. A pool that spins is ruinous on a
// busy machine, so workers look for work for some microseconds, as long as a wake-up takes, then
// sleep. The caller of Run works as worker 0, so a pool of one thread never switches. Nobody waits
// for a worker to wake up: what it has not begun once the caller is done, the caller does. Any
// thread may call it: who finds the workers busy with another's job does all of its own by itself.
// So what belongs together shares a pool: with two, whose workers look for work in turn, there are
// more threads than cores. Owned by its maker; joins in its destructor. A forked child lacks the
// threads: it may destroy a pool that it inherited, and nothing else.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hps {

class ThreadPool {
 public:
  // Fewer threads where the system refuses some: nothing that a pool does depends on their number.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(worker) once for every worker in [0, num_threads), each on its thread or on the
  // caller's, and returns when all have returned. Tasks run in the default floating-point mode. If
  // one threw (std::bad_alloc), one such exception goes on to the caller once all have returned.
  void Run(const std::function<void(int)>& task);

 private:
  void Work(int worker);
  void RunWithWorkers(const std::function<void(int)>& task);
  void RunInTurn(const std::function<void(int)>& task);
  // Takes a worker's part of the current job; false if it was taken.
  bool Take(int worker);
  // Runs the task of one worker and keeps what it threw.
  void Try(const std::function<void(int)>& task, int worker);

  // What threads wait on, on the heap: a forked child cannot destroy it.
  struct Waiting {
    std::condition_variable start;
    std::condition_variable done;
    std::vector<std::thread> workers;
  };
  const int owner_;  // the process that made it
  std::unique_ptr<Waiting> waiting_ = std::make_unique<Waiting>();
  std::mutex mutex_;
  std::condition_variable& start_ = waiting_->start;
  std::condition_variable& done_ = waiting_->done;
  const std::function<void(int)>* task_ = nullptr;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> running_{0};
  std::vector<std::atomic<uint64_t>> taken_;  // of each worker the last job whose part was taken
  std::atomic<bool> is_busy_{false};          // with the job of one caller of Run
  bool stop_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread>& workers_ = waiting_->workers;
};

// Calls task(number, worker) for every number under `count`, each by the next thread that is free.
template <typename Task>
void DealOut(ThreadPool* pool, size_t count, Task task) {
  std::atomic<size_t> next{0};
  pool->Run([&](int worker) {
    for (size_t number = next++; number < count; number = next++) task(number, worker);
  });
}

}  // namespace hps
