// The hashes of hps: a 64-bit mixer for keys, and XXH64 for byte strings.
//
// Above it: the table (bucket choice), the initializers, the readers (raw value -> key), digests.
// MixKey is a bijection on 64 bits (MurmurHash3's finaliser by A. Appleby, public domain), so no
// two keys collide in it. XXH64 is Y. Collet's published hash; readers in other languages can use
// any xxHash library and get the same keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hps {

inline uint64_t MixKey(uint64_t key) {
  key ^= key >> 33;
  key *= 0xff51afd7ed558ccdULL;
  key ^= key >> 33;
  key *= 0xc4ceb9fe1a85ec53ULL;
  key ^= key >> 33;
  return key;
}

// The inverse of MixKey: UnmixKey(MixKey(k)) == k.
inline uint64_t UnmixKey(uint64_t hash) {
  hash ^= hash >> 33;
  hash *= 0x9cb4b2f8129337dbULL;
  hash ^= hash >> 33;
  hash *= 0x4f74430c22a54005ULL;
  hash ^= hash >> 33;
  return hash;
}

namespace xxh64 {

inline constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
inline constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FULL;
inline constexpr uint64_t kPrime3 = 0x165667B19E3779F9ULL;
inline constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ULL;
inline constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ULL;

inline uint64_t RotateLeft(uint64_t value, int bits) {
  return (value << bits) | (value >> (64 - bits));
}

template <typename T>
T Load(const unsigned char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

inline uint64_t Round(uint64_t accumulator, uint64_t input) {
  return RotateLeft(accumulator + input * kPrime2, 31) * kPrime1;
}

inline uint64_t MergeRound(uint64_t hash, uint64_t lane) {
  return (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
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
  for (; end - bytes >= 8; bytes += 8) {
    hash = RotateLeft(hash ^ Round(0, Load<uint64_t>(bytes)), 27) * kPrime1 + kPrime4;
  }
  if (end - bytes >= 4) {
    hash = RotateLeft(hash ^ (Load<uint32_t>(bytes) * kPrime1), 23) * kPrime2 + kPrime3;
    bytes += 4;
  }
  for (; bytes < end; ++bytes) {
    hash = RotateLeft(hash ^ (*bytes * kPrime5), 11) * kPrime1;
  }
  hash ^= hash >> 33;
  hash *= kPrime2;
  hash ^= hash >> 29;
  hash *= kPrime3;
  hash ^= hash >> 32;
  return hash;
}

}  // namespace hps
