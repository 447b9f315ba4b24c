// What a store is opened with, and what its verbs are given and answer: plain values.
//
// Above it: store.h and the parts of the store. Below it: manifest_records, key_index.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ssd_store/key_index.h"
#include "ssd_store/manifest_records.h"

namespace hps {

class SsdStore;

// Names a checkpoint: by tag, or by id; with neither, the current one.
struct CheckpointName {
  std::string tag;
  uint64_t id = 0;
};

struct StoreOptions {
  std::string path;
  std::vector<TableSchema> tables;  // ids are ignored
  uint64_t segment_bytes = uint64_t{256} << 20;
  uint32_t keep_last = 2;
  int num_threads = 1;                     // that load and sync a checkpoint, fetch; 0: one a core
  uint64_t snapshot_rows = 1 << 16;        // fewer are read from footers as fast as from a snapshot
  uint64_t most_places = KeyIndex::kNone;  // that a table's index can name; tests make do with few
  uint64_t seed = 0;
  bool has_seed = true;  // false: whatever is stored, 0 in a new store
  bool read_only = false;
  bool has_rows = true;       // read-only: false loads no rows, for its tables and extras alone
  bool direct_io = false;     // segments are read past the page cache; writes go through it
  CheckpointName checkpoint;  // read-only: the one to open
  // Read-only: another reader of the same store, open while this one is opened; its index is taken
  // over where most of it is the same. nullptr: none.
  SsdStore* beside = nullptr;
  bool shares_index =
      false;  // as it is, so that the other reader answers for keys alone from then on
  double compaction_threshold = 0.5;  // dead part of a segment from which it is rewritten
  uint64_t compaction_bytes_per_second = uint64_t{64} << 20;  // read and written, unless one waits
  bool compacts_in_background = false;  // else only in Compact, and in an Append that lacks space

  int NumThreads() const;
  // That load this checkpoint, or write the snapshot of its index; nullptr: an empty one.
  int NumLoadThreads(const Checkpoint* checkpoint) const;
};

struct NamedBlob {
  std::string name;
  std::string bytes;
};

struct CheckpointSummary {
  uint64_t id = 0;
  std::string tag;
  double created = 0;
  bool is_current = false;
  uint64_t num_rows = 0;
  uint64_t num_segments = 0;
  uint64_t bytes = 0;  // of its segments and extras
};

struct StoreFigures {
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t files_bytes = 0;            // segments and extras that anything still needs
  uint64_t checkpoint_only_bytes = 0;  // segments that only kept checkpoints need
  uint64_t snapshot_bytes = 0;         // of the index snapshot that the store was opened from
  uint64_t bytes_appended = 0;         // these three since the store was made
  uint64_t bytes_compacted = 0;
  uint64_t bytes_overhead = 0;
  uint64_t compactions = 0;  // these three since it was opened
  uint64_t compaction_failures = 0;
  uint64_t append_waits = 0;  // appends that had to wait for compaction
};

// What a full compaction would do, by what the index says now.
struct CompactionSpace {
  uint64_t written_bytes = 0;  // of the new segments, which lie beside the old ones at first
  uint64_t freed_bytes = 0;    // of old segments that are gone in the end
  uint64_t held_bytes = 0;     // of old segments that other checkpoints than the current one keep
};

struct CloneSummary {
  CheckpointSummary checkpoint;
  uint64_t files_linked = 0;
  uint64_t files_copied = 0;
  uint64_t bytes_copied = 0;
};

}  // namespace hps
