// The hash of keys: a bijection on 64 bits (MurmurHash3's finaliser by A. Appleby, public domain).
//
// Above it: the table (bucket choice), the initializers, the index of ssd_store. No two keys
// collide.
#pragma once

#include "common/portable.h"

namespace hps {
inline namespace HPS_BUILD {

HPS_HD uint64_t MixKey(uint64_t key) {
  key ^= key >> 33;
  key *= 0xff51afd7ed558ccdULL;
  key ^= key >> 33;
  key *= 0xc4ceb9fe1a85ec53ULL;
  key ^= key >> 33;
  return key;
}

// The inverse of MixKey: UnmixKey(MixKey(k)) == k.
HPS_HD uint64_t UnmixKey(uint64_t hash) {
  hash ^= hash >> 33;
  hash *= 0x9cb4b2f8129337dbULL;
  hash ^= hash >> 33;
  hash *= 0x4f74430c22a54005ULL;
  hash ^= hash >> 33;
  return hash;
}

}  // namespace HPS_BUILD
}  // namespace hps
