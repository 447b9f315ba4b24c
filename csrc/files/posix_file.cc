// PosixFile's calls.
//
// Above it: posix_file.h. Below it: the kernel.
#include "files/posix_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hps {
namespace {

constexpr uint64_t kLargestTransfer = uint64_t{1}
                                      << 30;  // the kernel moves just under 2 GiB a call
constexpr uint64_t kDirectPiece = uint64_t{1} << 20;

// What the kernel's cachestat takes and gives (6.5 and later); newer than the headers of many
// systems. Its number is the same on all processors but one that nobody uses any more.
constexpr long kCachestat = 451;
struct CachestatRange {
  uint64_t offset;
  uint64_t length;
};
struct Cachestat {
  uint64_t cached;
  uint64_t others[4];
};

}  // namespace

Status FileEndsEarly(const std::string& path, uint64_t offset, uint64_t missing) {
  return Status(StatusCode::kCorruption, path + ": offset " + std::to_string(offset) +
                                             ": the file ends here, " + std::to_string(missing) +
                                             " more bytes expected");
}

Status ReadError(const std::string& path, uint64_t offset, int error) {
  return SystemError("read from offset " + std::to_string(offset) + " of", path, error);
}

PosixFile::~PosixFile() { close(descriptor_); }

Status PosixFile::Read(uint64_t offset, uint64_t size, void* bytes) {
  char* target = static_cast<char*>(bytes);
  return is_direct_ ? ReadDirect(offset, size, target) : ReadPlain(offset, size, target);
}

Status PosixFile::ReadPlain(uint64_t offset, uint64_t size, char* bytes) {
  while (size > 0) {
    const ssize_t count =
        pread(descriptor_, bytes, std::min(size, kLargestTransfer), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ReadError(path(), offset, errno);
    if (count == 0) return FileEndsEarly(path(), offset, size);
    bytes += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<uint64_t>(count);
  }
  return Status::Ok();
}

// Whole blocks into an aligned buffer, and from there what was asked for.
Status PosixFile::ReadDirect(uint64_t offset, uint64_t size, char* bytes) {
  uint64_t start = offset / kDirectAlignment * kDirectAlignment;
  const uint64_t end = offset + size;
  const uint64_t whole = (end - start + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
  const uint64_t capacity = std::min(whole, kDirectPiece);
  const AlignedMemory buffer = AllocateAligned(capacity);
  while (offset < end) {
    const ssize_t count = pread(descriptor_, buffer.get(), capacity, static_cast<off_t>(start));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ReadError(path(), start, errno);
    const uint64_t reached = start + static_cast<uint64_t>(count);
    if (reached <= offset) {  // a short read, or the end
      uint64_t file_size = 0;
      HPS_RETURN_IF_ERROR(Size(&file_size));
      if (file_size <= offset) return FileEndsEarly(path(), file_size, end - file_size);
      continue;
    }
    const uint64_t taken = std::min(reached, end) - offset;
    std::memcpy(bytes, buffer.get() + (offset - start), taken);
    bytes += taken;
    offset += taken;
    start = offset / kDirectAlignment * kDirectAlignment;
  }
  return Status::Ok();
}

bool PosixFile::ReadCached(uint64_t offset, uint64_t size, void* bytes) {
  if (is_direct_ || size > kLargestTransfer) return false;
  const iovec target{bytes, size};
  const ssize_t count = preadv2(descriptor_, &target, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  return count >= 0 && static_cast<uint64_t>(count) == size;
}

// A read that may not wait would tell too, but it starts to read what is not there.
bool PosixFile::IsCached(uint64_t offset, uint64_t size) {
  if (is_direct_ || size == 0) return false;
  const CachestatRange range{offset, size};
  Cachestat figures{};
  if (syscall(kCachestat, descriptor_, &range, &figures, 0) == 0) {
    const auto page = static_cast<uint64_t>(getpagesize());
    return figures.cached == (offset + size - 1) / page - offset / page + 1;
  }
  char byte = 0;  // an older kernel, or a file of somebody else's
  return ReadCached(offset, 1, &byte);
}

Status PosixFile::Write(uint64_t offset, const void* bytes, uint64_t size) {
  const char* source = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t count =
        pwrite(descriptor_, source, std::min(size, kLargestTransfer), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return SystemError("write", path(), count < 0 ? errno : EIO);
    source += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<uint64_t>(count);
  }
  return Status::Ok();
}

Status PosixFile::Allocate(uint64_t offset, uint64_t size) {
  int result = 0;
  do {
    result = fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                       static_cast<off_t>(size));
  } while (result != 0 && errno == EINTR);
  // A file system without reservation reports a full disk at the write instead.
  if (result != 0 && errno != EOPNOTSUPP) return SystemError("reserve space in", path(), errno);
  return Status::Ok();
}

Status PosixFile::Truncate(uint64_t size) {
  if (ftruncate(descriptor_, static_cast<off_t>(size)) != 0) {
    return SystemError("truncate", path(), errno);
  }
  return Status::Ok();
}

Status PosixFile::SyncData() {
  int result = 0;
  do {
    result = fdatasync(descriptor_);
  } while (result != 0 && errno == EINTR);  // no other error may be tried again
  if (result != 0) return SystemError("fdatasync", path(), errno);
  return Status::Ok();
}

void PosixFile::StartWriteback(uint64_t offset, uint64_t size) {
  hps::StartWriteback(descriptor_, offset, size);
}

void StartWriteback(int descriptor, uint64_t offset, uint64_t size) {
  // A hint: an error shows again when the file is synced.
  (void)sync_file_range(descriptor, static_cast<off_t>(offset), static_cast<off_t>(size),
                        SYNC_FILE_RANGE_WRITE);
}

Status PosixFile::Size(uint64_t* size) {
  struct stat facts;
  if (fstat(descriptor_, &facts) != 0) return SystemError("stat", path(), errno);
  *size = static_cast<uint64_t>(facts.st_size);
  return Status::Ok();
}

Status PosixFile::TryLock(bool exclusive, bool* taken) {
  *taken = flock(descriptor_, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0;
  if (!*taken && errno != EWOULDBLOCK) return SystemError("lock", path(), errno);
  return Status::Ok();
}

Status PosixFile::IsLinked(bool* linked) {
  struct stat facts;
  if (fstat(descriptor_, &facts) != 0) return SystemError("stat", path(), errno);
  *linked = facts.st_nlink > 0;
  return Status::Ok();
}

}  // namespace hps
