// LogWriter: the files that the log grows into: space reserved ahead, writes, syncs, the mark.
//
// Above it: update_log's thread. Below it: log_mark, ssd_store's file_system. For one thread at a
// time, but for Forget. A file is made as `spare`, its space reserved, and gets its name when its
// first record is known. Nothing is synced before somebody asks: what a checkpoint makes needless
// soon may never reach the disk.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "update_log/log_mark.h"

namespace hps {

class LogWriter {
 public:
  // `mark_file` has begun; what it says is synced. The next file follows one that ends at
  // `end_before`, or none: 0.
  LogWriter(FileSystem* files, std::string folder, std::unique_ptr<LogMarkFile> mark_file,
            uint64_t end_before);

  // The spare file has space for so many bytes. An error changes nothing.
  Status ReserveSpare(uint64_t bytes);
  // The present file has space up to `end`, and had up to `start`. An error changes nothing.
  Status Grow(uint64_t start, uint64_t end) { return current_->Allocate(start, end - start); }
  // The spare file becomes the one that begins with record `first`, header written.
  Status Start(uint64_t first);
  Status Write(uint64_t offset, const void* bytes, uint64_t size);
  // All that was written is whole frames up to here.
  Status NoteWritten(LogPosition end, uint64_t last_record, uint64_t number);
  // Makes durable what was written and not forgotten.
  Status Sync();
  // Lets go of full files whose records are all up to `number`: a sync leaves them out, and their
  // space is given back, by this call, if they have lost their names.
  void Forget(uint64_t number);
  // Gives back what is reserved, and syncs the mark.
  Status Close();

 private:
  // Kept open: a file that is opened again may not tell of an error that befell it before.
  struct FullFile {
    std::shared_ptr<File> file;
    uint64_t last = 0;  // number of its last record
  };
  Status SyncFiles();

  FileSystem* files_;
  std::string folder_;
  std::unique_ptr<LogMarkFile> mark_file_;
  LogMark mark_;
  std::unique_ptr<File> spare_;
  uint64_t spare_bytes_ = 0;
  std::unique_ptr<File> current_;
  uint64_t current_end_;  // at first: of the newest file that an opening found
  bool has_new_names_ = false;
  std::mutex unsynced_mutex_;
  std::vector<FullFile> unsynced_;  // oldest first
};

}  // namespace hps
