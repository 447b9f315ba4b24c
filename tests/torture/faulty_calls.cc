// System calls that fail on demand, put before a real server process by LD_PRELOAD.
//
// Above it: faulty_calls.py, which builds it and writes the block of shared memory below. Below it:
// libc. HPS_FAULTS names the file of the block; without it every call goes through. Syncs fail for
// files whose path holds "/log/". A disk is full when the files of HPS_FAULTS_FOLDER take more than
// the limit, and slow when writes and syncs wait; so no root and no file system of its own is
// needed. A process may also die at a call that changes something.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace {

struct Block {
  int64_t syncs_to_fail;
  int64_t failed_syncs;
  int64_t disk_bytes;  // 0: no limit
  int64_t refusals;
  int64_t drops;     // not 0: what has no space is reported as done (the planted bug)
  int64_t delay_us;  // of each write and sync
  int64_t delays;
  int64_t calls;    // that changed a file or a folder
  int64_t dies_at;  // not 0: the process dies at that call; of what it was to write half is there
};

Block* FindBlock() {
  static Block* block = nullptr;
  if (block != nullptr) return block;
  const char* path = getenv("HPS_FAULTS");
  if (path == nullptr) return nullptr;
  const int descriptor = open(path, O_RDWR);
  if (descriptor < 0) return nullptr;
  void* memory = mmap(nullptr, sizeof(Block), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (memory != MAP_FAILED) block = static_cast<Block*>(memory);
  return block;
}

template <class Call>
Call* Next(const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}

bool IsOfLog(int descriptor) {
  char link[64];
  char path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length < 0) return false;
  path[length] = '\0';
  return strstr(path, "/log/") != nullptr;
}

void Delay() {
  Block* block = FindBlock();
  if (block == nullptr) return;
  const int64_t delay = __atomic_load_n(&block->delay_us, __ATOMIC_ACQUIRE);
  if (delay == 0) return;
  __atomic_fetch_add(&block->delays, 1, __ATOMIC_ACQ_REL);
  usleep(static_cast<useconds_t>(delay));
}

// Counts a call that is about to change something; true of the one at which the process is to die.
bool IsLast() {
  Block* block = FindBlock();
  if (block == nullptr) return false;
  const int64_t number = __atomic_add_fetch(&block->calls, 1, __ATOMIC_ACQ_REL);
  return number == __atomic_load_n(&block->dies_at, __ATOMIC_ACQUIRE);
}

void DieIfLast() {
  if (IsLast()) kill(getpid(), SIGKILL);
}

bool FailsToSync(int descriptor) {
  DieIfLast();
  Delay();
  Block* block = FindBlock();
  if (block == nullptr || !IsOfLog(descriptor)) return false;
  if (__atomic_load_n(&block->syncs_to_fail, __ATOMIC_ACQUIRE) <= 0) return false;
  __atomic_fetch_sub(&block->syncs_to_fail, 1, __ATOMIC_ACQ_REL);
  __atomic_fetch_add(&block->failed_syncs, 1, __ATOMIC_ACQ_REL);
  errno = EIO;
  return true;
}

int64_t BytesUnder(const std::string& folder) {
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return 0;
  int64_t bytes = 0;
  while (const dirent* entry = readdir(entries)) {
    const std::string name = entry->d_name;
    struct stat found;
    const std::string path = folder + "/" + name;
    if (name == "." || name == ".." || lstat(path.c_str(), &found) != 0) continue;
    bytes += S_ISDIR(found.st_mode) ? BytesUnder(path) : found.st_blocks * 512;
  }
  closedir(entries);
  return bytes;
}

bool IsFull(int descriptor, int64_t end) {
  Block* block = FindBlock();
  if (block == nullptr) return false;
  const int64_t limit = __atomic_load_n(&block->disk_bytes, __ATOMIC_ACQUIRE);
  const char* folder = getenv("HPS_FAULTS_FOLDER");
  struct stat found;
  if (limit == 0 || folder == nullptr || fstat(descriptor, &found) != 0) return false;
  const int64_t allocated = found.st_blocks * 512;
  if (!S_ISREG(found.st_mode) || end <= allocated) return false;
  if (BytesUnder(folder) + end - allocated <= limit) return false;
  __atomic_fetch_add(&block->refusals, 1, __ATOMIC_ACQ_REL);
  errno = ENOSPC;
  return true;
}

// What a call returns that finds the disk full.
template <class Result>
Result WithoutSpace(Result done) {
  return __atomic_load_n(&FindBlock()->drops, __ATOMIC_ACQUIRE) != 0 ? done : -1;
}

}  // namespace

extern "C" {

int fdatasync(int descriptor) {
  return FailsToSync(descriptor) ? -1 : Next<decltype(fdatasync)>("fdatasync")(descriptor);
}

int fsync(int descriptor) {
  return FailsToSync(descriptor) ? -1 : Next<decltype(fsync)>("fsync")(descriptor);
}

int fallocate(int descriptor, int mode, off_t offset, off_t length) {
  DieIfLast();
  if (IsFull(descriptor, offset + length)) return WithoutSpace(0);
  return Next<decltype(fallocate)>("fallocate")(descriptor, mode, offset, length);
}

ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  Delay();
  const bool is_last = IsLast();
  if (IsFull(descriptor, offset + static_cast<int64_t>(size))) {
    return WithoutSpace(static_cast<ssize_t>(size));
  }
  const ssize_t written =
      Next<decltype(pwrite)>("pwrite")(descriptor, bytes, is_last ? size / 2 : size, offset);
  if (is_last) kill(getpid(), SIGKILL);
  return written;
}

int ftruncate(int descriptor, off_t length) {
  DieIfLast();
  return Next<decltype(ftruncate)>("ftruncate")(descriptor, length);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  DieIfLast();
  return Next<decltype(renameat)>("renameat")(from_folder, from, to_folder, to);
}

int unlinkat(int folder, const char* name, int flags) {
  DieIfLast();
  return Next<decltype(unlinkat)>("unlinkat")(folder, name, flags);
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  DieIfLast();
  return Next<decltype(linkat)>("linkat")(from_folder, from, to_folder, to, flags);
}

int openat(int folder, const char* name, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | __O_TMPFILE)) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
    DieIfLast();
  }
  return Next<decltype(openat)>("openat")(folder, name, flags, mode);
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t length) {
  return fallocate(descriptor, mode, offset, length);
}

ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off64_t offset) {
  return pwrite(descriptor, bytes, size, offset);
}

}  // extern "C"
