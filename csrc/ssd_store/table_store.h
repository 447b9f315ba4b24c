// TableStore: one table's rows on SSD: its segments, the index over them, and the open segment's
// writer.
//
// Above it: store, which serialises Append, Erase, Seal, Load and DropDead; Fetch, Contains and
// Snapshot may run beside them from any thread. Below it: key_index, segment, row_fetch. The lock
// here covers memory only: no I/O happens under it, except in Load.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "ssd_store/file_cache.h"
#include "ssd_store/key_index.h"
#include "ssd_store/manifest_records.h"
#include "ssd_store/row_fetch.h"
#include "ssd_store/segment.h"

namespace hps {

// What the tables of a store share. The functions are the store's own, called under its writer's
// lock.
struct StoreContext {
  FileSystem* files = nullptr;
  std::string folder;
  uint64_t store_id = 0;
  uint64_t segment_bytes = 0;
  FileCache* cache = nullptr;
  std::function<Status(uint64_t* number)> take_number;           // a file number never used before
  std::function<Status(std::shared_ptr<File> file)> sync_later;  // a sealed segment to be synced
  std::atomic<uint64_t> bytes_read{0};
  std::atomic<uint64_t> bytes_written{0};
};

// The live rows of a table at one moment, as bitmaps over its segments' records.
struct TableSnapshot {
  struct Part {
    std::shared_ptr<const Segment> segment;
    std::vector<uint64_t> live;  // one bit a record
  };
  std::vector<Part> parts;
  uint64_t num_rows = 0;
};

struct TableFigures {
  uint64_t num_rows = 0;
  uint64_t num_segments = 0;
  uint64_t live_bytes = 0;
  uint64_t segment_bytes = 0;
  uint64_t index_bytes = 0;
};

class TableStore {
 public:
  TableStore(StoreContext* context, TableSchema schema)
      : context_(context), schema_(std::move(schema)) {}

  const TableSchema& schema() const { return schema_; }

  // Stores `count` rows; later rows of one key supersede earlier ones. On error the rows before
  // some point may be stored; repeating the call is right in every case.
  Status Append(const char* rows, uint64_t count);
  // found[i] = 1 where the key was stored; each such key gets a tombstone.
  Status Erase(const uint64_t* keys, uint64_t count, uint8_t* found);
  Status Fetch(const uint64_t* keys, uint64_t count, char* rows, uint8_t* found) const;
  void Contains(const uint64_t* keys, uint64_t count, uint8_t* found) const;
  uint64_t num_rows() const;
  TableFigures Figures() const;
  TableSnapshot Snapshot() const;

  Status Seal();
  // Replaces all contents by those of a cut; nullptr empties the table.
  Status Load(const TableCut* cut, std::vector<std::weak_ptr<Segment>>* retired);
  // The sealed segments, after Seal.
  TableCut Cut() const;
  // Forgets segments that hold no live record and no tombstone that is still needed.
  void DropDead(std::vector<std::weak_ptr<Segment>>* retired);
  std::vector<std::shared_ptr<const Segment>> Segments() const;

 private:
  static constexpr int kChunkBits = 12;  // a location is a chunk's number and a record within it
  static constexpr uint64_t kChunkRecords = uint64_t{1} << kChunkBits;
  static constexpr uint64_t kMostTombstones = uint64_t{1} << 20;

  struct ChunkPlace {
    uint32_t segment = 0;
    uint32_t idx = 0;  // of the chunk within its segment
  };

  Status OutOfMemory() const;
  Status OpenSegment();
  bool AddChunks(uint32_t ordinal, uint64_t num_records);
  uint32_t AddSegment(std::shared_ptr<Segment> segment);
  void RemoveSegment(uint32_t ordinal, std::vector<std::weak_ptr<Segment>>* retired);
  Status LoadSegment(const SegmentInfo& info);
  bool PutKeys(uint32_t ordinal, uint64_t first, const char* keys, uint64_t stride, uint64_t count);
  void ApplyTombstones(uint32_t ordinal, const Tombstone* tombstones, uint64_t count);
  WantedRecord Decode(uint64_t location) const {
    const ChunkPlace place = chunks_[location >> kChunkBits];
    return {place.idx * kChunkRecords + (location & (kChunkRecords - 1)), place.segment, 0};
  }
  uint64_t CapacityOf(uint64_t num_bytes) const;

  StoreContext* context_;
  TableSchema schema_;
  mutable std::shared_mutex mutex_;  // guards what follows, but not writer_
  KeyIndex index_;
  std::vector<ChunkPlace> chunks_;
  std::vector<uint32_t> free_chunks_;
  std::vector<std::shared_ptr<Segment>> segments_;  // by ordinal; empty where one was removed
  std::unique_ptr<SegmentWriter> writer_;           // guarded by the store's writer lock
  uint32_t writer_ordinal_ = 0;
};

}  // namespace hps
