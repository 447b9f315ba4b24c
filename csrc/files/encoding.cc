// Names of files and the wording of damage.
//
// Above it: encoding.h. Below it: nothing.
#include "files/encoding.h"

#include <cstdio>

namespace hps {

std::string FileName(std::string_view prefix, uint64_t number) {
  char digits[24];
  std::snprintf(digits, sizeof(digits), "%012llu", static_cast<unsigned long long>(number));
  return std::string(prefix) + digits;
}

bool ParseFileName(std::string_view name, std::string_view prefix, uint64_t* number) {
  if (name.substr(0, prefix.size()) != prefix) return false;
  const std::string_view digits = name.substr(prefix.size());
  if (digits.size() < 12 || digits.size() > 19) return false;
  *number = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return false;
    *number = *number * 10 + static_cast<uint64_t>(digit - '0');
  }
  return FileName(prefix, *number) == name;
}

Status Corruption(const std::string& path, uint64_t offset, const std::string& what) {
  return Status(StatusCode::kCorruption, path + ": offset " + std::to_string(offset) + ": " + what);
}

Status NewerVersion(const std::string& path, uint32_t version, uint32_t oldest, uint32_t newest) {
  std::string known = std::to_string(oldest);
  if (newest != oldest) known += " to " + std::to_string(newest);
  return Status(StatusCode::kConfig,
                path + ": it has format version " + std::to_string(version) +
                    ", and this hps reads " + known +
                    ": a later version of hps wrote it; open it with that version or a newer one");
}

}  // namespace hps
