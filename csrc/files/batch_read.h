// Batch reads of POSIX files: many under way at once, by a ring or by threads.
//
// Above it: posix_file_system. Below it: read_ring, posix_file. Both hold a bounded number of
// buffers and begin reads in the order given. Thread-safe: a call shares nothing with another.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "common/host_memory.h"
#include "files/posix_file.h"
#include "files/read_ring.h"

namespace hps {

inline constexpr uint32_t kRingDepth = 256;

// What large batches read into, kept from one to the next: memory that is new to the process, and
// perhaps to its machine, costs as much as the disk does. Mapped for itself, since memory that was
// something else before stays on small pages, which direct reads have to pin one by one.
// Thread-safe without a lock, so that a forked child never meets one that its parent held.
class ReadBuffers {
 public:
  static constexpr uint64_t kBytes = uint64_t{16} << 20;

  ReadBuffers() = default;
  ~ReadBuffers();
  ReadBuffers(const ReadBuffers&) = delete;
  ReadBuffers& operator=(const ReadBuffers&) = delete;

  // kBytes; null if the system has no memory left.
  std::unique_ptr<HostMemory> Take();
  void GiveBack(std::unique_ptr<HostMemory> memory);

 private:
  std::array<std::atomic<HostMemory*>, 4> kept_{};
};

// The files are PosixFiles. As FileSystem::ReadBatch; `ring` is fresh, its depth the
// smaller of `count` and kRingDepth.
Status ReadByRing(ReadRing* ring, ReadBuffers* spare, const BatchRead* reads, uint64_t count,
                  const ReadSink& sink);
Status ReadByThreads(const BatchRead* reads, uint64_t count, const ReadSink& sink);

}  // namespace hps
