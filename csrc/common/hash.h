// The hash of byte strings: XXH64. (The mixer for keys is in key_hash.h.)
//
// Above it: the readers (raw value -> key), digests, seeds of tables. XXH64 is Y. Collet's
// published hash; readers in other languages can use any xxHash library and get the same keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/key_hash.h"
#include "common/xxh64_words.h"

namespace hps {
inline namespace HPS_BUILD {

namespace xxh64 {

template <typename T>
T Load(const unsigned char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

inline uint64_t MergeRound(uint64_t hash, uint64_t lane) {
  return (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
}

inline uint64_t TakeFour(uint64_t hash, uint32_t bytes) {
  return RotateLeft(hash ^ (bytes * kPrime1), 23) * kPrime2 + kPrime3;
}

inline uint64_t TakeOne(uint64_t hash, uint8_t byte) {
  return RotateLeft(hash ^ (byte * kPrime5), 11) * kPrime1;
}

// Takes the `size` lowest bytes of a word, 0 to 7, of which the lowest is the first. What depends
// on the size is masked, not jumped over: sizes that change from word to word cost no wrong guess.
inline uint64_t TakeRest(uint64_t hash, uint64_t word, size_t size) {
  const uint64_t has_four = uint64_t{0} - (size >> 2 & 1);
  hash ^= (hash ^ TakeFour(hash, static_cast<uint32_t>(word))) & has_four;
  word >>= 32 & has_four;
  const auto take_one_of = [&](size_t i) {  // no loop, which the compiler would put in no lane
    const uint64_t has_byte = uint64_t{0} - static_cast<uint64_t>(i < (size & 3));
    hash ^= (hash ^ TakeOne(hash, static_cast<uint8_t>(word >> (8 * i)))) & has_byte;
  };
  take_one_of(0);
  take_one_of(1);
  take_one_of(2);
  return hash;
}

}  // namespace xxh64

inline uint64_t Xxh64(const void* data, size_t size, uint64_t seed) {
  using namespace xxh64;
  const auto* bytes = static_cast<const unsigned char*>(data);
  const unsigned char* end = bytes + size;
  uint64_t hash;
  if (size >= 32) {
    uint64_t lane1 = seed + kPrime1 + kPrime2;
    uint64_t lane2 = seed + kPrime2;
    uint64_t lane3 = seed;
    uint64_t lane4 = seed - kPrime1;
    for (; end - bytes >= 32; bytes += 32) {
      lane1 = Round(lane1, Load<uint64_t>(bytes));
      lane2 = Round(lane2, Load<uint64_t>(bytes + 8));
      lane3 = Round(lane3, Load<uint64_t>(bytes + 16));
      lane4 = Round(lane4, Load<uint64_t>(bytes + 24));
    }
    hash =
        RotateLeft(lane1, 1) + RotateLeft(lane2, 7) + RotateLeft(lane3, 12) + RotateLeft(lane4, 18);
    hash = MergeRound(hash, lane1);
    hash = MergeRound(hash, lane2);
    hash = MergeRound(hash, lane3);
    hash = MergeRound(hash, lane4);
  } else {
    hash = seed + kPrime5;
  }
  hash += size;
  for (; end - bytes >= 8; bytes += 8) hash = TakeEight(hash, Load<uint64_t>(bytes));
  if (end - bytes >= 4) {
    hash = TakeFour(hash, Load<uint32_t>(bytes));
    bytes += 4;
  }
  for (; bytes < end; ++bytes) hash = TakeOne(hash, *bytes);
  return Finish(hash);
}

}  // namespace HPS_BUILD
}  // namespace hps
