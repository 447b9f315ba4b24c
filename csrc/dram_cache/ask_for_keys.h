// AskForKeys: the first of two passes over a few keys of a table: where each may be, and the lines
// that looking it up reads.
//
// Above it: dram_cache_grow.cc, dram_cache_rows.cc. Below it: csrc/table. The hot loops of a batch
// ask in three stages behind each other (lookup_body.h); this is for what comes once a batch.
#pragma once

#include "table/host_group.h"

namespace hps {

inline constexpr int64_t kAskedTogether = 32;  // keys whose lines are asked for before one is read

// Args:
//   keys, count: kAskedTogether at most.
//   row_bytes: of each row that will be read, or written if kWrites.
//   places: [count], written.
template <bool kWrites = false>
inline void AskForKeys(const TableView& table, const uint64_t* keys, int64_t count,
                       int64_t row_bytes, KeyPlace* places) {
  constexpr int64_t kLine = 64;
  for (int64_t i = 0; i < count; ++i) {
    places[i] = PlaceOfHash(table.shape, MixKey(keys[i]));
    __builtin_prefetch(table.digests + places[i].first * kBucketSlots);
  }
  const HostGroup group;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = places[i].first * kBucketSlots;
    const uint64_t rows = group.match(table.digests + first, places[i].digest);
    if (rows == 0) continue;
    const int64_t slot = first + LowestBit(rows);
    __builtin_prefetch(table.marks + slot);
    const uint8_t* const row = RowAt(table, slot);
    for (int64_t at = 0; at < row_bytes; at += kLine) __builtin_prefetch(row + at, kWrites);
    __builtin_prefetch(row + row_bytes - 1, kWrites);
  }
}

}  // namespace hps
