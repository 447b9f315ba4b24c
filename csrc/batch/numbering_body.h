// Deduplication, compiled once an instruction set: which of a batch's keys are a thread's, and the
// number of each.
//
// Above it: key_loops.h; dram_cache's loops, which look keys up meanwhile. Below it: key_share.h.
// Every thread reads the whole batch and keeps the keys of its own parts, so nothing is partitioned
// and nobody waits. Keys are numbered in order of first occurrence, a chunk at a time, so that a
// look-up can follow close behind.
#pragma once

#include "batch/key_share.h"
#include "common/key_hash.h"

#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int kChunk = 512;

// Keeps the keys that are `owned`, their hashes, and where they stand: from `base` on.
inline int CompressOwned(const uint64_t* keys, int count, uint32_t base, uint64_t owned,
                         uint64_t* kept_keys, uint64_t* hashes, uint32_t* positions) {
  int kept = 0;
  int i = 0;
#if defined(__AVX512DQ__)
  const __m512i multiplier1 = _mm512_set1_epi64(static_cast<int64_t>(0xff51afd7ed558ccdULL));
  const __m512i multiplier2 = _mm512_set1_epi64(static_cast<int64_t>(0xc4ceb9fe1a85ec53ULL));
  const __m512i owned_bits = _mm512_set1_epi64(static_cast<int64_t>(owned));
  const __m512i one = _mm512_set1_epi64(1);
  __m256i places = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(base)),
                                    _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  for (; i + 8 <= count; i += 8) {
    const __m512i key = _mm512_loadu_si512(keys + i);
    __m512i hash = _mm512_xor_si512(key, _mm512_srli_epi64(key, 33));
    hash = _mm512_mullo_epi64(hash, multiplier1);
    hash = _mm512_xor_si512(hash, _mm512_srli_epi64(hash, 33));
    hash = _mm512_mullo_epi64(hash, multiplier2);
    hash = _mm512_xor_si512(hash, _mm512_srli_epi64(hash, 33));
    const __m512i bit = _mm512_srlv_epi64(owned_bits, _mm512_srli_epi64(hash, 58));
    const __mmask8 mine = _mm512_test_epi64_mask(bit, one);
    // Compress in registers: the form that stores to memory is microcode on some processors.
    _mm512_storeu_si512(kept_keys + kept, _mm512_maskz_compress_epi64(mine, key));
    _mm512_storeu_si512(hashes + kept, _mm512_maskz_compress_epi64(mine, hash));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + kept),
                        _mm256_maskz_compress_epi32(mine, places));
    places = _mm256_add_epi32(places, _mm256_set1_epi32(8));
    kept += __builtin_popcount(mine);
  }
#endif
  for (; i < count; ++i) {
    const uint64_t hash = MixKey(keys[i]);
    kept_keys[kept] = keys[i];
    hashes[kept] = hash;
    positions[kept] = base + static_cast<uint32_t>(i);
    kept += static_cast<int>((owned >> (hash >> 58)) & 1);
  }
  return kept;
}

// Numbers a thread's share of a batch. What was added last waits for what comes next, so that the
// tables it needs can be asked for ahead.
class Numbering {
 public:
  explicit Numbering(KeyShare* share) : share_(share) {
    __builtin_memset(share->id_table, 0, (share->id_mask + 1) * sizeof(uint32_t));
    share->num_unique = 0;
    share->num_occurrences = 0;
  }

  // Takes keys[length], at most a chunk, which are in the batch from `first` on. False if the id
  // table is too small.
  bool Add(const uint64_t* keys, int length, uint32_t first) {
    const int waiting = num_kept_ - next_;
    for (int i = 0; i < waiting; ++i) {
      keys_[i] = keys_[next_ + i];
      hashes_[i] = hashes_[next_ + i];
    }
    next_ = 0;
    num_kept_ = waiting + CompressOwned(keys, length, first, share_->owned_parts, keys_ + waiting,
                                        hashes_ + waiting,
                                        share_->scan_positions + share_->num_occurrences + waiting);
    __builtin_memset(hashes_ + num_kept_, 0, kAhead * sizeof(uint64_t));
    return share_->num_unique + num_kept_ <= share_->most_unique;
  }

  // Numbers some keys; false if there are none, but for those that wait for what comes next.
  bool Step() {
    const int count = num_kept_ - next_ - kAhead;
    if (count <= 0) return false;
    Number(count < kStep ? count : kStep);
    return true;
  }

  // Numbers all that is left.
  void Finish() { Number(num_kept_ - next_); }

 private:
  static constexpr int kAhead = 16;
  static constexpr int kKeysAhead = 8;
  static constexpr int kStep = 16;

  struct IdTable {
    uint32_t* entries;
    uint64_t mask;
    uint64_t* keys;
    uint32_t num_unique;
  };

  // The id of a key whose own entry holds another key: further on in the table, or new.
  static uint32_t FindOrAddDisplaced(IdTable* table, uint64_t key, uint64_t entry) {
    for (;;) {
      entry = (entry + 1) & table->mask;
      const uint32_t found = table->entries[entry];
      if (found != 0 && table->keys[found - 1] == key) return found - 1;
      if (found != 0) continue;
      const uint32_t id = table->num_unique++;
      table->entries[entry] = id + 1;
      table->keys[id] = key;
      return id;
    }
  }

  // Gives the next `count` occurrences their key's id. Whether a key is new cannot be predicted, so
  // a new key is written down whether or not it is one, and counted only if it is; the branch left
  // is for keys whose entry another key took.
  void Number(int count) {
    IdTable table = {share_->id_table, share_->id_mask, share_->keys,
                     static_cast<uint32_t>(share_->num_unique)};
    uint32_t* ids = share_->ids + share_->num_occurrences;
    const uint64_t* keys = keys_ + next_;
    const uint64_t* hashes = hashes_ + next_;
    for (int i = 0; i < count; ++i) {
      __builtin_prefetch(table.entries + (hashes[i + kAhead] >> 16 & table.mask), 1);
      __builtin_prefetch(table.keys + table.entries[hashes[i + kKeysAhead] >> 16 & table.mask]);
      const uint64_t key = keys[i];
      const uint64_t entry = hashes[i] >> 16 & table.mask;
      const uint32_t found = table.entries[entry];
      const uint32_t is_new = found == 0;
      const uint32_t next_id = table.num_unique;
      const uint32_t number = found + (is_new ? next_id + 1 : 0);
      table.keys[next_id] = key;
      table.entries[entry] = number;
      table.num_unique += is_new;
      uint32_t id = number - 1;
      if (table.keys[id] != key) [[unlikely]]
        id = FindOrAddDisplaced(&table, key, entry);
      ids[i] = id | (id == next_id ? kFirstOfKey : 0);
    }
    share_->num_unique = table.num_unique;
    share_->num_occurrences += count;
    next_ += count;
  }

  KeyShare* const share_;
  int num_kept_ = 0;
  int next_ = 0;
  uint64_t keys_[kChunk + 2 * kAhead];
  // Behind the last one are zeros, which are only prefetched. Not all of both arrays is cleared: of
  // few keys that would be most of the work.
  uint64_t hashes_[kChunk + 2 * kAhead];
};

// Numbers the thread's share of keys[count], calling after() whenever some more have their number;
// false if the id table is too small.
template <class After>
inline bool DeduplicateWith(KeyShare* share, const uint64_t* keys, int64_t count, After after) {
  Numbering numbering(share);
  for (int64_t first = 0; first < count; first += kChunk) {
    const int length = static_cast<int>(count - first < kChunk ? count - first : kChunk);
    if (!numbering.Add(keys + first, length, static_cast<uint32_t>(first))) return false;
    while (numbering.Step()) after();
  }
  numbering.Finish();
  for (int64_t i = 0; i < kOccurrencePadding; ++i) {
    share->ids[share->num_occurrences + i] = 0;
    share->scan_positions[share->num_occurrences + i] = 0;
  }
  return true;
}

inline bool Deduplicate(KeyShare* share, const uint64_t* keys, int64_t count) {
  return DeduplicateWith(share, keys, count, [] {});
}

}  // namespace HPS_BUILD
}  // namespace hps
