// The bytes on disk: constants, names of files, checksums' seeds.
// docs/ssd_store_format.md is the page that describes them; the two change together, and a change
// needs a new format version.
//
// Above it: segment, manifest_records, manifest, reader_pin. Below it: encoding, crc32c, hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/hash.h"
#include "files/crc32c.h"
#include "files/encoding.h"
#include "table/row_layout.h"

namespace hps {

inline constexpr uint32_t kFormatVersion = 1;
// Of CURRENT and the open record of a store that has a table with statistics, and of the segments
// of such a table; nothing else differs in them.
inline constexpr uint32_t kStatisticsVersion = 2;
inline constexpr uint32_t kStatisticsBit = 0x100;  // beside the optimizer's number in a schema
// The same of a table whose footers have each record's period of death, too; tables with statistics
// are made so.
inline constexpr uint32_t kDeathsVersion = 3;
inline constexpr uint32_t kDeathsBit = 0x200;
// The same of a store that has a table of narrow rows (bfloat16 weights).
inline constexpr uint32_t kNarrowVersion = 4;
inline constexpr uint32_t kNarrowBit = 0x400;
inline constexpr std::string_view kSegmentMagic = "HPSSEGM1";
inline constexpr std::string_view kFooterMagic = "HPSFOOT1";
inline constexpr std::string_view kManifestMagic = "HPSMANI1";
inline constexpr std::string_view kCurrentMagic = "HPSCURR1";
inline constexpr std::string_view kIndexMagic = "HPSINDX1";

inline constexpr uint64_t kSegmentHeaderBytes = 64;
inline constexpr uint64_t kFooterTrailerBytes = 48;
inline constexpr uint64_t kTombstoneBytes = 16;
inline constexpr uint64_t kDeathBytes = 4;
inline constexpr uint64_t kChecksumBytes = 4;
inline constexpr uint64_t kMostRecords = uint64_t{1} << 28;  // of one segment

inline constexpr char kCurrentName[] = "CURRENT";
inline constexpr char kPinFolder[] = "pins";
inline constexpr char kWrittenName[] = ".written";  // the extra that holds the store's own figures
inline constexpr std::string_view kManifestPrefix = "MANIFEST-";
inline constexpr std::string_view kSegmentPrefix = "segment-";
inline constexpr std::string_view kExtraPrefix = "extra-";
inline constexpr std::string_view kIndexPrefix = "index-";

// A record's checksum starts from its place, so that a block that has been swapped or left over
// from another file does not pass.
inline uint64_t SegmentSeed(uint64_t segment_number) { return MixKey(segment_number + 1); }
inline uint32_t RecordSeed(uint64_t segment_seed, uint64_t record) {
  return static_cast<uint32_t>(MixKey(segment_seed + record));
}

// Of a row of a table with statistics.
inline uint32_t RowDeath(const char* row) {
  uint32_t death;
  std::memcpy(&death, row + kStatisticsAt + offsetof(RowStatistics, dies_at), sizeof(death));
  return death;
}

inline uint64_t RowKey(const void* row) {
  uint64_t key;
  std::memcpy(&key, row, sizeof(key));
  return key;
}

}  // namespace hps
