// HostMemory: one zeroed anonymous mapping for a table, on huge pages where that is asked for and
// the kernel grants them.
//
// Above it: dram_cache. Below it: mmap. With 4 KiB pages a random look-up misses the TLB as often
// as the cache; without huge pages the sparse step loses about a fifth. Owns the mapping.
#pragma once

#include <cstdint>

#include "common/status.h"

namespace hps {

class HostMemory {
 public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Maps `bytes` of zeros, which take memory once they are touched; kCapacity if the machine
  // refuses.
  Status Map(int64_t bytes);
  // What is touched from now on in [first, first + count) is to lie on huge pages: two MiB of
  // memory for the first byte of each.
  void PreferHugePages(int64_t first, int64_t count);

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace hps
