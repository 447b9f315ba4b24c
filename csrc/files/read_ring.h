// ReadRing: reads handed to the kernel through io_uring's shared queues, by raw system calls.
//
// Above it: batch_read. Below it: the kernel, from 5.6 on; many hosts refuse it, so Create may give
// nothing. A ring takes some 20 microseconds to make, so every batch makes its own: nothing is
// shared between threads or with a forked child. For one thread.
#pragma once

#include <cstdint>
#include <memory>

namespace hps {

class ReadRing {
 public:
  // nullptr where the kernel lacks it, refuses it, or has no room for another one.
  static std::unique_ptr<ReadRing> Create(uint32_t depth);
  virtual ~ReadRing() = default;

  // Notes a read, which the next Wait begins. At most `depth` may be noted or under way.
  virtual void Push(int descriptor, uint64_t offset, uint32_t size, void* bytes, uint64_t tag) = 0;
  // Begins what was noted and waits until an answer is there, or for a second: a kernel that has
  // forgotten a read is reminded of it. 0, or an errno value
  // for which nothing more can be begun; what is under way is still to be popped.
  virtual int Wait() = 0;
  // Takes back what was noted and not begun; returns how many.
  virtual uint32_t Withdraw() = 0;
  // The next answer: the bytes read, or an errno value negated. False if there is none yet.
  virtual bool Pop(uint64_t* tag, int32_t* result) = 0;
};

}  // namespace hps
