// The hash of a whole number's decimal text, eight digits at a time.
//
// Above it: text_keys.cc. Below it: common/hash.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/hash.h"

namespace hps {

// The eight digits of a number below 10^8, one a byte; the lowest byte is the first digit. Halves,
// then quarters, then digits are split side by side in one word: by / 100 as * 10486 >> 20, exact
// below 10^4, and by / 10 as * 103 >> 10, exact below 100.
inline uint64_t EightDigits(uint32_t number) {
  const uint64_t fours = number / 10000 | static_cast<uint64_t>(number % 10000) << 32;
  const uint64_t hundreds = (fours * 10486) >> 20 & 0x0000007F0000007FULL;
  const uint64_t twos = hundreds | (fours - 100 * hundreds) << 16;
  const uint64_t tens = (twos * 103) >> 10 & 0x000F000F000F000FULL;
  return tens | (twos - 10 * tens) << 8;
}

// XXH64 of the number's decimal text. Number is int64_t or uint64_t.
template <typename Number>
uint64_t HashDecimal(Number number, uint64_t seed) {
  constexpr uint64_t kEight = 100'000'000;
  constexpr uint64_t kText = 0x3030303030303030ULL;  // turns digits into their text
  const auto bits = static_cast<uint64_t>(number);
  if (bits < kEight) {
    const uint64_t digits = EightDigits(static_cast<uint32_t>(bits));
    const int num_zeros = std::countr_zero(digits | uint64_t{1} << 56) / 8;  // 0 has one digit
    const uint64_t text = (digits | kText) >> (8 * num_zeros);
    const auto size = static_cast<size_t>(8 - num_zeros);
    const uint64_t hash = seed + xxh64::kPrime5 + size;
    return xxh64::Finish(size == 8 ? xxh64::TakeEight(hash, text)
                                   : xxh64::TakeRest(hash, text, size));
  }
  const bool is_negative = number < 0;
  const uint64_t magnitude = is_negative ? 0 - bits : bits;
  const uint64_t upper = magnitude / kEight;
  const uint64_t words[] = {EightDigits(static_cast<uint32_t>(upper / kEight)),
                            EightDigits(static_cast<uint32_t>(upper % kEight)),
                            EightDigits(static_cast<uint32_t>(magnitude % kEight))};
  // 24 digits, and what a load of eight bytes may reach beyond them. A sign overwrites a zero.
  char text[24 + 8] = {};
  size_t num_zeros = 0;
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t word = words[i] | kText;
    std::memcpy(text + 8 * i, &word, sizeof(word));
    if (num_zeros == 8 * i) num_zeros += static_cast<size_t>(std::countr_zero(words[i]) / 8);
  }
  const size_t begin = num_zeros - static_cast<size_t>(is_negative);
  text[begin] = is_negative ? '-' : text[begin];
  const auto* bytes = reinterpret_cast<const unsigned char*>(text) + begin;
  size_t size = sizeof(text) - 8 - begin;
  uint64_t hash = seed + xxh64::kPrime5 + size;
  for (; size >= 8; size -= 8, bytes += 8) {
    hash = xxh64::TakeEight(hash, xxh64::Load<uint64_t>(bytes));
  }
  return xxh64::Finish(xxh64::TakeRest(hash, xxh64::Load<uint64_t>(bytes), size));
}

}  // namespace hps
