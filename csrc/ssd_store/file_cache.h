// FileCache: keeps a bounded number of files open for reading, whatever the number of segments.
//
// Above it: table_store, row_fetch, scan. Below it: file_system. The file asked for longest ago is
// closed first; one that is still in use lives on until its user lets go. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "files/file_system.h"

namespace hps {

class FileCache {
 public:
  // `mode` is how files are opened: kReadScattered or kReadDirect.
  FileCache(FileSystem* files, size_t capacity, OpenMode mode)
      : files_(files), capacity_(capacity), mode_(mode) {}

  Status Open(uint64_t number, const std::string& path, std::shared_ptr<File>* file);
  // The same file for reads past the page cache; none where Open's go past it anyway, and where the
  // file system has no such reads.
  Status OpenDirect(uint64_t number, const std::string& path, std::shared_ptr<File>* file);
  // Of reads that the page cache could not answer, whether the next one is to go through it all the
  // same and stay there: one in sixteen.
  bool Admits() {
    return (num_missed_.fetch_add(1, std::memory_order_relaxed) + 1) % kAdmitted == 0;
  }
  void Forget(uint64_t number);

 private:
  static constexpr uint64_t kAdmitted = 16;

  struct Entry {
    std::shared_ptr<File> file;
    uint64_t used = 0;
  };

  Status OpenAs(OpenMode mode, uint64_t number, const std::string& path,
                std::shared_ptr<File>* file);
  // Twice a segment's number, and one more for its direct reads.
  uint64_t SlotOf(OpenMode mode, uint64_t number) const {
    return 2 * number + (mode == mode_ ? 0 : 1);
  }

  FileSystem* files_;
  size_t capacity_;
  OpenMode mode_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Entry> open_;
  uint64_t clock_ = 0;
  std::atomic<bool> is_refused_{false};  // the file system has no direct reads
  std::atomic<uint64_t> num_missed_{0};
};

}  // namespace hps
