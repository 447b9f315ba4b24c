// The hash of a whole number's decimal text, eight digits at a time.
//
// Above it: text_keys.cc. Below it: common/hash.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/hash.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr uint64_t kEight = 100'000'000;
inline constexpr uint64_t kText = 0x3030303030303030ULL;  // turns digits into their text

// The eight digits of a number below 10^8, one a byte; the lowest byte is the first digit. Halves,
// then quarters, then digits are split side by side in one word: by / 10^4 as * 109951163 >> 40,
// exact below 10^8, by / 100 as * 10486 >> 20, exact below 10^4, and by / 10 as * 103 >> 10, exact
// below 100.
inline uint64_t EightDigits(uint64_t number) {
  const uint64_t upper = (number * 109951163) >> 40;
  const uint64_t fours = upper | (number - 10000 * upper) << 32;
  const uint64_t hundreds = (fours * 10486) >> 20 & 0x0000007F0000007FULL;
  const uint64_t twos = hundreds | (fours - 100 * hundreds) << 16;
  const uint64_t tens = (twos * 103) >> 10 & 0x000F000F000F000FULL;
  return tens | (twos - 10 * tens) << 8;
}

// What turns the zero that is a text's first byte into its sign.
inline uint64_t SignOver(bool is_negative) { return ('0' ^ '-') * uint64_t{is_negative}; }

// XXH64 of a text of nine bytes or more: the decimal text of a number. Which bytes it takes of the
// 24 digits is shifted and chosen in registers: lengths and signs that change from number to number
// cost no wrong guess, and nothing waits for a load of what was just stored.
inline uint64_t HashLongDecimal(uint64_t magnitude, bool is_negative, uint64_t seed) {
  const uint64_t upper = magnitude / kEight;
  const uint64_t high = EightDigits(upper / kEight);
  const uint64_t middle = EightDigits(upper % kEight);
  const uint64_t low = EightDigits(magnitude % kEight);
  // Four zeros are in front at least, for 2^64 has 20 digits; the last one makes room for a sign.
  const int num_zeros = (high != 0 ? std::countr_zero(high) : 64 + std::countr_zero(middle)) / 8;
  const int begin = num_zeros - static_cast<int>(is_negative);
  const bool is_short = begin >= 8;
  const uint64_t first = (is_short ? middle : high) | kText;
  const uint64_t second = (is_short ? low : middle) | kText;
  const uint64_t third = (is_short ? 0 : low) | kText;
  const int shift = 8 * (begin & 7);
  // In two steps, for a shift by 64 has no sense.
  const uint64_t head = (first >> shift | (second << 1) << (63 - shift)) ^ SignOver(is_negative);
  const uint64_t body = second >> shift | (third << 1) << (63 - shift);
  const auto size = static_cast<size_t>(24 - begin);
  const uint64_t hash = xxh64::TakeEight(seed + xxh64::kPrime5 + size, head);
  if (size < 16) return xxh64::Finish(xxh64::TakeRest(hash, body, size - 8));
  return xxh64::Finish(xxh64::TakeRest(xxh64::TakeEight(hash, body), third >> shift, size - 16));
}

// XXH64 of the number's decimal text. Number is int64_t or uint64_t.
template <typename Number>
uint64_t HashDecimal(Number number, uint64_t seed) {
  const bool is_negative = number < 0;
  const auto bits = static_cast<uint64_t>(number);
  const uint64_t magnitude = is_negative ? 0 - bits : bits;
  if (magnitude < kEight) {
    const uint64_t digits = EightDigits(magnitude);
    const int num_zeros = std::countr_zero(digits | uint64_t{1} << 56) / 8;  // 0 has one digit
    const int begin = num_zeros - static_cast<int>(is_negative);
    if (begin >= 0) {
      const uint64_t text = (digits | kText) >> (8 * begin) ^ SignOver(is_negative);
      const auto size = static_cast<size_t>(8 - begin);
      const uint64_t hash = seed + xxh64::kPrime5 + size;
      return xxh64::Finish(size == 8 ? xxh64::TakeEight(hash, text)
                                     : xxh64::TakeRest(hash, text, size));
    }
  }
  return HashLongDecimal(magnitude, is_negative, seed);
}

}  // namespace HPS_BUILD
}  // namespace hps
