// The bytes on disk: constants, checksums' seeds, and little-endian encoding.
// docs/ssd_store_format.md is the page that describes them; the two change together, and a change
// needs a new format version.
//
// Above it: segment, manifest_records, manifest, reader_pin. Below it: crc32c, hash.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "common/hash.h"
#include "common/status.h"
#include "ssd_store/crc32c.h"

namespace hps {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr std::string_view kSegmentMagic = "HPSSEGM1";
inline constexpr std::string_view kFooterMagic = "HPSFOOT1";
inline constexpr std::string_view kManifestMagic = "HPSMANI1";
inline constexpr std::string_view kCurrentMagic = "HPSCURR1";

inline constexpr uint64_t kSegmentHeaderBytes = 64;
inline constexpr uint64_t kFooterTrailerBytes = 48;
inline constexpr uint64_t kTombstoneBytes = 16;
inline constexpr uint64_t kChecksumBytes = 4;
inline constexpr uint64_t kMostRecords = uint64_t{1} << 28;  // of one segment

inline constexpr char kLockName[] = "LOCK";
inline constexpr char kCurrentName[] = "CURRENT";
inline constexpr char kPinFolder[] = "pins";
inline constexpr char kWrittenName[] = ".written";  // the extra that holds the store's own figures
inline constexpr std::string_view kManifestPrefix = "MANIFEST-";
inline constexpr std::string_view kSegmentPrefix = "segment-";
inline constexpr std::string_view kExtraPrefix = "extra-";

// "segment-000000000042" and so on: a prefix and the file's number, never used twice in a store.
std::string FileName(std::string_view prefix, uint64_t number);
// The number of a name made by FileName with `prefix`; false for any other name.
bool ParseFileName(std::string_view name, std::string_view prefix, uint64_t* number);

// A record's checksum starts from its place, so that a block that has been swapped or left over
// from another file does not pass.
inline uint64_t SegmentSeed(uint64_t segment_number) { return MixKey(segment_number + 1); }
inline uint32_t RecordSeed(uint64_t segment_seed, uint64_t record) {
  return static_cast<uint32_t>(MixKey(segment_seed + record));
}

inline uint64_t RowKey(const void* row) {
  uint64_t key;
  std::memcpy(&key, row, sizeof(key));
  return key;
}

// kCorruption: "<file>: offset <offset>: <what was expected and seen>".
Status Corruption(const std::string& path, uint64_t offset, const std::string& what);

// Appends numbers and strings to a byte string.
class Encoder {
 public:
  template <typename Number>
  void Put(Number value) {
    static_assert(std::is_arithmetic_v<Number>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutRaw(std::string_view raw) { bytes_.append(raw); }
  void PutString(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

// Takes them out again; once something does not fit, failed() is true and all later values are
// zero.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  Number Get() {
    Number value{};
    if (Take(sizeof(value))) std::memcpy(&value, taken_.data(), sizeof(value));
    return value;
  }
  std::string_view GetRaw(size_t size) { return Take(size) ? taken_ : std::string_view(); }
  std::string GetString() { return std::string(GetRaw(Get<uint32_t>())); }
  bool failed() const { return failed_; }
  bool is_finished() const { return !failed_ && bytes_.empty(); }

 private:
  bool Take(size_t size) {
    failed_ = failed_ || size > bytes_.size();
    if (failed_) return false;
    taken_ = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return true;
  }

  std::string_view bytes_;
  std::string_view taken_;
  bool failed_ = false;
};

}  // namespace hps
