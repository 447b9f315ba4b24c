// KeyIndex: exact map from every stored key to the place of its newest record, under 16 bytes a
// key.
//
// Above it: table_store. Below it: anonymous memory. MixKey makes of a key a hash that can be
// turned back, so an entry need not hold the key: the top 8 hash bits choose one of 256 shards, the
// entry holds the other 56 and a 40-bit location, 12 bytes. A shard is an open-addressing table
// kept sorted by hash: an absent key is known as soon as a larger hash is met, and the table may be
// 0.86 full. A shard grows alone, in place, by a tenth in whole pages, so that the load never falls
// under 0.78 and no moment holds two copies: at most 15.4 bytes a key from a million keys on.
// Thread-safety: const calls together; anything else alone, except that Put, Erase, Reserve and
// Adopt may run at once for hashes of different shards.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "common/hash.h"

namespace hps {

// Locations are dealt out to segments in chunks: the chunk's number is above, the record in it
// below.
inline constexpr int kChunkBits = 12;
inline constexpr uint64_t kChunkRecords = uint64_t{1} << kChunkBits;

struct ChunkPlace {
  uint32_t segment = 0;  // ordinal within its table
  uint32_t idx = 0;      // of the chunk within its segment
};

struct KeyItem {
  uint64_t hash;      // MixKey(key)
  uint64_t location;  // or another number that goes with the key
};

// One shard as it lies in memory: `slots` entries of 12 bytes. For index_snapshot.
struct ShardImage {
  uint64_t slots = 0;
  uint64_t count = 0;
  uint64_t overflow = 0;
  const unsigned char* entries = nullptr;
};

class KeyIndex {
 public:
  static constexpr uint64_t kNone =
      (uint64_t{1} << 40) - 1;  // no location; all others are below it
  static constexpr int kNumShards = 256;
  static constexpr uint64_t kEntryBytes = 12;
  static constexpr uint64_t kFullestPercent = 86;  // of a shard's slots, before it grows
  static constexpr uint64_t kGrowthPercent = 110;  // its new size of the old, in whole pages

  KeyIndex() = default;
  ~KeyIndex() { Clear(); }
  KeyIndex(const KeyIndex&) = delete;
  KeyIndex& operator=(const KeyIndex&) = delete;

  uint64_t size() const;
  uint64_t memory_bytes() const;
  static int ShardOf(uint64_t hash) { return static_cast<int>(hash >> 56); }
  // Where in a list each shard's items start; the last is the end of all.
  using ShardStarts = std::array<uint32_t, kNumShards + 1>;
  // Lists item(i) for all i < count by shard, in order within a shard.
  template <typename ItemAt>
  static ShardStarts SortByShard(uint64_t count, ItemAt item, KeyItem* items);

  // All take MixKey(key). Prefetch ahead of the other three hides the one cache miss of a look-up.
  void Prefetch(uint64_t hash) const;
  uint64_t Find(uint64_t hash) const;
  // Sets the location; *previous is the old one or kNone. False when the system has no memory left.
  bool Put(uint64_t hash, uint64_t location, uint64_t* previous);
  uint64_t Erase(uint64_t hash);
  // Makes an empty shard large enough for its part of `count` keys at once. False as in Put.
  bool Reserve(int shard, uint64_t count);
  void Clear();

  ShardImage Image(int shard) const;
  // Gives an empty shard the image's shape; its entries are then to be filled with image.slots *
  // kEntryBytes bytes. nullptr (empty again) if no such shard can be, or there is no memory.
  unsigned char* Adopt(int shard, const ShardImage& image);
  // Whether an adopted shard ends as every shard does, in an empty entry.
  bool EndsEmpty(int shard) const;

  // Calls visit(location) for every key.
  template <typename Visit>
  void ForEachLocation(Visit visit) const;

 private:
  static constexpr uint64_t kSomeOverflow = 48;

  // Aligned, so that threads at work on neighbours do not share a cache line.
  struct alignas(64) Shard {
    unsigned char* entries = nullptr;  // `bytes` of memory; the last slot is always empty
    uint64_t bytes = 0;
    uint64_t slots = 0;
    uint64_t homes = 0;  // slots that a hash can ask for; those behind them only take overflow
    uint64_t count = 0;
    uint64_t overflow = kSomeOverflow;  // slots behind the homes, at most a quarter of all
  };
  // An empty entry is all ones: the largest remainder, so that it ends a search like any larger
  // one.
  struct Entry {
    uint64_t high;  // 56 bits of hash, then the location's upper 8 bits
    uint32_t low;   // the location's lower 32 bits
    uint64_t remainder() const { return high >> 8; }
    uint64_t location() const { return (high & 255) << 32 | low; }
    bool is_empty() const { return location() == kNone; }
  };

  static Entry Load(const Shard& shard, uint64_t slot) {
    Entry entry;
    std::memcpy(&entry.high, shard.entries + slot * kEntryBytes, 8);
    std::memcpy(&entry.low, shard.entries + slot * kEntryBytes + 8, 4);
    return entry;
  }
  static void Store(const Shard& shard, uint64_t slot, const Entry& entry) {
    std::memcpy(shard.entries + slot * kEntryBytes, &entry.high, 8);
    std::memcpy(shard.entries + slot * kEntryBytes + 8, &entry.low, 4);
  }
  static uint64_t Remainder(uint64_t hash) { return hash & ((uint64_t{1} << 56) - 1); }
  static uint64_t Home(const Shard& shard, uint64_t remainder) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(remainder << 8) * shard.homes) >>
                                 64);
  }
  // The first slot from the hash's home on whose remainder is not smaller.
  static uint64_t Seek(const Shard& shard, uint64_t remainder);
  bool Resize(Shard* shard, uint64_t bytes);
  bool Grow(Shard* shard);
  // Deals the entries out over `slots`; false (entries whole, order kept) if a run would pass the
  // end.
  static bool Spread(Shard* shard, uint64_t slots);

  std::array<Shard, kNumShards> shards_;
};

template <typename ItemAt>
KeyIndex::ShardStarts KeyIndex::SortByShard(uint64_t count, ItemAt item, KeyItem* items) {
  ShardStarts starts{};
  for (uint64_t i = 0; i < count; ++i) ++starts[ShardOf(item(i).hash) + 1];
  for (int shard = 0; shard < kNumShards; ++shard) starts[shard + 1] += starts[shard];
  ShardStarts ends = starts;
  for (uint64_t i = 0; i < count; ++i) {
    const KeyItem next = item(i);
    items[ends[ShardOf(next.hash)]++] = next;
  }
  return starts;
}

inline void KeyIndex::Prefetch(uint64_t hash) const {
  const Shard& shard = shards_[ShardOf(hash)];
  if (shard.entries == nullptr) return;
  const unsigned char* entry = shard.entries + Home(shard, Remainder(hash)) * kEntryBytes;
  __builtin_prefetch(entry);
  __builtin_prefetch(entry + 63);
}

inline uint64_t KeyIndex::Seek(const Shard& shard, uint64_t remainder) {
  uint64_t slot = Home(shard, remainder);
  while (Load(shard, slot).remainder() < remainder) ++slot;
  return slot;
}

inline uint64_t KeyIndex::Find(uint64_t hash) const {
  const Shard& shard = shards_[ShardOf(hash)];
  if (shard.count == 0) return kNone;
  const uint64_t remainder = Remainder(hash);
  const Entry entry = Load(shard, Seek(shard, remainder));
  return entry.remainder() == remainder ? entry.location() : kNone;
}

template <typename Visit>
void KeyIndex::ForEachLocation(Visit visit) const {
  for (const Shard& shard : shards_) {
    for (uint64_t slot = 0; slot < shard.slots; ++slot) {
      const Entry entry = Load(shard, slot);
      if (!entry.is_empty()) visit(entry.location());
    }
  }
}

}  // namespace hps
