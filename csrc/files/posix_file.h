// PosixFile: one open descriptor behind the File interface, and what batch reads need of it.
//
// Above it: posix_file_system, batch_read. Below it: the kernel's calls, retried on EINTR and on
// short transfers. Thread-safety: as File.
#pragma once

#include <new>

#include "files/file_system.h"

namespace hps {

// Offsets, sizes and memory of direct reads are multiples of this, which suits every block size.
inline constexpr uint64_t kDirectAlignment = 4096;

// Memory that direct reads may write to.
struct FreeAligned {
  void operator()(char* memory) const {
    ::operator delete(memory, std::align_val_t{kDirectAlignment});
  }
};
using AlignedMemory = std::unique_ptr<char, FreeAligned>;
inline AlignedMemory AllocateAligned(uint64_t size) {
  return AlignedMemory(
      static_cast<char*>(::operator new(size, std::align_val_t{kDirectAlignment})));
}

// kCorruption: the file ends at `offset` though `missing` more bytes are expected.
Status FileEndsEarly(const std::string& path, uint64_t offset, uint64_t missing);
// kStore, naming path and offset of a read that the system refused.
Status ReadError(const std::string& path, uint64_t offset, int error);

class PosixFile final : public File {
 public:
  PosixFile(std::string path, int descriptor, bool is_direct)
      : File(std::move(path)), descriptor_(descriptor), is_direct_(is_direct) {}
  ~PosixFile() override;

  int descriptor() const { return descriptor_; }
  // What a read's offset and size must be a multiple of.
  uint64_t alignment() const { return is_direct_ ? kDirectAlignment : 1; }

  Status Read(uint64_t offset, uint64_t size, void* bytes) override;
  bool ReadCached(uint64_t offset, uint64_t size, void* bytes) override;
  bool IsCached(uint64_t offset, uint64_t size) override;
  Status Write(uint64_t offset, const void* bytes, uint64_t size) override;
  Status Allocate(uint64_t offset, uint64_t size) override;
  Status Truncate(uint64_t size) override;
  Status SyncData() override;
  void StartWriteback(uint64_t offset, uint64_t size) override;
  Status Size(uint64_t* size) override;
  Status TryLock(bool exclusive, bool* taken) override;
  Status IsLinked(bool* linked) override;

 private:
  Status ReadPlain(uint64_t offset, uint64_t size, char* bytes);
  Status ReadDirect(uint64_t offset, uint64_t size, char* bytes);

  int descriptor_;
  bool is_direct_;
};

// The disk begins to take over what was written there; returns at once.
void StartWriteback(int descriptor, uint64_t offset, uint64_t size);

}  // namespace hps
