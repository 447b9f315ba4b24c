// ScanLog: what a folder's log holds, found by reading all of it, before anything builds on it.
//
// Above it: update_log. Below it: log_reader, log_mark. It changes nothing.
#pragma once

#include <string>
#include <vector>

#include "update_log/log_mark.h"
#include "update_log/log_sizes.h"

namespace hps {

struct LogFile {
  std::string path;
  uint64_t first = 0;        // number of its first record
  uint64_t end = 0;          // behind its last whole frame
  uint64_t last_record = 0;  // as LogReader::last_record, at the end
};

struct LogContents {
  std::vector<LogFile> files;          // those still needed, oldest first
  std::vector<std::string> leftovers;  // paths of those that are not
  uint64_t last = 0;                   // number of the newest record, or `after`
  uint64_t dropped_bytes = 0;          // of the torn record, and of files behind it
  LogSizes sizes;                      // of the records behind `after`
};

struct LogQuestion {
  std::string folder;
  LogIdentity identity;
  uint64_t after = 0;        // records up to it are not needed any more
  LogPosition required;      // below it all frames are whole; else damage
  uint64_t last_record = 0;  // where in that file the newest one begins: a damaged one is a tear
  bool has_mark = false;     // a mark was found, of whatever log
};

// kCorruption (file, offset, what was expected) for damage, but not for a torn end.
Status ScanLog(FileSystem* files, const LogQuestion& question, LogContents* contents);

}  // namespace hps
