// io_uring by hand: two rings and an array of entries, mapped from one descriptor.
//
// Above it: read_ring.h. Below it: io_uring_setup, io_uring_enter, io_uring_register.
#include "files/read_ring.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <linux/time_types.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hps {
namespace {

constexpr int kMostRefusals = 10000;  // of a tenth of a millisecond each, while memory is short
constexpr int kPatienceSeconds = 1;   // without an answer, until the kernel's workers are woken
constexpr uint64_t kWakeTag = ~uint64_t{0};

// Memory shared with the kernel through the ring's descriptor.
class Mapping {
 public:
  Mapping(int descriptor, size_t size, uint64_t place) : size_(size) {
    memory_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor,
                   static_cast<off_t>(place));
  }
  ~Mapping() {
    if (is_valid()) munmap(memory_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool is_valid() const { return memory_ != MAP_FAILED; }
  template <typename Item>
  Item* At(uint64_t offset) const {
    return reinterpret_cast<Item*>(static_cast<char*>(memory_) + offset);
  }

 private:
  void* memory_;
  size_t size_;
};

class KernelRing final : public ReadRing {
 public:
  KernelRing(int descriptor, const io_uring_params& params)
      : descriptor_(descriptor),
        depth_(params.sq_entries),
        can_wake_((params.features & IORING_FEAT_EXT_ARG) != 0),
        submissions_(descriptor, params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                     IORING_OFF_SQ_RING),
        completions_(descriptor, params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe),
                     IORING_OFF_CQ_RING),
        entries_(descriptor, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES) {
    if (!is_valid()) return;
    submit_tail_ = submissions_.At<uint32_t>(params.sq_off.tail);
    submit_mask_ = *submissions_.At<uint32_t>(params.sq_off.ring_mask);
    complete_head_ = completions_.At<uint32_t>(params.cq_off.head);
    complete_tail_ = completions_.At<uint32_t>(params.cq_off.tail);
    complete_mask_ = *completions_.At<uint32_t>(params.cq_off.ring_mask);
    answers_ = completions_.At<io_uring_cqe>(params.cq_off.cqes);
    uint32_t* order = submissions_.At<uint32_t>(params.sq_off.array);
    for (uint32_t i = 0; i < params.sq_entries; ++i) order[i] = i;
  }
  ~KernelRing() override { close(descriptor_); }

  bool is_valid() const {
    return submissions_.is_valid() && completions_.is_valid() && entries_.is_valid();
  }

  bool CanRead() const {
    constexpr uint32_t kNumOperations = 64;
    alignas(io_uring_probe) char
        memory[sizeof(io_uring_probe) + kNumOperations * sizeof(io_uring_probe_op)] = {};
    auto* probe = reinterpret_cast<io_uring_probe*>(memory);
    return syscall(__NR_io_uring_register, descriptor_, IORING_REGISTER_PROBE, probe,
                   kNumOperations) == 0 &&
           probe->last_op >= IORING_OP_READ &&
           (probe->ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED) != 0 &&
           syscall(__NR_io_uring_enter, descriptor_, 0, 0, 0, nullptr, 0) == 0;
  }

  void Push(int descriptor, uint64_t offset, uint32_t size, void* bytes, uint64_t tag) override {
    const uint32_t tail = *submit_tail_;
    io_uring_sqe* entry = entries_.At<io_uring_sqe>(0) + (tail & submit_mask_);
    std::memset(entry, 0, sizeof(*entry));
    entry->opcode = IORING_OP_READ;
    entry->fd = descriptor;
    entry->off = offset;
    entry->addr = reinterpret_cast<uint64_t>(bytes);
    entry->len = size;
    entry->user_data = tag;
    __atomic_store_n(submit_tail_, tail + 1, __ATOMIC_RELEASE);
    ++noted_;
  }

  int Wait() override {
    const __kernel_timespec patience{kPatienceSeconds, 0};
    io_uring_getevents_arg argument{};
    argument.ts = reinterpret_cast<uint64_t>(&patience);
    const long begun = can_wake_ ? Enter(noted_, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                                         &argument, sizeof(argument))
                                 : Enter(noted_, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (begun >= 0) {
      noted_ -= static_cast<uint32_t>(begun);
      refusals_ = 0;
      return 0;
    }
    if (errno == EINTR) return 0;
    if (errno == ETIME) {
      WakeWorkers();
      return 0;
    }
    const bool may_pass = errno == EAGAIN || errno == EBUSY || errno == ENOMEM;
    const int error = errno;
    const timespec moment{0, 100000};
    nanosleep(&moment, nullptr);
    return may_pass && ++refusals_ < kMostRefusals ? 0 : error;
  }

  uint32_t Withdraw() override {
    const uint32_t withdrawn = noted_;
    __atomic_store_n(submit_tail_, *submit_tail_ - withdrawn, __ATOMIC_RELEASE);
    noted_ = 0;
    return withdrawn;
  }

  bool Pop(uint64_t* tag, int32_t* result) override {
    do {
      const uint32_t head = *complete_head_;
      if (head == __atomic_load_n(complete_tail_, __ATOMIC_ACQUIRE)) return false;
      const io_uring_cqe& answer = answers_[head & complete_mask_];
      *tag = answer.user_data;
      *result = answer.res;
      __atomic_store_n(complete_head_, head + 1, __ATOMIC_RELEASE);
      wakes_ -= *tag == kWakeTag;
    } while (*tag == kWakeTag);
    return true;
  }

 private:
  long Enter(uint32_t submissions, uint32_t answers, uint32_t flags, const void* argument,
             size_t size) {
    return syscall(__NR_io_uring_enter, descriptor_, submissions, answers, flags, argument, size);
  }

  // Linux may leave a read in the queue of its worker threads and have no worker for it: seen with
  // 6.18, when the last idle one ended as the read came. Whatever is queued next makes one, so that
  // is an entry that does nothing. Everything noted has been begun when this is called.
  void WakeWorkers() {
    if (wakes_ == depth_) return;
    const uint32_t tail = *submit_tail_;
    io_uring_sqe* entry = entries_.At<io_uring_sqe>(0) + (tail & submit_mask_);
    std::memset(entry, 0, sizeof(*entry));
    entry->opcode = IORING_OP_NOP;
    entry->flags = IOSQE_ASYNC;
    entry->user_data = kWakeTag;
    __atomic_store_n(submit_tail_, tail + 1, __ATOMIC_RELEASE);
    if (Enter(1, 0, 0, nullptr, 0) == 1) {
      ++wakes_;
    } else {
      __atomic_store_n(submit_tail_, tail, __ATOMIC_RELEASE);  // refused; at the next timeout again
    }
  }

  int descriptor_;
  uint32_t depth_;
  bool can_wake_;  // from Linux 5.11 on; earlier ones wait without a limit
  Mapping submissions_;
  Mapping completions_;
  Mapping entries_;
  uint32_t* submit_tail_ = nullptr;
  uint32_t submit_mask_ = 0;
  uint32_t* complete_head_ = nullptr;
  uint32_t* complete_tail_ = nullptr;
  uint32_t complete_mask_ = 0;
  io_uring_cqe* answers_ = nullptr;
  uint32_t noted_ = 0;
  uint32_t wakes_ = 0;  // under way: no more than the answers have room for beside all reads
  int refusals_ = 0;
};

}  // namespace

std::unique_ptr<ReadRing> ReadRing::Create(uint32_t depth) {
  io_uring_params params{};
  const long descriptor = syscall(__NR_io_uring_setup, depth, &params);
  if (descriptor < 0) return nullptr;
  auto ring = std::make_unique<KernelRing>(static_cast<int>(descriptor), params);
  if (!ring->is_valid() || !ring->CanRead()) return nullptr;
  return ring;
}

}  // namespace hps

#else

namespace hps {

std::unique_ptr<ReadRing> ReadRing::Create(uint32_t) { return nullptr; }

}  // namespace hps

#endif
