// Threads of gloo that are late, put before a real rank by LD_PRELOAD.
//
// Above it: ending_ranks.py, which builds it and calls the functions below. Below it: libc, Python.
// Once armed, such a thread pauses after it has said that a collective is done, until the rank has
// gone on; and the first that wants the GIL waits with it, for a while, until Python is ending.
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace {

// Far less than a rank waits for its threads.
constexpr std::chrono::seconds kMostLate{2};
constexpr std::chrono::milliseconds kPause{1};

std::atomic<bool> is_armed{false};
std::atomic<bool> has_gone_on{false};
std::atomic<int> num_wanted{0};

bool IsLate() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return is_armed && strstr(name, "gloo_run") != nullptr;
}

template <class Condition>
void Await(Condition is_met) {
  const auto deadline = std::chrono::steady_clock::now() + kMostLate;
  while (!is_met() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
  }
}

bool IsPythonEnding() {
  void* call = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
  if (call == nullptr) call = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
  return call != nullptr && reinterpret_cast<int (*)()>(call)() != 0;
}

}  // namespace

extern "C" {

void ArmLateThreads() { is_armed = true; }
void GoOn() { has_gone_on = true; }
// How often a thread of gloo has wanted the GIL since then.
int NumWanted() { return num_wanted; }

int pthread_cond_broadcast(pthread_cond_t* condition) {
  using Call = int (*)(pthread_cond_t*);
  static const Call next = [] {
    void* found = dlvsym(RTLD_NEXT, "pthread_cond_broadcast", "GLIBC_2.3.2");  // of x86-64
    if (found == nullptr) found = dlsym(RTLD_NEXT, "pthread_cond_broadcast");
    return reinterpret_cast<Call>(found);
  }();
  const int status = next(condition);
  if (IsLate()) Await([] { return has_gone_on.load(); });
  return status;
}

void PyEval_AcquireThread(void* state) {
  using Call = void (*)(void*);
  static const Call next = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "PyEval_AcquireThread"));
  if (IsLate() && num_wanted++ == 0) Await(IsPythonEnding);
  next(state);
}

}  // extern "C"
