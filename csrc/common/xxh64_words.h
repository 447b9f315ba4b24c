// The steps of XXH64 over words of eight bytes, and the virtual shard of a key: what a device
// computes, too.
//
// Above it: hash.h (byte strings), csrc/gpu_cache/peers.h. Below it: portable.h. The rule by which
// shards are dealt to owners is hps/common/sharding.py's.
#pragma once

#include "common/portable.h"

namespace hps {
inline namespace HPS_BUILD {

namespace xxh64 {

inline constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
inline constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FULL;
inline constexpr uint64_t kPrime3 = 0x165667B19E3779F9ULL;
inline constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ULL;
inline constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ULL;

HPS_HD uint64_t RotateLeft(uint64_t value, int bits) {
  return (value << bits) | (value >> (64 - bits));
}

HPS_HD uint64_t Round(uint64_t accumulator, uint64_t input) {
  return RotateLeft(accumulator + input * kPrime2, 31) * kPrime1;
}

HPS_HD uint64_t TakeEight(uint64_t hash, uint64_t bytes) {
  return RotateLeft(hash ^ Round(0, bytes), 27) * kPrime1 + kPrime4;
}

HPS_HD uint64_t Finish(uint64_t hash) {
  hash ^= hash >> 33;
  hash *= kPrime2;
  hash ^= hash >> 29;
  hash *= kPrime3;
  hash ^= hash >> 32;
  return hash;
}

}  // namespace xxh64

// XXH64 of a key's eight little-endian bytes, seed 0, modulo the number of virtual shards.
HPS_HD uint64_t ShardOfKey(uint64_t key, uint64_t num_virtual) {
  return xxh64::Finish(xxh64::TakeEight(xxh64::kPrime5 + 8, key)) % num_virtual;
}

}  // namespace HPS_BUILD
}  // namespace hps
