// LogWriter: the files that the log grows into: space reserved ahead, writes, syncs, the mark.
//
// Above it: update_log's thread. Below it: log_mark, files/file_system. For one thread at a
// time, but for Forget, Retire, KeepUsed. A file is made as `spare`, its space reserved, and gets
// its name when its first record is known; rather than a new one, one that has done its service is
// taken, with its pages in memory. Nothing is synced before somebody asks: what a checkpoint makes
// needless soon may never reach the disk.
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

  // The spare file has space for `ample` bytes or, on a full disk, at least `least`; *bytes tells.
  // An error changes nothing; before a full disk is reported all used files have gone.
  Status ReserveSpare(uint64_t least, uint64_t ample, uint64_t* bytes);
  // The present file has space up to `end`, and had up to `start`. Errors as ReserveSpare.
  Status Grow(uint64_t start, uint64_t end);
  // The spare file becomes the one that begins with record `first`, header written.
  Status Start(uint64_t first);
  Status Write(uint64_t offset, const void* bytes, uint64_t size);
  // All that was written is whole frames up to here.
  Status NoteWritten(LogPosition end, uint64_t last_record, uint64_t number);
  // Makes durable what was written and not forgotten.
  Status Sync();
  // Lets go of full files whose records are all up to `number`: a sync leaves them out.
  void Forget(uint64_t number);
  // The file that begins with record `first`, forgotten and in a durable checkpoint whole, may be
  // used again. What it holds stays in it, behind what is written anew, until it is full: none of
  // its numbers can be expected there.
  Status Retire(uint64_t first);
  // Of the files to be used again all but the newest `most` go.
  Status KeepUsed(uint64_t most);
  // Gives back what is reserved, and syncs the mark.
  Status Close();

 private:
  // Kept open: a file that is opened again may not tell of an error that befell it before.
  struct FullFile {
    std::shared_ptr<File> file;
    uint64_t last = 0;  // number of its last record
  };
  Status SyncFiles();
  Status OpenSpare();
  bool FreeUsed();

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
  std::mutex used_mutex_;
  std::vector<std::string> used_;  // paths of files to be used again, oldest first
};

}  // namespace hps
