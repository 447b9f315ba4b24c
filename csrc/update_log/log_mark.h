// LogMark: how far the log was written and synced, kept beside it, so that damage can be told from
// a tear.
//
// Above it: log_scan, log_writer, update_log. Below it: log_format, files/file_system. A
// frame that is not whole may be what a crash left of it, or damage of one that was acknowledged:
// what lies below the mark was there once. The mark is rewritten after each write and each sync of
// the log, into one of two slots in turn, and synced with nothing but an opening and a close; an
// older one is as true as a newer one and only tells less. For one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "files/file_system.h"
#include "update_log/log_format.h"

namespace hps {

struct LogMark {
  uint64_t boot = 0;  // FileSystem::BootNumber of who wrote it
  LogPosition written;
  // Where the newest frame begins, in the same file, if it is a record; else written.offset.
  uint64_t last_record = 0;
  uint64_t number_written = 0;  // of the newest record
  LogPosition synced;
  uint64_t number_synced = 0;
  bool has_failed = false;  // a sync: the system may have forgotten what it had not synced

  // Below this place all frames must be whole, when the machine has this boot number and the
  // records up to `after` are not needed any more.
  LogPosition Required(uint64_t boot_now, uint64_t after) const;
};

class LogMarkFile {
 public:
  // Reads the file in a folder, if there is one.
  static Status Open(FileSystem* files, const std::string& folder,
                     std::unique_ptr<LogMarkFile>* mark_file);

  const std::string& path() const { return path_; }
  // Whether a whole mark was found, and of which log.
  bool has_mark() const { return counter_ > 0; }
  const LogIdentity& identity() const { return identity_; }
  const LogMark& mark() const { return mark_; }

  // The file is there from now on, durably, and marks are this log's; the next Write says the
  // first.
  Status Begin(const LogIdentity& identity);
  Status Write(const LogMark& mark);
  Status Sync() { return file_->SyncData(); }

 private:
  LogMarkFile(FileSystem* files, const std::string& folder)
      : files_(files), folder_(folder), path_(folder + "/" + kLogMarkName) {}
  std::string Encode() const;
  bool Decode(std::string_view slot);

  FileSystem* files_;
  std::string folder_;
  std::string path_;
  std::unique_ptr<File> file_;
  LogIdentity identity_;
  LogMark mark_;
  uint64_t counter_ = 0;         // of marks written; 0: none
  uint32_t newest_version_ = 0;  // of the format, of the slots that were read
};

}  // namespace hps
