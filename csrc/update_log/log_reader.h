// LogReader: the records of one file of the log, one after the other, each checked.
//
// Above it: log_scan, update_log (replay). Below it: log_format, files/file_system. It holds
// one record, and memory for it: never more than the file has bytes. For one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "files/file_system.h"
#include "update_log/log_format.h"

namespace hps {

class LogReader {
 public:
  // Opens a file and reads its header. *has_header false: the bytes are no header of a file that
  // begins with record `first`.
  Status Open(FileSystem* files, const std::string& path, uint64_t first, bool* has_header);

  const std::string& path() const { return file_->path(); }
  const LogFileHeader& header() const { return header_; }
  uint64_t size() const { return size_; }

  // Goes to the next record that was not taken back. False (and ok) where no whole frame follows:
  // that is the end, if offset() is size(), or a tear, or damage.
  Status Next(bool* is_found);
  uint64_t number() const { return number_; }
  std::string_view payload() const { return payload_; }  // until the next call
  uint64_t frame_bytes() const { return offset_ - frame_; }
  // Behind the last whole frame.
  uint64_t offset() const { return offset_; }
  // Where Next has found none: of the expected record, as far as there is something of it.
  uint64_t torn_bytes() const { return torn_bytes_; }
  // Where that frame begins, if it is a record that counts; else as offset().
  uint64_t last_record() const { return last_record_; }

 private:
  // The frame at offset_ is whole: its header and payload. A frame that takes back is whole only
  // behind its record.
  Status ReadFrame(FrameHeader* header, bool* is_whole);
  bool IsTakenBack(uint64_t place, uint64_t number) const;
  // Gets [offset, offset + size) into memory, at Bytes(offset).
  Status Load(uint64_t offset, uint64_t size);
  const char* Bytes(uint64_t offset) const { return memory_.get() + (offset - loaded_from_); }

  std::unique_ptr<File> file_;
  LogFileHeader header_;
  uint64_t seed_ = 0;
  uint64_t size_ = 0;
  uint64_t offset_ = 0;
  uint64_t frame_ = 0;
  uint64_t torn_bytes_ = 0;
  uint64_t last_record_ = 0;
  uint64_t next_number_ = 0;
  uint64_t number_ = 0;
  std::string_view payload_;
  std::unique_ptr<char[]> memory_;
  uint64_t capacity_ = 0;
  uint64_t loaded_from_ = 0;
  uint64_t loaded_to_ = 0;
};

}  // namespace hps
