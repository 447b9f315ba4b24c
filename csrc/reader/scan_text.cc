// Quoting of bad text for messages. Above it: the line parsers. Below it: nothing.
#include "reader/scan_text.h"

namespace hps {

std::string Quote(std::string_view text) {
  constexpr size_t kLimit = 40;
  constexpr char kHex[] = "0123456789abcdef";
  std::string quoted = "'";
  for (const char byte : text.substr(0, kLimit)) {
    if (byte >= 0x20 && byte < 0x7f) {
      quoted += byte;
    } else {
      quoted += "\\x";
      quoted += kHex[static_cast<unsigned char>(byte) >> 4];
      quoted += kHex[static_cast<unsigned char>(byte) & 15];
    }
  }
  return quoted + (text.size() > kLimit ? "...'" : "'");
}

}  // namespace hps
