// Batch reads of POSIX files: many under way at once, by a ring or by threads.
//
// Above it: posix_file_system. Below it: read_ring, posix_file. Both hold a bounded number of
// buffers and begin reads in the order given. Thread-safe: a call shares nothing with another.
#pragma once

#include "ssd_store/posix_file.h"
#include "ssd_store/read_ring.h"

namespace hps {

inline constexpr uint32_t kRingDepth = 256;

// The files are PosixFiles. As FileSystem::ReadBatch; `ring` is fresh, its depth the
// smaller of `count` and kRingDepth.
Status ReadByRing(ReadRing* ring, const BatchRead* reads, uint64_t count, const ReadSink& sink);
Status ReadByThreads(const BatchRead* reads, uint64_t count, const ReadSink& sink);

}  // namespace hps
