// ScratchFolder: a folder that goes with its owner; and the options of a store with one small
// table.
//
// Above it: native tests of ssd_store. Below it: csrc/ssd_store.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "common/check.h"
#include "ssd_store/store.h"

namespace hps {

class ScratchFolder {
 public:
  enum class Where {
    kMemory,  // where the system has such a folder: disks' own syncs would only take time
    kDisk,    // a file system with everything that a real one has
  };

  explicit ScratchFolder(Where where = Where::kMemory) {
    const bool is_memory = where == Where::kMemory && std::filesystem::exists("/dev/shm");
    path_ = is_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string();
    path_ += "/hps_test_XXXXXX";
    HPS_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  void Reset() const {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }

 private:
  std::string path_;
};

// One table "ads" of rows that start as constants.
inline StoreOptions SmallStore(const std::string& path, uint32_t row_bytes,
                               uint64_t segment_bytes) {
  StoreOptions options;
  options.path = path;
  options.segment_bytes = segment_bytes;
  TableSchema schema;
  schema.name = "ads";
  schema.dim = 4;
  schema.initializer = "constant";
  schema.row_bytes = row_bytes;
  options.tables = {schema};
  return options;
}

}  // namespace hps
