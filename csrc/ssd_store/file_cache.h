// FileCache: keeps a bounded number of files open for reading, whatever the number of segments.
//
// Above it: table_store, row_fetch, scan. Below it: file_system. The file asked for longest ago is
// closed first; one that is still in use lives on until its user lets go. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "ssd_store/file_system.h"

namespace hps {

class FileCache {
 public:
  // `mode` is how files are opened: kReadScattered or kReadDirect.
  FileCache(FileSystem* files, size_t capacity, OpenMode mode)
      : files_(files), capacity_(capacity), mode_(mode) {}

  Status Open(uint64_t number, const std::string& path, std::shared_ptr<File>* file);
  void Forget(uint64_t number);

 private:
  struct Entry {
    std::shared_ptr<File> file;
    uint64_t used = 0;
  };

  FileSystem* files_;
  size_t capacity_;
  OpenMode mode_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Entry> open_;
  uint64_t clock_ = 0;
};

}  // namespace hps
