// IndexSnapshot: the index of every table in one file, as a clean close leaves it for the next
// opening.
//
// Above it: snapshot_keeper, table_load. Below it: key_index, file_system. A snapshot
// belongs to one checkpoint, which it names by store, checkpoint and the digest of the checkpoint's
// record; the record names every segment with its footer's checksum, so an equal digest means equal
// contents. The file is a directory and, behind it, the shards' own bytes, each with a checksum, so
// it loads as fast as the disk gives it. It only saves time: one that is torn, damaged, of another
// checkpoint or of another version is passed over, and the index comes from the footers. Nothing
// here is synced. Not thread-safe.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "files/file_system.h"
#include "ssd_store/key_index.h"
#include "ssd_store/manifest_records.h"

namespace hps {

// Which checkpoint of which store a snapshot belongs to.
struct CheckpointIdentity {
  uint64_t store_id = 0;
  uint64_t checkpoint = 0;
  uint64_t digest = 0;

  static CheckpointIdentity Of(uint64_t store_id, const Checkpoint& checkpoint);
  bool operator==(const CheckpointIdentity&) const = default;
};

// A table as a snapshot holds it: what its index's locations mean, and the index.
struct TableImage {
  struct Part {
    uint64_t number = 0;  // of the segment; 0 where the table has none of this ordinal
    uint64_t live = 0;
  };
  static constexpr uint32_t kFreeChunk = ~uint32_t{0};  // as a ChunkPlace's segment

  uint32_t table = 0;  // the schema's id
  uint64_t num_rows = 0;
  std::vector<Part> parts;  // by ordinal
  std::vector<ChunkPlace> chunks;
  const KeyIndex* index = nullptr;  // to be written
};

// Makes the file `path`; if that fails nothing is left of it. The directory's first eight bytes are
// written last, so that a process killed before leaves a file that says nothing.
Status WriteIndexSnapshot(FileSystem* files, const std::string& path,
                          const CheckpointIdentity& belongs_to,
                          const std::vector<TableImage>& tables, ThreadPool* pool,
                          uint64_t* num_bytes);

class IndexSnapshot {
 public:
  // Opens the file and reads its directory; kCorruption if that does not hold. One whose writer was
  // killed before it was done is of no checkpoint.
  static Status Open(FileSystem* files, const std::string& path,
                     std::unique_ptr<IndexSnapshot>* snapshot);

  const CheckpointIdentity& belongs_to() const { return belongs_to_; }
  uint64_t num_bytes() const { return num_bytes_; }
  const TableImage* Find(uint32_t table) const;
  // Fills an empty index with a table's, checking every shard; after an error it is to be cleared.
  Status LoadIndex(const TableImage& table, ThreadPool* pool, KeyIndex* index) const;

 private:
  struct ShardEntry {
    ShardImage image;  // without its bytes
    uint64_t offset = 0;
    uint32_t checksum = 0;

    uint64_t num_bytes() const { return image.slots * KeyIndex::kEntryBytes; }
  };
  using Shards = std::array<ShardEntry, KeyIndex::kNumShards>;

  IndexSnapshot() = default;
  Status ParseDirectory(std::string_view bytes);
  Status CheckShard(const ShardEntry& shard, const void* bytes) const;

  std::unique_ptr<File> file_;
  CheckpointIdentity belongs_to_;
  uint64_t num_bytes_ = 0;
  std::vector<TableImage> tables_;
  std::vector<Shards> shards_;  // of each table

  friend Status WriteIndexSnapshot(FileSystem*, const std::string&, const CheckpointIdentity&,
                                   const std::vector<TableImage>&, ThreadPool*, uint64_t*);
};

}  // namespace hps
