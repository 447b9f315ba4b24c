// Scanning of numbers and labels out of text without a terminator, and quoting of what is not one.
//
// Above it: the line parsers. Below it: nothing. Nothing here reads outside [begin, end).
#pragma once

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace hps {

static_assert(std::endian::native == std::endian::little, "eight digits are read as one word");

// The text in quotes for a message, cut to 40 bytes, other than printable ASCII as \xNN.
std::string Quote(std::string_view text);

inline bool IsSpace(char byte) { return byte == ' ' || byte == '\t'; }

// True if a line of tokens, without its line end, has none.
inline bool IsBlank(std::string_view line) {
  for (const char byte : line) {
    if (!IsSpace(byte)) return false;
  }
  return true;
}

// Takes the next token off the front of `line`; empty at the end.
inline std::string_view NextToken(std::string_view* line) {
  const char* text = line->data();
  const char* end = text + line->size();
  while (text < end && IsSpace(*text)) ++text;
  const char* begin = text;
  while (text < end && !IsSpace(*text)) ++text;
  *line = std::string_view(text, static_cast<size_t>(end - text));
  return std::string_view(begin, static_cast<size_t>(text - begin));
}

// True if all eight bytes of `word` are decimal digits.
inline bool IsEightDigits(uint64_t word) {
  return ((word & 0xF0F0F0F0F0F0F0F0ULL) |
          (((word + 0x0606060606060606ULL) & 0xF0F0F0F0F0F0F0F0ULL) >> 4)) == 0x3333333333333333ULL;
}

// The number that eight digits stand for, the first digit in the lowest byte.
inline uint32_t EightDigits(uint64_t word) {
  word -= 0x3030303030303030ULL;
  word = (word * 10) + (word >> 8);  // pairs, in every other byte
  constexpr uint64_t kMask = 0x000000FF000000FFULL;
  constexpr uint64_t kScale1 = 100 + (1000000ULL << 32);
  constexpr uint64_t kScale2 = 1 + (10000ULL << 32);
  return static_cast<uint32_t>((((word & kMask) * kScale1) + (((word >> 16) & kMask) * kScale2)) >>
                               32);
}

// Reads a whole number from 0 to 2^64 - 1 at `text` and returns the byte after its last digit;
// nullptr if there is no digit or the number is larger.
inline const char* ScanUnsigned(const char* text, const char* end, uint64_t* value) {
  const char* begin = text;
  while (text < end && *text == '0') ++text;
  const char* first = text;
  uint64_t number = 0;
  for (int group = 0; group < 2 && end - text >= 8; ++group) {
    uint64_t word;
    std::memcpy(&word, text, sizeof(word));
    if (!IsEightDigits(word)) break;
    number = number * 100000000 + EightDigits(word);
    text += 8;
  }
  for (; text < end; ++text) {
    const unsigned digit = static_cast<unsigned char>(*text) - unsigned{'0'};
    if (digit > 9) break;
    if (text - first >= 19) {
      if (__builtin_mul_overflow(number, uint64_t{10}, &number) ||
          __builtin_add_overflow(number, uint64_t{digit}, &number)) {
        return nullptr;
      }
    } else {
      number = number * 10 + digit;
    }
  }
  if (text == begin) return nullptr;
  *value = number;
  return text;
}

// Reads the whole of `text` as a finite number; false if it is none.
inline bool ScanFloat(std::string_view text, float* value) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const char* end = text.data() + text.size();
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return false;
  *value = static_cast<float>(number);
  return std::isfinite(*value);
}

// Reads a label: 0 or 1, also -1 for 0, in any spelling of a number; false if it is none of them.
inline bool ScanLabel(std::string_view text, float* label) {
  if (text.size() == 1 && (text[0] == '0' || text[0] == '1')) {
    *label = text[0] == '1' ? 1.0F : 0.0F;
    return true;
  }
  float number = 0;
  if (!ScanFloat(text, &number) || (number != 0 && number != 1 && number != -1)) return false;
  *label = number == 1 ? 1.0F : 0.0F;
  return true;
}

// The label of a slots line: click:0 or label:0 opens the named layout, 0:1 the other.
inline bool ScanSlotLabel(std::string_view text, bool* named, float* label) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view front = text.substr(0, colon);
  const std::string_view back = text.substr(colon + 1);
  *named = front == "click" || front == "label";
  return *named ? ScanLabel(back, label) : back == "1" && ScanLabel(front, label);
}

}  // namespace hps
