// hps._C.Turn, Turns, call_all, close_and_exit: what Python code cannot do because an interrupt
// (Ctrl-C) may come between any two of its steps.
//
// Python asks for signals between bytecodes, never inside a native call. So a `with` block over a
// native object has what it took from its first step on, and gives it back whatever is raised;
// one over a Python object, or over a generator, may be torn while it takes or gives.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hps {
namespace {

// A waiter looks for signals so often.
constexpr std::chrono::milliseconds kSignalPeriod{50};

// A mutex that is had in the order of asking, by no thread twice. Waiting lets other Python threads
// run and ends with an interrupt.
class Turn {
 public:
  void Take() {
    const uint64_t ticket = Ask();
    while (!IsFirst(ticket)) {
      {
        nb::gil_scoped_release unlocked;
        std::unique_lock<std::mutex> hold(mutex_);
        changed_.wait_for(hold, kSignalPeriod, [&] { return line_.front() == ticket; });
      }
      if (PyErr_CheckSignals() != 0) {
        Leave(ticket);
        throw nb::python_error();
      }
    }
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }

  void Give() {
    const std::lock_guard<std::mutex> hold(mutex_);
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    line_.pop_front();
    changed_.notify_all();
  }

  // Who has the turn, and who waits for it.
  size_t num_asking() const {
    const std::lock_guard<std::mutex> hold(mutex_);
    return line_.size();
  }

  // True in the thread that has the turn.
  bool is_mine() const {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

 private:
  uint64_t Ask() {
    const std::lock_guard<std::mutex> hold(mutex_);
    line_.push_back(next_ticket_);
    return next_ticket_++;
  }
  bool IsFirst(uint64_t ticket) const {
    const std::lock_guard<std::mutex> hold(mutex_);
    return line_.front() == ticket;
  }
  void Leave(uint64_t ticket) {
    const std::lock_guard<std::mutex> hold(mutex_);
    line_.erase(std::find(line_.begin(), line_.end(), ticket));
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<uint64_t> line_;  // the first one has the turn; guarded by mutex_
  uint64_t next_ticket_ = 0;   // guarded by mutex_
  // Set by the thread that has the turn; another one may read an old value, never its own id.
  std::atomic<std::thread::id> owner_{};
};

// Several turns as one, taken in their order.
class Turns {
 public:
  explicit Turns(std::vector<Turn*> turns) : turns_(std::move(turns)) {}
  void Take() {
    size_t taken = 0;
    try {
      for (; taken < turns_.size(); ++taken) turns_[taken]->Take();
    } catch (...) {  // nanobind's own: an interrupt
      GiveFirst(taken);
      throw;
    }
  }
  void Give() { GiveFirst(turns_.size()); }

 private:
  void GiveFirst(size_t count) {
    while (count > 0) turns_[--count]->Give();
  }
  std::vector<Turn*> turns_;
};

template <typename T>
void BindWith(nb::class_<T>* cls) {
  cls->def("__enter__", [](T& turn) { turn.Take(); });
  cls->def("__exit__", [](T& turn, const nb::args&) { turn.Give(); });
}

// Calls each, in order; returns the seconds that each took. What one raises ends it.
std::vector<double> CallAll(const nb::list& calls) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto start = Clock::now();
    calls[i]();
    seconds[i] = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return seconds;
}

// An __exit__ for classes written in Python, whose own could be struck before its first step. Calls
// _close(False, what the block was left by, or None) of the object; if that raises, once more, for
// what is left, with True if the block itself was left by an interrupt: that was then the second
// one. What came first is raised.
void CloseAndExit(const nb::object& object, const nb::args& error) {
  try {
    object.attr("_close")(false, error[1]);
  } catch (nb::python_error&) {
    const nb::object kind = error[0];
    const bool no_wait =
        !kind.is_none() && PyErr_GivenExceptionMatches(kind.ptr(), PyExc_KeyboardInterrupt) != 0;
    try {
      object.attr("_close")(no_wait, error[1]);
    } catch (nb::python_error&) {  // the second time; the first error says why
    }
    throw;
  }
}

}  // namespace

void BindTurn(nb::module_& module) {
  nb::class_<Turn> turn(module, "Turn");
  turn.def(nb::init<>()).def_prop_ro("num_asking", &Turn::num_asking);
  turn.def_prop_ro("is_mine", &Turn::is_mine);
  BindWith(&turn);
  nb::class_<Turns> turns(module, "Turns");
  turns.def(nb::init<std::vector<Turn*>>(), "turns"_a, nb::keep_alive<1, 2>());
  BindWith(&turns);
  module.def("call_all", &CallAll, "calls"_a);
  module.def("close_and_exit", &CloseAndExit, nb::is_method());
}

}  // namespace hps
