// HostMemory over mmap and madvise.
#include "common/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/check.h"

namespace hps {
namespace {

constexpr uint64_t kHugePage = 2 << 20;
constexpr uint64_t kWorthAHugePage = kHugePage / 4 * 3;  // bytes of a mapping's last one

uint64_t ToHugePages(uint64_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

}  // namespace

HostMemory::~HostMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
}

Status HostMemory::Map(int64_t bytes) {
  HPS_CHECK(mapping_ == nullptr && bytes > 0);
  const bool is_huge = static_cast<uint64_t>(bytes) >= kHugePage;
  // To the end of the last huge page, for the kernel makes none that is mapped in part.
  mapped_bytes_ = is_huge ? ToHugePages(static_cast<uint64_t>(bytes)) + kHugePage
                          : static_cast<uint64_t>(bytes);
  void* mapping = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return Status(StatusCode::kCapacity, "cannot map " + std::to_string(bytes) +
                                             " bytes of host memory for a cache: " +
                                             std::strerror(errno) + "; ask for a smaller budget");
  }
  mapping_ = mapping;
  const uint64_t start = reinterpret_cast<uint64_t>(mapping);
  data_ = reinterpret_cast<uint8_t*>(is_huge ? ToHugePages(start) : start);
  bytes_ = bytes;
  return Status::Ok();
}

void HostMemory::PreferHugePages(int64_t first, int64_t count) {
  HPS_CHECK(first >= 0 && count >= 0 && first + count <= bytes_);
  const auto whole = static_cast<uint64_t>(bytes_);
  if (whole < kHugePage) return;
  const uint64_t begin = static_cast<uint64_t>(first) / kHugePage * kHugePage;
  const uint64_t end = ToHugePages(static_cast<uint64_t>(first + count));
  const bool is_last_worth_it = whole % kHugePage >= kWorthAHugePage;
  const uint64_t most = is_last_worth_it ? ToHugePages(whole) : whole;
  // Advice only: a kernel without transparent huge pages refuses, and small pages do.
  (void)madvise(data_ + begin, std::min(end, most) - begin, MADV_HUGEPAGE);
}

}  // namespace hps
