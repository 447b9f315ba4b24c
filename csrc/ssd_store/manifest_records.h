// What the manifest says: tables, the segments of a checkpoint, its extras; and their encoding.
//
// Above it: manifest, store. Below it: format. Plain values; every record is complete in itself, so
// a manifest can be rewritten from the records that are still wanted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"
#include "ssd_store/format.h"
#include "table/row_layout.h"

namespace hps {

// What is fixed about a table once its store exists.
struct TableSchema {
  uint32_t id = 0;  // given by the store, counted from 1, never reused
  std::string name;
  uint32_t dim = 0;
  OptimizerKind kind = OptimizerKind::kSgd;
  std::string initializer;
  double initializer_numbers[2] = {0, 0};
  uint32_t row_bytes = 0;
  bool has_statistics = false;
  bool has_deaths = false;  // of a table with statistics: its footers tell when records die
  bool is_narrow = false;   // its weights are bfloat16

  uint32_t format_version() const {
    if (is_narrow) return kNarrowVersion;
    if (has_deaths) return kDeathsVersion;
    return has_statistics ? kStatisticsVersion : kFormatVersion;
  }
};

// A sealed segment. Entries of a table are ordered by (sequence, generation, position).
struct SegmentInfo {
  uint64_t number = 0;
  uint64_t sequence = 0;
  uint32_t generation = 0;
  uint64_t num_records = 0;
  uint64_t num_tombstones = 0;
  uint32_t footer_checksum = 0;
  bool has_deaths = false;  // as its table's schema says

  uint64_t RecordOffset(uint64_t record, uint64_t row_bytes) const {
    return kSegmentHeaderBytes + record * (row_bytes + kChecksumBytes);
  }
  // Of the footer: keys, tombstones, periods of death, trailer.
  uint64_t DeathsOffset(uint64_t row_bytes) const {
    return RecordOffset(num_records, row_bytes) + num_records * 8 +
           num_tombstones * kTombstoneBytes;
  }
  uint64_t FooterBytes() const {
    return num_records * (has_deaths ? 8 + kDeathBytes : 8) + num_tombstones * kTombstoneBytes +
           kFooterTrailerBytes;
  }
  uint64_t FileBytes(uint64_t row_bytes) const {
    return RecordOffset(num_records, row_bytes) + FooterBytes();
  }
};

// One table at a checkpoint.
struct TableCheckpoint {
  TableSchema schema;
  uint64_t num_rows = 0;              // that the index named
  uint64_t num_expired = 0;           // of these, dead in the period of the checkpoint
  std::vector<SegmentInfo> segments;  // by (sequence, generation)
};

// A named blob: inline when small, else a file of its own with length and digest.
struct Extra {
  std::string name;
  uint64_t file_number = 0;  // 0: inline
  uint64_t length = 0;
  uint64_t digest = 0;  // Xxh64 of the bytes, seed 0
  std::string bytes;    // when inline
};

struct Checkpoint {
  uint64_t id = 0;     // counted from 1, never reused
  std::string tag;     // empty: untagged
  double created = 0;  // seconds since 1970
  std::vector<TableCheckpoint> tables;
  std::vector<Extra> extras;
  std::vector<uint64_t> dropped;  // checkpoints that this one's commit removes
  bool is_deleted = false;        // in memory: only kept because it is the current checkpoint

  std::vector<uint64_t> FileNumbers() const;
  // By its schema's id; nullptr if it is not in here.
  const TableCheckpoint* Find(uint32_t table) const;
};

// Numbers on disk: never renumber.
enum class RecordKind : uint32_t { kOpen = 1, kCheckpoint = 2, kRestore = 3, kDelete = 4 };

// Written whenever a store is opened for writing: its identity, its tables so far, and the file
// numbers that it may use from now on.
struct OpenRecord {
  uint64_t store_id = 0;
  uint64_t seed = 0;
  uint64_t reserved_end = 1;  // every file of the store so far has a smaller number
  uint64_t next_checkpoint = 1;
  std::vector<TableSchema> tables;

  uint32_t format_version() const;
};

std::string EncodeOpen(const OpenRecord& record);
bool DecodeOpen(std::string_view payload, OpenRecord* record);
std::string EncodeCheckpoint(const Checkpoint& checkpoint);
bool DecodeCheckpoint(std::string_view payload, Checkpoint* checkpoint);
std::string EncodeId(uint64_t id);  // of kRestore and kDelete
bool DecodeId(std::string_view payload, uint64_t* id);

// The state that a manifest's records add up to.
struct ManifestState {
  bool is_open = false;  // an open record has been seen
  OpenRecord open;
  std::map<uint64_t, Checkpoint> checkpoints;  // kept ones, by id
  uint64_t current = 0;  // id of the checkpoint that a kill returns to; 0: empty

  // Applies one record; false if it contradicts itself or what came before.
  bool Apply(RecordKind kind, std::string_view payload);
  void Drop(uint64_t id);  // a checkpoint that is current stays, unlisted
  const Checkpoint* Find(const std::string& tag) const;
  const Checkpoint* Current() const;
};

}  // namespace hps
