// TableView: where everything of a cache table lies in memory; a small copyable value.
//
// Above it: probe.h, reserve.h, and the tiers that own the memory (dram_cache). Below it: nothing.
// A table is an array of buckets of 64 slots; the row of a slot is at slot * row_bytes, so a
// slot is all that compute needs. Beside the rows stand, a byte a slot: the digest of the key (0 =
// empty), a mark (stamp and flags), and the pins. Compiles for host and device.
#pragma once

#include "common/key_hash.h"
#include "table/row_layout.h"

namespace hps {

inline constexpr int kBucketSlots = 64;
inline constexpr int kFirstRoundSlots = 60;  // a key's first bucket takes it while it holds fewer
inline constexpr int kMaxParts = 64;
inline constexpr int64_t kMinBucketsPerPart = 2;

// Flags of a slot. The three bits from kFrequencyShift on count how often the row was used
// (saturating at 7).
inline constexpr uint8_t kDirty = 1;     // differs from the tier below
inline constexpr uint8_t kFresh = 2;     // initialised here, stored nowhere, never updated
inline constexpr uint8_t kPending = 4;   // reserved, its row has not arrived
inline constexpr uint8_t kTaken = 8;     // a key of the push that is being looked up has this row
inline constexpr uint8_t kWanted = 128;  // a batch that was read and is not reserved yet uses it
inline constexpr int kFrequencyShift = 4;
inline constexpr int kMaxFrequency = 7;

struct SlotMark {
  uint8_t stamp;  // the table's clock when the row was last used
  uint8_t flags;
};

struct TableShape {
  int64_t num_parts = 1;
  int64_t buckets_per_part = kMinBucketsPerPart;
  int32_t part_bits = 0;
  int64_t row_bytes = 0;

  HPS_HD_MEMBER int64_t num_buckets() const { return num_parts * buckets_per_part; }
  HPS_HD_MEMBER int64_t num_slots() const { return num_buckets() * kBucketSlots; }
};

struct TableView {
  TableShape shape;
  uint8_t* digests = nullptr;  // [num_slots]
  uint8_t* spilled = nullptr;  // [num_buckets] keys of this first bucket that are in their second
  SlotMark* marks = nullptr;   // [num_slots]
  uint8_t* pins = nullptr;     // [num_slots]
  uint8_t* rows = nullptr;     // [num_slots * row_bytes]
  // The same rows as their optimizers see them; see SetRows. Before them, where these have a
  // shorter header than an image has.
  uint8_t* floats = nullptr;

  HPS_HD_MEMBER int64_t header_bytes() const { return floats - rows + kRowHeaderBytes; }
  HPS_HD_MEMBER bool has_statistics() const { return floats > rows; }
};

inline namespace HPS_BUILD {

// Where a key may be: two different buckets of one part, and its digest (never 0). The buckets of
// all parts alternate: bucket i of part p is i * num_parts + p. So a table of fewer buckets a part
// is a prefix of every array, and one that grows takes memory only at their ends.
struct KeyPlace {
  int64_t first;
  int64_t second;
  uint8_t digest;
};

// One of `count` (below 2^32) from 32 random bits, without a division.
HPS_HD uint64_t Choose(uint64_t bits_32, uint64_t count) { return bits_32 * count >> 32; }

// The hash's top bits choose the part, the 32 after them a bucket in it: the higher they are the
// higher the bucket, whatever the number of buckets.
HPS_HD uint64_t FirstBucket(const TableShape& shape, uint64_t hash) {
  const auto buckets = static_cast<uint64_t>(shape.buckets_per_part);
  // A shift by 64 is undefined, hence two steps.
  const uint64_t part = hash >> 1 >> (63 - shape.part_bits);
  return (Choose(hash << shape.part_bits >> 32, buckets) << shape.part_bits) + part;
}

// Another bucket of the same part, by the lower 32 bits.
HPS_HD uint64_t SecondBucket(const TableShape& shape, uint64_t hash) {
  const auto buckets = static_cast<uint64_t>(shape.buckets_per_part);
  const uint64_t part = hash >> 1 >> (63 - shape.part_bits);
  const uint64_t first = Choose(hash << shape.part_bits >> 32, buckets);
  const uint64_t other = first + 1 + Choose(hash & 0xffffffff, buckets - 1);
  return ((other >= buckets ? other - buckets : other) << shape.part_bits) + part;
}

// The lowest byte, but never 0, which marks an empty slot.
HPS_HD uint64_t DigestOf(uint64_t hash) {
  const uint64_t digest = hash & 255;
  return digest == 0 ? 255 : digest;
}

HPS_HD KeyPlace PlaceOfHash(const TableShape& shape, uint64_t hash) {
  return {static_cast<int64_t>(FirstBucket(shape, hash)),
          static_cast<int64_t>(SecondBucket(shape, hash)), static_cast<uint8_t>(DigestOf(hash))};
}

HPS_HD uint8_t* RowAt(const TableView& table, int64_t slot) {
  return table.rows + slot * table.shape.row_bytes;
}

// The row of a slot as its optimizer sees it (FloatsOfRow).
HPS_HD float* FloatsAt(const TableView& table, int64_t slot) {
  return reinterpret_cast<float*>(table.floats + slot * table.shape.row_bytes);
}

// Where the rows are, and how long their headers.
HPS_HD void SetRows(TableView* table, uint8_t* rows, int64_t header_bytes) {
  table->rows = rows;
  table->floats = rows + (header_bytes - kRowHeaderBytes);
}

HPS_HD uint64_t KeyOfRow(const uint8_t* row) { return *reinterpret_cast<const uint64_t*>(row); }

HPS_HD uint64_t KeyAt(const TableView& table, int64_t slot) { return KeyOfRow(RowAt(table, slot)); }

HPS_HD void SetKeyAt(const TableView& table, int64_t slot, uint64_t key) {
  *reinterpret_cast<uint64_t*>(RowAt(table, slot)) = key;
}

HPS_HD int FrequencyOf(SlotMark mark) { return mark.flags >> kFrequencyShift & kMaxFrequency; }

// One use of a row by the batch whose clock is `now`: newest stamp, and at most one count a tick.
HPS_HD SlotMark Touched(SlotMark mark, uint8_t now) {
  mark.flags = static_cast<uint8_t>(mark.flags & ~kWanted);
  if (mark.stamp == now) return mark;
  const int frequency = FrequencyOf(mark);
  if (frequency < kMaxFrequency) mark.flags += 1 << kFrequencyShift;
  mark.stamp = now;
  return mark;
}

}  // namespace HPS_BUILD
}  // namespace hps
