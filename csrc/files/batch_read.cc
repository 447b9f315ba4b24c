// The two ways to keep many reads under way.
//
// Above it: batch_read.h. Below it: read_ring, and threads that block in Read.
#include "files/batch_read.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace hps {
namespace {

constexpr uint64_t kMostThreads = 16;
constexpr uint64_t kReadsOfThread = 4;  // fewer are not worth another thread
constexpr uint32_t kMostRetries = 1000;
constexpr uint64_t kFewBytes = uint64_t{1} << 20;  // of buffers: cheaper made than kept

uint64_t RoundDown(uint64_t value, uint64_t unit) { return value - value % unit; }
uint64_t RoundUp(uint64_t value, uint64_t unit) { return RoundDown(value + unit - 1, unit); }

class RingBatch {
 public:
  RingBatch(ReadRing* ring, ReadBuffers* spare, const BatchRead* reads, uint64_t count,
            const ReadSink& sink)
      : ring_(ring), reads_(reads), count_(count), sink_(sink), spare_(spare) {
    uint64_t largest = 0;
    uint64_t total = 0;
    for (uint64_t i = 0; i < count; ++i) {
      largest = std::max(largest, SpaceOf(i));
      total += SpaceOf(i);
    }
    if (total > kFewBytes && largest <= ReadBuffers::kBytes) kept_ = spare_->Take();
    if (kept_ != nullptr) {
      capacity_ = ReadBuffers::kBytes;
      buffer_ = reinterpret_cast<char*>(kept_->data());
    } else {
      capacity_ = std::max(largest, std::min(total, kFewBytes));
      few_ = AllocateAligned(capacity_);
      buffer_ = few_.get();
    }
    slots_.resize(std::min<uint64_t>(count, kRingDepth));
  }
  ~RingBatch() {
    if (kept_ != nullptr) spare_->GiveBack(std::move(kept_));
  }
  RingBatch(const RingBatch&) = delete;
  RingBatch& operator=(const RingBatch&) = delete;

  Status Run() {
    for (;;) {
      while (status_.ok() && next_ < count_ && Begin()) {
      }
      if (under_way_ == 0) return status_;
      const int error = ring_->Wait();
      if (error != 0) {
        Fail(SystemError("hand a read to io_uring for", reads_[0].file->path(), error));
        // What was never begun is given up; what is under way still writes into its buffer.
        under_way_ -= ring_->Withdraw();
      }
      uint64_t read = 0;
      int32_t result = 0;
      while (ring_->Pop(&read, &result)) Answer(read, result);
    }
  }

 private:
  struct Slot {
    uint64_t place = 0;  // in the buffer, counted on and on
    uint64_t start = 0;  // in the file, aligned
    uint64_t end = 0;    // in the file, aligned
    uint64_t done = 0;   // bytes that have arrived, from `start` on
    uint32_t retries = 0;
    bool is_over = false;
  };

  const PosixFile& FileOf(uint64_t read) const {
    return *static_cast<const PosixFile*>(reads_[read].file);
  }
  Slot& SlotOf(uint64_t read) { return slots_[read % slots_.size()]; }
  char* BufferOf(const Slot& slot) const { return buffer_ + slot.place % capacity_; }
  // What a read takes of the buffer: its blocks, which are of the file's alignment.
  uint64_t SpaceOf(uint64_t read) const {
    const uint64_t alignment = FileOf(read).alignment();
    const uint64_t end = RoundUp(reads_[read].offset + reads_[read].size, alignment);
    return RoundUp(end - RoundDown(reads_[read].offset, alignment), kDirectAlignment);
  }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  // Begins the next read if there is room for it: reads take the buffer in order, and give it back
  // in order, so that there are as many under way as their bytes allow.
  bool Begin() {
    if (next_ - oldest_ == slots_.size()) return false;
    const uint64_t space = SpaceOf(next_);
    uint64_t place = end_;
    if (place % capacity_ + space > capacity_) place = RoundUp(place, capacity_);
    if (next_ > oldest_ && place + space > SlotOf(oldest_).place + capacity_) return false;
    end_ = place + space;
    const BatchRead& wanted = reads_[next_];
    const uint64_t alignment = FileOf(next_).alignment();
    SlotOf(next_) = {.place = place,
                     .start = RoundDown(wanted.offset, alignment),
                     .end = RoundUp(wanted.offset + wanted.size, alignment)};
    ++under_way_;
    Push(next_++);
    return true;
  }

  void Push(uint64_t read) {
    const Slot& slot = SlotOf(read);
    ring_->Push(FileOf(read).descriptor(), slot.start + slot.done,
                static_cast<uint32_t>(slot.end - slot.start - slot.done),
                BufferOf(slot) + slot.done, read);
  }

  void Answer(uint64_t read, int32_t result) {
    if (!IsOver(read, result)) return Push(read);
    SlotOf(read).is_over = true;
    --under_way_;
    while (oldest_ < next_ && SlotOf(oldest_).is_over) ++oldest_;
  }

  // False when the rest of the read is to be asked for again.
  bool IsOver(uint64_t number, int32_t result) {
    Slot& slot = SlotOf(number);
    const BatchRead& read = reads_[number];
    if (result < 0) {
      const bool may_pass = result == -EINTR || result == -EAGAIN;
      if (status_.ok() && may_pass && ++slot.retries < kMostRetries) return false;
      Fail(ReadError(read.file->path(), slot.start + slot.done, -result));
      return true;
    }
    const auto size = static_cast<uint64_t>(result);
    const uint64_t reached = slot.start + slot.done + size;
    if (reached >= read.offset + read.size) {
      if (status_.ok()) Fail(sink_(number, BufferOf(slot) + (read.offset - slot.start)));
    } else if (size == 0 || size % FileOf(number).alignment() != 0) {
      Fail(FileEndsEarly(read.file->path(), reached, read.offset + read.size - reached));
    } else if (status_.ok()) {
      slot.done += size;
      return false;
    }
    return true;
  }

  ReadRing* ring_;
  const BatchRead* reads_;
  uint64_t count_;
  const ReadSink& sink_;
  ReadBuffers* spare_;
  uint64_t capacity_ = 0;
  char* buffer_ = nullptr;  // in one of the next two
  std::unique_ptr<HostMemory> kept_;
  AlignedMemory few_;
  uint64_t end_ = 0;         // of what is taken of the buffer, counted on and on
  std::vector<Slot> slots_;  // of reads [oldest_, next_), some of which are over
  uint64_t oldest_ = 0;
  uint64_t next_ = 0;
  uint64_t under_way_ = 0;
  Status status_;
};

// What the threads of one batch share.
class ThreadedBatch {
 public:
  ThreadedBatch(const BatchRead* reads, uint64_t count, const ReadSink& sink)
      : reads_(reads), count_(count), sink_(sink) {
    for (uint64_t i = 0; i < count; ++i) largest_ = std::max(largest_, reads[i].size);
  }

  Status Run() {
    const uint64_t wanted = std::min(kMostThreads, count_ / kReadsOfThread + 1);
    const std::unique_ptr<char[]> buffers(new char[wanted * largest_]);
    std::vector<std::thread> helpers;
    helpers.reserve(wanted);
    try {
      while (helpers.size() + 1 < wanted) {
        char* buffer = buffers.get() + (helpers.size() + 1) * largest_;
        helpers.emplace_back([this, buffer] { Work(buffer); });
      }
    } catch (const std::system_error&) {
      // The system grants no more threads: those that run do all the reads.
    }
    Work(buffers.get());
    for (std::thread& helper : helpers) helper.join();
    return status_;
  }

 private:
  void Work(char* buffer) {
    while (!has_failed_) {
      const uint64_t read = next_++;
      if (read >= count_) return;
      const BatchRead& wanted = reads_[read];
      Status status = wanted.file->Read(wanted.offset, wanted.size, buffer);
      if (status.ok()) status = sink_(read, buffer);
      if (status.ok()) continue;
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!has_failed_.exchange(true)) status_ = std::move(status);
    }
  }

  const BatchRead* reads_;
  uint64_t count_;
  const ReadSink& sink_;
  uint64_t largest_ = 0;
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> has_failed_{false};
  std::mutex mutex_;
  Status status_;
};

}  // namespace

ReadBuffers::~ReadBuffers() {
  for (std::atomic<HostMemory*>& place : kept_) delete place.load();
}

std::unique_ptr<HostMemory> ReadBuffers::Take() {
  for (std::atomic<HostMemory*>& place : kept_) {
    std::unique_ptr<HostMemory> found(place.exchange(nullptr));
    if (found != nullptr) return found;
  }
  auto fresh = std::make_unique<HostMemory>();
  if (!fresh->Map(kBytes).ok()) return nullptr;
  fresh->PreferHugePages(0, kBytes);
  return fresh;
}

void ReadBuffers::GiveBack(std::unique_ptr<HostMemory> memory) {
  for (std::atomic<HostMemory*>& place : kept_) {
    HostMemory* empty = nullptr;
    if (place.compare_exchange_strong(empty, memory.get())) {
      (void)memory.release();
      return;
    }
  }
}

Status ReadByRing(ReadRing* ring, ReadBuffers* spare, const BatchRead* reads, uint64_t count,
                  const ReadSink& sink) {
  return RingBatch(ring, spare, reads, count, sink).Run();
}

Status ReadByThreads(const BatchRead* reads, uint64_t count, const ReadSink& sink) {
  return ThreadedBatch(reads, count, sink).Run();
}

}  // namespace hps
