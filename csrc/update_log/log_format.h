// The bytes of the update log: names, headers of files and frames, and what seeds a checksum.
// docs/update_log_format.md is the page that describes them; the two change together, and a change
// needs a new format version.
//
// Above it: log_mark, log_reader, log_scan, log_writer, update_log. Below it: the encoders, file
// names and checksums of ssd_store.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "files/encoding.h"

namespace hps {

inline constexpr uint32_t kLogVersion = 1;
inline constexpr std::string_view kLogFileMagic = "HPSULOG1";
inline constexpr std::string_view kLogMarkMagic = "HPSMARK1";
inline constexpr std::string_view kLogFilePrefix = "log-";
inline constexpr char kLogMarkName[] = "mark";
inline constexpr char kLogSpareName[] = "spare";
inline constexpr std::string_view kLogUsedPrefix = "spare-";

inline constexpr uint64_t kLogFileHeaderBytes = 56;
inline constexpr uint64_t kFrameHeaderBytes = 16;
// Frames start at multiples of this.
inline constexpr uint64_t kFrameAlignment = 8;
// A frame that says, in the place of a length: the record before it never was.
inline constexpr uint32_t kTakenBack = UINT32_MAX;

// Which log a file belongs to.
struct LogIdentity {
  uint64_t store = 0;
  uint64_t epoch = 0;
  bool operator==(const LogIdentity&) const = default;
};

struct LogFileHeader {
  LogIdentity identity;
  uint64_t first = 0;       // number of its first record
  uint64_t end_before = 0;  // where the file before it ends; 0: there was none
  bool operator==(const LogFileHeader&) const = default;
};

// A place in the log: in the file that begins with record number `first`.
struct LogPosition {
  uint64_t first = 0;
  uint64_t offset = 0;
  auto operator<=>(const LogPosition&) const = default;
};

struct FrameHeader {
  uint32_t length = 0;  // of the payload, which zeros follow up to the next frame's place
  uint32_t checksum = 0;
  uint64_t number = 0;  // of the record
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);

// What a payload takes in a file.
inline uint64_t FrameBytes(uint64_t length) {
  return kFrameHeaderBytes + (length + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

// A frame's checksum starts from its place, so that one that was left over from another log, or
// swapped with another, does not pass.
uint64_t LogFileSeed(const LogIdentity& identity, uint64_t first);
uint32_t FrameSeed(uint64_t file_seed, uint64_t offset);
// The checksum of a frame's length and number; goes on with its payload and zeros.
uint32_t FrameHeaderChecksum(uint32_t seed, uint32_t length, uint64_t number);

std::string LogFilePath(const std::string& folder, uint64_t first);
// Where a file of records that nobody needs any more waits to be used again.
std::string UsedFilePath(const std::string& folder, uint64_t first);
std::string EncodeLogFileHeader(const LogFileHeader& header);
// False if that is not what the bytes are.
bool DecodeLogFileHeader(std::string_view bytes, LogFileHeader* header);
// The version that a header of a later version names; 0 of any other bytes. Later versions keep its
// length, the place of the version and that of the checksum.
uint32_t NewerLogVersion(std::string_view bytes);

}  // namespace hps
