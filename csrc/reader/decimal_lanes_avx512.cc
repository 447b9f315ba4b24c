// Hashes of many numbers' decimal texts, eight numbers side by side in the registers of AVX-512.
//
// Above it: decimal_lanes.cc. Below it: decimal_hash.h, common/hash.h. Not a jump depends on a
// number, so that the compiler puts a number in each lane. (In lanes of AVX2, which multiplies 64
// bits by parts, it is no faster than one number after the other.)
#define HPS_BUILD build_avx512

#include <cstddef>
#include <cstdint>

#include "common/hash.h"
#include "reader/decimal_hash.h"
#include "reader/decimal_lanes.h"

namespace hps {
inline namespace HPS_BUILD {

// `yes` where the condition is met, else `no`.
inline uint64_t Pick(bool condition, uint64_t yes, uint64_t no) {
  const uint64_t mask = uint64_t{0} - static_cast<uint64_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// number / 10^8. That is number >> 8 divided by 5^8, for which the upper half of a product with
// ceil(2^81 / 5^8) is shifted: exact below 2^56. The product is put together from halves, since no
// lane has the upper half of 64 bits times 64.
inline uint64_t DividedByEight(uint64_t number) {
  constexpr uint64_t kHalf = 0xFFFFFFFFULL;
  constexpr int kShift = 81;
  constexpr uint64_t kFactor =
      static_cast<uint64_t>((static_cast<unsigned __int128>(1) << kShift) / 390625) + 1;
  const uint64_t value = number >> 8;
  const uint64_t low = value & kHalf, high = value >> 32;
  const uint64_t middle = high * (kFactor & kHalf) + (low * (kFactor & kHalf) >> 32);
  const uint64_t other = low * (kFactor >> 32) + (middle & kHalf);
  return (high * (kFactor >> 32) + (middle >> 32) + (other >> 32)) >> (kShift - 64);
}

// The number of digits of a number below 10^8, of which 0 has one.
inline uint64_t NumDigits(uint64_t number) {
  const auto reaches = [number](uint64_t power) { return static_cast<uint64_t>(number >= power); };
  return 1 + reaches(10) + reaches(100) + reaches(1000) + reaches(10000) + reaches(100000) +
         reaches(1000000) + reaches(10000000);
}

// As HashDecimal.
__attribute__((always_inline)) inline uint64_t HashInLane(uint64_t bits, bool is_negative,
                                                          uint64_t seed) {
  const uint64_t magnitude = Pick(is_negative, 0 - bits, bits);
  const uint64_t upper = DividedByEight(magnitude), top = DividedByEight(upper);
  const uint64_t between = upper - top * kEight, bottom = magnitude - upper * kEight;
  const bool has_top = top != 0, has_upper = upper != 0;
  const uint64_t leading = Pick(has_top, top, Pick(has_upper, between, bottom));
  const uint64_t num_words = Pick(has_top, 2, Pick(has_upper, 1, 0));
  const uint64_t size = NumDigits(leading) + 8 * num_words + Pick(is_negative, 1, 0);

  const uint64_t high = EightDigits(top) | kText;
  const uint64_t middle = EightDigits(between) | kText;
  const uint64_t low = EightDigits(bottom) | kText;
  // The text is the last `size` bytes of 24: whole words are left out first, then bytes. What lies
  // behind the text does not count.
  const bool is_short = size <= 16, is_shorter = size <= 8;
  const uint64_t first = Pick(is_shorter, low, Pick(is_short, middle, high));
  const uint64_t second = Pick(is_short, low, middle);
  const uint64_t shift = 8 * ((24 - size) & 7);
  const uint64_t head = (first >> shift | (second << 1) << (63 - shift)) ^ SignOver(is_negative);
  const uint64_t body = second >> shift | (low << 1) << (63 - shift);
  const uint64_t tail = low >> shift;

  const uint64_t begun = seed + xxh64::kPrime5 + size;
  const bool has_eight = size >= 8, has_sixteen = size >= 16;
  const uint64_t after_head = Pick(has_eight, xxh64::TakeEight(begun, head), begun);
  const uint64_t after_body = Pick(has_sixteen, xxh64::TakeEight(after_head, body), after_head);
  const uint64_t rest = Pick(has_sixteen, tail, Pick(has_eight, body, head));
  return xxh64::Finish(xxh64::TakeRest(after_body, rest, size & 7));
}

template <typename Number>
inline void HashEachInLanes(const Number* numbers, size_t count, uint64_t seed, uint64_t* keys) {
  for (size_t i = 0; i < count; ++i) {
    keys[i] = HashInLane(static_cast<uint64_t>(numbers[i]), numbers[i] < 0, seed);
  }
}

}  // namespace HPS_BUILD

void HashInLanes(const int64_t* numbers, size_t count, uint64_t seed, uint64_t* keys) {
  HashEachInLanes(numbers, count, seed, keys);
}

void HashInLanes(const uint64_t* numbers, size_t count, uint64_t seed, uint64_t* keys) {
  HashEachInLanes(numbers, count, seed, keys);
}

}  // namespace hps
