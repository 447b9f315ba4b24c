// The two ways to keep many reads under way.
//
// Above it: batch_read.h. Below it: read_ring, and threads that block in Read.
#include "ssd_store/batch_read.h"

#include <sys/mman.h>

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
constexpr uint64_t kHugePage = uint64_t{2} << 20;

uint64_t RoundDown(uint64_t value, uint64_t unit) { return value - value % unit; }
uint64_t RoundUp(uint64_t value, uint64_t unit) { return RoundDown(value + unit - 1, unit); }

class RingBatch {
 public:
  RingBatch(ReadRing* ring, ReadBuffers* spare, const BatchRead* reads, uint64_t count,
            const ReadSink& sink)
      : ring_(ring), reads_(reads), count_(count), sink_(sink), spare_(spare) {
    uint64_t largest = 1;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t alignment = FileOf(i).alignment();
      const uint64_t end = RoundUp(reads[i].offset + reads[i].size, alignment);
      largest = std::max(largest, end - RoundDown(reads[i].offset, alignment));
    }
    slot_bytes_ = RoundUp(largest, kDirectAlignment);
    const uint64_t depth = std::clamp<uint64_t>(ReadBuffers::kBytes / slot_bytes_, 1,
                                                std::min<uint64_t>(count, kRingDepth));
    is_kept_ = depth * slot_bytes_ > kFewBytes && slot_bytes_ <= ReadBuffers::kBytes;
    buffers_ = is_kept_ ? spare_->Take() : AllocateAligned(depth * slot_bytes_);
    slots_.resize(depth);
    for (uint32_t slot = 0; slot < depth; ++slot) free_.push_back(slot);
  }
  ~RingBatch() {
    if (is_kept_) spare_->GiveBack(std::move(buffers_));
  }
  RingBatch(const RingBatch&) = delete;
  RingBatch& operator=(const RingBatch&) = delete;

  Status Run() {
    for (;;) {
      while (status_.ok() && next_ < count_ && !free_.empty()) Begin(next_++);
      if (free_.size() == slots_.size()) return status_;
      const int error = ring_->Wait();
      if (error != 0) {
        Fail(SystemError("hand a read to io_uring for", reads_[0].file->path(), error));
        // What was never begun is given up; what is under way still writes into its buffer.
        const uint32_t withdrawn = ring_->Withdraw();
        num_lost_ += withdrawn;
      }
      uint64_t slot = 0;
      int32_t result = 0;
      while (ring_->Pop(&slot, &result)) Answer(static_cast<uint32_t>(slot), result);
      if (free_.size() + num_lost_ == slots_.size() && !status_.ok()) return status_;
    }
  }

 private:
  struct Slot {
    uint64_t read = 0;
    uint64_t start = 0;  // in the file, aligned
    uint64_t end = 0;    // in the file, aligned
    uint64_t done = 0;   // bytes that have arrived, from `start` on
    uint32_t retries = 0;
  };

  const PosixFile& FileOf(uint64_t read) const {
    return *static_cast<const PosixFile*>(reads_[read].file);
  }
  char* BufferOf(uint32_t slot) const { return buffers_.get() + slot * slot_bytes_; }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  void Begin(uint64_t read) {
    const uint32_t slot = free_.back();
    free_.pop_back();
    const uint64_t alignment = FileOf(read).alignment();
    slots_[slot] = {read, RoundDown(reads_[read].offset, alignment),
                    RoundUp(reads_[read].offset + reads_[read].size, alignment), 0, 0};
    Push(slot);
  }

  void Push(uint32_t slot) {
    const Slot& state = slots_[slot];
    ring_->Push(FileOf(state.read).descriptor(), state.start + state.done,
                static_cast<uint32_t>(state.end - state.start - state.done),
                BufferOf(slot) + state.done, slot);
  }

  void Answer(uint32_t slot, int32_t result) {
    Slot& state = slots_[slot];
    const BatchRead& read = reads_[state.read];
    const uint64_t alignment = FileOf(state.read).alignment();
    if (result < 0) {
      const bool may_pass = result == -EINTR || result == -EAGAIN;
      if (status_.ok() && may_pass && ++state.retries < kMostRetries) return Push(slot);
      Fail(ReadError(read.file->path(), state.start + state.done, -result));
    } else {
      const uint64_t reached = state.start + state.done + static_cast<uint64_t>(result);
      if (reached >= read.offset + read.size) {
        if (status_.ok()) {
          Fail(sink_(state.read, BufferOf(slot) + (read.offset - state.start)));
        }
      } else if (result == 0 || static_cast<uint64_t>(result) % alignment != 0) {
        Fail(FileEndsEarly(read.file->path(), reached, read.offset + read.size - reached));
      } else if (status_.ok()) {
        state.done += static_cast<uint64_t>(result);
        return Push(slot);
      }
    }
    free_.push_back(slot);
  }

  ReadRing* ring_;
  const BatchRead* reads_;
  uint64_t count_;
  const ReadSink& sink_;
  ReadBuffers* spare_;
  bool is_kept_ = false;
  uint64_t slot_bytes_ = 0;
  AlignedMemory buffers_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  uint64_t next_ = 0;
  uint64_t num_lost_ = 0;
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
  for (std::atomic<char*>& place : kept_) FreeAligned()(place.load());
}

AlignedMemory ReadBuffers::Take() {
  for (std::atomic<char*>& place : kept_) {
    AlignedMemory found(place.exchange(nullptr));
    if (found != nullptr) return found;
  }
  AlignedMemory fresh = AllocateAligned(kBytes);
  const auto address = reinterpret_cast<uint64_t>(fresh.get());
  const uint64_t start = RoundUp(address, kHugePage);
  // A hint: long reads pin fewer pages.
  (void)madvise(fresh.get() + (start - address), address + kBytes - start, MADV_HUGEPAGE);
  return fresh;
}

void ReadBuffers::GiveBack(AlignedMemory memory) {
  for (std::atomic<char*>& place : kept_) {
    char* empty = nullptr;
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
