// Little-endian encoding, numbered names of files, and the wording of damage.
//
// Above it: the formats of ssd_store and update_log. Below it: status.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/status.h"

namespace hps {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

// "segment-000000000042" and so on: a prefix and the file's number, never used twice in a store.
std::string FileName(std::string_view prefix, uint64_t number);
// The number of a name made by FileName with `prefix`; false for any other name.
bool ParseFileName(std::string_view name, std::string_view prefix, uint64_t* number);

// kCorruption: "<file>: offset <offset>: <what was expected and seen>".
Status Corruption(const std::string& path, uint64_t offset, const std::string& what);
// kConfig: a whole file of a format version beyond those that are read, `oldest` to `newest`.
Status NewerVersion(const std::string& path, uint32_t version, uint32_t oldest, uint32_t newest);

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
