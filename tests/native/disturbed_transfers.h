// TheTransfers: this program's pread, pwrite, fallocate and syncs, which are called in the place of
// the C library's and are interrupted or come short when a recipe asks for that.
//
// Above it: ssd_disk_test.cc, update_log_disk_test.cc. Below it: recipe.h, the kernel. For one file
// of a program. Thread-safe; the seed is set, and the counts are read, while nobody transfers.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>

#include "common/check.h"
#include "recipe.h"

namespace hps {

// Off until a recipe sets a seed.
struct Transfers {
  std::atomic<bool> are_disturbed{false};
  std::mutex mutex;  // of the rest
  std::mt19937_64 random;
  int64_t num_interrupted = 0;
  int64_t num_short = 0;

  bool Interrupts() {
    if (!are_disturbed) return false;
    const std::lock_guard<std::mutex> lock(mutex);
    const bool does = random() % 3 == 0;
    num_interrupted += does;
    if (does) errno = EINTR;
    return does;
  }
  size_t Shorten(size_t size) {
    if (!are_disturbed || size < 2) return size;
    const std::lock_guard<std::mutex> lock(mutex);
    if (random() % 2 == 0) return size;
    ++num_short;
    return 1 + random() % (size - 1);
  }
};

inline Transfers& TheTransfers() {
  static Transfers transfers;
  return transfers;
}

// Recipe F3: run(seed) says what is wrong with what it did while transfers were interrupted and
// shortened at random, or "": nobody may notice.
template <class Run>
void DisturbTransfers(uint64_t num_seeds, Run run, Recipe* recipe) {
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    TheTransfers().random.seed(seed);
    TheTransfers().are_disturbed = true;
    const std::string wrong = run(seed);
    TheTransfers().are_disturbed = false;
    ++recipe->runs;
    recipe->Note(wrong, static_cast<int64_t>(seed), 0);
  }
  HPS_CHECK(TheTransfers().num_interrupted > 100 && TheTransfers().num_short > 100);
}

}  // namespace hps

extern "C" ssize_t pread(int descriptor, void* bytes, size_t size, off_t offset) {
  hps::Transfers& transfers = hps::TheTransfers();
  if (transfers.Interrupts()) return -1;
  return syscall(SYS_pread64, descriptor, bytes, transfers.Shorten(size), offset);
}

extern "C" ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  hps::Transfers& transfers = hps::TheTransfers();
  if (transfers.Interrupts()) return -1;
  return syscall(SYS_pwrite64, descriptor, bytes, transfers.Shorten(size), offset);
}

extern "C" int fallocate(int descriptor, int mode, off_t offset, off_t size) {
  if (hps::TheTransfers().Interrupts()) return -1;
  return static_cast<int>(syscall(SYS_fallocate, descriptor, mode, offset, size));
}

extern "C" int fdatasync(int descriptor) {
  if (hps::TheTransfers().Interrupts()) return -1;
  return static_cast<int>(syscall(SYS_fdatasync, descriptor));
}

extern "C" int fsync(int descriptor) {
  if (hps::TheTransfers().Interrupts()) return -1;
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}
