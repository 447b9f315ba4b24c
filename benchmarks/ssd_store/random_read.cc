// The ceiling of benchmarks/ssd_store: the same records read by io_uring, all ranges known at once.
//
// No key, no look-up, no checksum, no index: what remains is the disk. Above it: random_read.py
// (ctypes), which tries gaps and keeps the fastest. Below it: the kernel's io_uring, by its raw
// system calls.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr uint64_t kBlock = 4096;                         // alignment of O_DIRECT reads
constexpr uint64_t kMostAnnounced = uint64_t{128} << 10;  // the kernel may leave the rest out

struct Mapping {
  char* memory = nullptr;
  size_t size = 0;
  ~Mapping() {
    if (memory != nullptr) munmap(memory, size);
  }
  bool Map(int ring, size_t bytes, off_t what) {
    void* mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
    if (mapped == MAP_FAILED) return false;
    memory = static_cast<char*>(mapped);
    size = bytes;
    return true;
  }
  uint32_t* Word(uint32_t offset) const { return reinterpret_cast<uint32_t*>(memory + offset); }
};

// A submission and a completion queue of `depth` entries; one thread uses it.
class Ring {
 public:
  ~Ring() {
    if (ring_ >= 0) close(ring_);
  }

  int Open(uint32_t depth) {
    std::memset(&params_, 0, sizeof(params_));
    ring_ = static_cast<int>(syscall(__NR_io_uring_setup, depth, &params_));
    if (ring_ < 0) return -errno;
    const size_t submissions = params_.sq_off.array + params_.sq_entries * sizeof(uint32_t);
    const size_t completions =
        params_.cq_off.cqes + params_.cq_entries * sizeof(struct io_uring_cqe);
    const size_t entries = params_.sq_entries * sizeof(struct io_uring_sqe);
    const bool mapped = submissions_.Map(ring_, submissions, IORING_OFF_SQ_RING) &&
                        completions_.Map(ring_, completions, IORING_OFF_CQ_RING) &&
                        entries_.Map(ring_, entries, IORING_OFF_SQES);
    return mapped ? 0 : -errno;
  }

  void Push(int fd, char* buffer, uint32_t length, uint64_t offset, uint64_t tag) {
    const uint32_t tail = *submissions_.Word(params_.sq_off.tail);
    const uint32_t idx = tail & *submissions_.Word(params_.sq_off.ring_mask);
    auto* entry = reinterpret_cast<struct io_uring_sqe*>(entries_.memory) + idx;
    std::memset(entry, 0, sizeof(*entry));
    entry->opcode = IORING_OP_READ;
    entry->fd = fd;
    entry->addr = reinterpret_cast<uint64_t>(buffer);
    entry->len = length;
    entry->off = offset;
    entry->user_data = tag;
    submissions_.Word(params_.sq_off.array)[idx] = idx;
    __atomic_store_n(submissions_.Word(params_.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    ++pushed_;
  }

  // Submits what was pushed and waits until at least one read has ended.
  int Enter() {
    const long entered =
        syscall(__NR_io_uring_enter, ring_, pushed_, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (entered < 0) return errno == EINTR ? 0 : -errno;
    pushed_ -= static_cast<uint32_t>(entered);
    return 0;
  }

  bool Pop(uint64_t* tag, int32_t* result) {
    const uint32_t head = *completions_.Word(params_.cq_off.head);
    if (head == __atomic_load_n(completions_.Word(params_.cq_off.tail), __ATOMIC_ACQUIRE)) {
      return false;
    }
    const uint32_t idx = head & *completions_.Word(params_.cq_off.ring_mask);
    const auto* all =
        reinterpret_cast<struct io_uring_cqe*>(completions_.memory + params_.cq_off.cqes);
    *tag = all[idx].user_data;
    *result = all[idx].res;
    __atomic_store_n(completions_.Word(params_.cq_off.head), head + 1, __ATOMIC_RELEASE);
    return true;
  }

 private:
  struct io_uring_params params_;
  int ring_ = -1;
  uint32_t pushed_ = 0;
  Mapping submissions_;
  Mapping completions_;
  Mapping entries_;
};

// What one read brings: records [first, end) of the batch.
struct Range {
  uint64_t first = 0;
  uint64_t end = 0;
  uint64_t offset = 0;
};

struct Request {
  const int32_t* files;     // of each record, an index into the descriptors
  const uint64_t* offsets;  // of each record in its file, ascending within a file
  uint64_t count;
  uint64_t record_bytes;
  uint64_t gap;         // ranges that lie no further apart are read as one
  uint64_t most_bytes;  // of a range, a multiple of the block
};

Range NextRange(const Request& request, uint64_t first, uint32_t* length) {
  Range range{first, first, 0};
  range.offset = request.offsets[first] / kBlock * kBlock;
  uint64_t end_byte = range.offset;
  while (range.end < request.count && request.files[range.end] == request.files[first]) {
    const uint64_t begin = request.offsets[range.end];
    const uint64_t end = (begin + request.record_bytes + kBlock - 1) / kBlock * kBlock;
    const bool is_far = begin > end_byte + request.gap && range.end > first;
    if (is_far || (end - range.offset > request.most_bytes && range.end > first)) break;
    end_byte = end;
    ++range.end;
  }
  *length = static_cast<uint32_t>(end_byte - range.offset);
  return range;
}

}  // namespace

// Copies the record at offsets[i] of descriptors[files[i]] to record order[i] of `out`, for all
// i < count; returns 0 or -errno. `buffers` has `depth` times `most_bytes` and two blocks, aligned
// to blocks; `figures` gets the number of reads and their bytes.
extern "C" int random_read(const int32_t* descriptors, const int32_t* files,
                           const uint64_t* offsets, const uint64_t* order, uint64_t count,
                           uint64_t record_bytes, uint32_t depth, uint64_t gap, uint64_t most_bytes,
                           char* buffers, char* out, uint64_t* figures) {
  const Request request{files, offsets, count, record_bytes, gap, most_bytes};
  Ring ring;
  if (const int failed = ring.Open(depth); failed != 0) return failed;
  const uint64_t slot_bytes = most_bytes + 2 * kBlock;
  std::vector<Range> ranges(depth);
  std::vector<uint64_t> idle(depth);
  for (uint32_t i = 0; i < depth; ++i) idle[i] = i;
  uint64_t next = 0;
  int failed = 0;
  figures[0] = figures[1] = 0;
  while (idle.size() < depth || (failed == 0 && next < count)) {
    while (failed == 0 && next < count && !idle.empty()) {
      const uint64_t slot = idle.back();
      idle.pop_back();
      uint32_t length = 0;
      ranges[slot] = NextRange(request, next, &length);
      next = ranges[slot].end;
      ring.Push(descriptors[files[ranges[slot].first]], buffers + slot * slot_bytes, length,
                ranges[slot].offset, slot);
      figures[0] += 1;
      figures[1] += length;
    }
    // What is under way ends with the ring; the buffers are the caller's, and outlive it.
    if (const int refused = ring.Enter(); refused != 0) return refused;
    uint64_t slot = 0;
    int32_t result = 0;
    while (ring.Pop(&slot, &result)) {
      const Range& range = ranges[slot];
      const uint64_t last_byte = offsets[range.end - 1] + record_bytes - range.offset;
      if (result < 0) failed = result;
      if (result >= 0 && static_cast<uint64_t>(result) < last_byte) failed = -EIO;
      for (uint64_t i = range.first; i < range.end && failed == 0; ++i) {
        const uint64_t at = offsets[i] - range.offset;
        std::memcpy(out + order[i] * record_bytes, buffers + slot * slot_bytes + at, record_bytes);
      }
      idle.push_back(slot);
    }
  }
  return failed;
}

// Announces the pages of ascending records to the kernel, neighbours together; returns 0 or -errno.
extern "C" int announce(int fd, const int32_t* files, const uint64_t* offsets, uint64_t count,
                        uint64_t record_bytes) {
  const Request request{files, offsets, count, record_bytes, 0, kMostAnnounced};
  for (uint64_t next = 0; next < count;) {
    uint32_t length = 0;
    const Range range = NextRange(request, next, &length);
    const int failed =
        posix_fadvise(fd, static_cast<off_t>(range.offset), length, POSIX_FADV_WILLNEED);
    if (failed != 0) return -failed;
    next = range.end;
  }
  return 0;
}
