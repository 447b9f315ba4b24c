// TableStore: one table's rows on SSD: its segments, the index over them, and the open segment's
// writer.
//
// Above it: store_tables, store.cc, compactor, compaction. Below it: key_index, segment, row_fetch.
// Append, Erase, Seal, Load, DropDead, Plan, Begin and End need the store's lock; Fetch, Contains
// and Snapshot may run beside them from any thread, and so may the copying and installing of one
// compaction. The lock here covers memory only: no I/O happens under it, but for loading a
// checkpoint.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "common/owned_mutex.h"
#include "common/thread_pool.h"
#include "ssd_store/file_cache.h"
#include "ssd_store/index_snapshot.h"
#include "ssd_store/key_index.h"
#include "ssd_store/manifest_records.h"
#include "ssd_store/row_fetch.h"
#include "ssd_store/segment.h"
#include "ssd_store/space.h"

namespace hps {

// What the tables of a store share. The functions are commits', called under the store's lock.
struct StoreContext {
  FileSystem* files = nullptr;
  std::string folder;
  uint64_t store_id = 0;
  uint64_t segment_bytes = 0;
  int num_threads = 1;  // of a fetch
  uint64_t most_places = KeyIndex::kNone;
  FileCache* cache = nullptr;
  const OwnedMutex* lock = nullptr;  // the store's, which whatever changes a table holds
  std::function<Status(uint64_t* number)> take_number;           // a file number never used before
  std::function<Status(std::shared_ptr<File> file)> sync_later;  // a sealed segment to be synced
  std::atomic<uint64_t> bytes_read{0};
  std::atomic<uint64_t> bytes_written{0};
  // Since the store was made, as far as its checkpoints tell.
  std::atomic<uint64_t> bytes_appended{0};   // records, by callers
  std::atomic<uint64_t> bytes_compacted{0};  // records, by compaction
  std::atomic<uint64_t> bytes_overhead{0};   // headers, footers, manifest

  void CountOverhead(uint64_t bytes) {
    bytes_written += bytes;
    bytes_overhead += bytes;
  }
};

// Where a row's record lies.
struct RecordPlace {
  uint64_t segment = 0;  // its number; 0: there is no row
  uint64_t record = 0;   // within it

  bool operator==(const RecordPlace& other) const {
    return segment == other.segment && record == other.record;
  }
};

// The live rows of a table at one moment, as bitmaps over its segments' records.
struct TableSnapshot {
  struct Part {
    std::shared_ptr<const Segment> segment;
    std::vector<uint64_t> live;  // one bit a record
  };
  std::vector<Part> parts;
  uint64_t num_rows = 0;
  uint32_t row_bytes = 0;
};

struct TableFigures {
  uint64_t num_rows = 0;
  uint64_t num_segments = 0;
  uint64_t live_bytes = 0;  // of rows that the index names: their records and keys in the footers
  uint64_t expired_bytes = 0;  // of these, dead ones
  uint64_t segment_bytes = 0;
  uint64_t index_bytes = 0;
};

// Why segments are to be rewritten, which decides how much must be dead in them.
enum class CompactionNeed {
  kRoutine,  // more than the threshold is dead, or too much of the table is tombstones
  kSpace,    // the table nears its bound: whatever gives most back
  kAll,      // anything is dead, or small segments can become one
};

// Which segments become one, and that one's place in the order. Chosen under the store's lock.
struct CompactionPlan {
  struct Input {
    std::shared_ptr<Segment> segment;
    uint32_t ordinal = 0;
    bool keeps_tombstones = false;
  };
  std::vector<Input> inputs;
  SegmentInfo output;      // its sequence and generation; the store adds a number
  uint64_t num_loads = 0;  // of the table; a plan is void once a checkpoint has been loaded
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
  // Whether all records of a segment are rows of the table.
  bool HoldsAll(const Segment& segment) const;
  // Whether the load began with the index of that table, another reader's, and found for every row
  // of its segment `number`, which is gone, another record, or a tombstone, in a new segment.
  bool HasSuperseded(const TableStore& earlier, uint64_t number) const {
    return followed_ == earlier.identity_ && superseded_.count(number) > 0;
  }
  // Where each key's row is; of a key without one places[i].segment is 0.
  void Places(const uint64_t* keys, uint64_t count, RecordPlace* places) const;
  uint64_t num_rows() const;
  // Rows whose period of death has come are absent from now on, whatever becomes of their bytes.
  // So are rows whose own period comes by `horizon`, if that is later: they die early. Looks at
  // four bytes a record, in memory.
  void SetPeriod(uint32_t period, uint32_t horizon = 0);
  // counts[0]: rows that never die; counts[i]: rows that die i periods after this one, and with the
  // last of `num_counts` those that die later. Cost as SetPeriod.
  void CountDeaths(uint32_t period, uint64_t* counts, uint64_t num_counts) const;
  // Erases the rows that have died early, of which no footer tells: before a checkpoint. Reads the
  // keys of their segments, 8 bytes a record.
  Status BuryEarly();
  TableFigures Figures() const;
  TableSnapshot Snapshot() const;

  Status Seal();
  // Keeps every look-up waiting. Load and LoadSnapshot want it held.
  std::unique_lock<std::shared_mutex> HoldContents() const {
    return std::unique_lock<std::shared_mutex>(mutex_);
  }
  // Replaces all contents by those of a checkpoint, from its footers; nullptr empties the table.
  Status Load(const TableCheckpoint* checkpoint, ThreadPool* pool,
              std::vector<std::weak_ptr<Segment>>* retired);
  // As Load, but the index comes from a snapshot of the same checkpoint. After an error: Load.
  Status LoadSnapshot(const TableCheckpoint& checkpoint, const IndexSnapshot& snapshot,
                      ThreadPool* pool, std::vector<std::weak_ptr<Segment>>* retired);
  // As Load, from the index of the same table at another checkpoint of this store, which is open
  // for reading, if the two have most of their segments in common: else `*is_loaded` stays false,
  // as it does where an error does not say so: Load. See table_follow.cc.
  // `shares`: the index is not copied, but becomes that of this checkpoint, and the other reader
  // notes what it has otherwise: it can be asked for keys as before, and for nothing else.
  Status LoadBeside(TableStore* other, bool shares, const TableCheckpoint& checkpoint,
                    std::vector<std::weak_ptr<Segment>>* retired, bool* is_loaded);
  // For a snapshot: the table as it is, whose index may not change until that is written.
  TableImage Image() const;
  // Whether the table holds exactly this checkpoint (nullptr: nothing).
  bool IsAt(const TableCheckpoint* checkpoint) const;
  // The sealed segments, after Seal.
  TableCheckpoint ToCheckpoint() const;
  std::vector<std::shared_ptr<const Segment>> Segments() const;
  // How large a segment may become, in records, and such a one's file in bytes. It follows the
  // table: a quarter of the live rows, at least 8 MiB, at most the store's segment_bytes.
  uint64_t SegmentCapacity() const { return CapacityFor(num_rows()); }
  uint64_t FullSegmentBytes() const { return FullBytesFor(num_rows()); }
  uint64_t RowSpace() const { return hps::RowSpace(schema_.row_bytes, schema_.has_deaths); }

  // table_compact.cc. The store runs one compaction at a time: Plan, Begin, then FindLive as rows
  // are copied, AddOutput and Install, and in any case End.

  // named[i] = 1 where the index names a record of the key, expired or not.
  void Names(const uint64_t* keys, uint64_t count, uint8_t* named) const;
  // Sealed segments of which expired records would give back more than the threshold's share, or
  // any if it is negative; numbered below `below`.
  std::vector<std::shared_ptr<Segment>> ToBury(double threshold, uint64_t below) const;
  // Erases those records [first, first + count) of a segment that are expired (only_early: that
  // have died early), and whose keys these are, so that what compaction takes away with them
  // uncovers no older record of a key.
  Status Bury(const Segment& segment, uint64_t first, const uint64_t* keys, uint64_t count,
              bool only_early = false);
  // Forgets segments that hold no live record and no tombstone that is still needed; whether any.
  bool DropDead(std::vector<std::weak_ptr<Segment>>* retired);
  // Segments numbered `below` or higher stay out of it. False if there is nothing to do, or a
  // compaction runs.
  bool Plan(CompactionNeed need, double threshold, uint64_t below, CompactionPlan* plan) const;
  // All that kAll would rewrite in the end, but for what is not sealed yet.
  std::vector<std::shared_ptr<Segment>> AllToRewrite() const;
  void Begin(const CompactionPlan& plan);
  bool IsCompacting() const;
  // live[i] = 1 where the index names record `first` + i of the input, whose key is keys[i].
  // False: the plan is void.
  bool FindLive(const CompactionPlan& plan, size_t input, uint64_t first, const uint64_t* keys,
                std::vector<uint8_t>* live) const;
  // Puts the sealed and synced output among the segments; nothing names its records yet.
  Status AddOutput(const CompactionPlan& plan, std::shared_ptr<Segment> output, uint32_t* ordinal);
  static uint64_t Location(const Segment& segment, uint64_t record);
  // Moves keys[i] to record `first` + i of the output if it still is at sources[i]. False: void.
  bool Install(const CompactionPlan& plan, uint32_t ordinal, uint64_t first,
               const std::vector<uint64_t>& keys, const std::vector<uint64_t>& sources);
  // Once all is installed the inputs go; else everything stays.
  void End(const CompactionPlan& plan, bool is_installed,
           std::vector<std::weak_ptr<Segment>>* retired);
  // Compaction leaves this segment alone from now on: its records cannot be read.
  void SetAside(uint64_t number);
  void TakeBack();  // all that were set aside

 private:
  // How much a segment holds more, of what its fields of the same names count.
  struct Change {
    int64_t live = 0;
    int64_t expired = 0;
  };
  using ThreadChanges = std::vector<std::vector<Change>>;  // of each thread, by ordinal
  // What the threads that learn a segment have in common (table_follow.cc).
  struct Learning {
    uint32_t ordinal;  // the segment's
    const std::vector<uint32_t>* deaths;
    const std::vector<bool>* is_gone;
    TableStore* lender;
  };
  struct Candidate {
    uint32_t ordinal = 0;
    uint64_t gain = 0;      // bytes that a rewriting gives back
    uint64_t detained = 0;  // bytes of tombstones that older segments still need
  };
  static constexpr uint64_t kAbsent = KeyIndex::kNone - 1;
  static constexpr uint64_t kMostTombstones = uint64_t{1} << 20;
  // In place of a period of death: dead in every period, as none begins before 1.
  static constexpr uint32_t kDiesEarly = 1;
  static constexpr uint64_t kLockedKeys = 4096;       // changed under one hold of the lock
  static constexpr uint64_t kInstalledKeys = 131072;  // the same, by all threads

  Status OutOfMemory() const;
  Status OutOfPlaces() const;
  Status OpenSegment();
  // False when every place that the index can name is taken.
  bool AddChunks(uint32_t ordinal, uint64_t num_records);
  uint32_t AddSegment(std::shared_ptr<Segment> segment);
  std::vector<uint32_t> ByAge() const;
  std::vector<Candidate> Candidates(uint64_t below) const;
  void SelectRoutine(double threshold, std::vector<Candidate>* candidates) const;
  void SelectForSpace(std::vector<Candidate>* candidates) const;
  void SelectAll(std::vector<Candidate>* candidates) const;
  void KeepBlocking(std::vector<Candidate>* candidates) const;
  void FillPlan(const std::vector<Candidate>& candidates, CompactionPlan* plan) const;
  void RemoveSegment(uint32_t ordinal, std::vector<std::weak_ptr<Segment>>* retired);
  std::shared_ptr<Segment> SealedSegment(const SegmentInfo& info) const;
  bool AdoptParts(const TableCheckpoint& checkpoint, const TableImage& image);
  bool CopyIndex(const TableStore& other);
  void ShareIndex(TableStore* lender, uint64_t most_displaced);
  void Prefetch(uint64_t hash, const TableStore* lender) const;
  // The keys of numbers first, first + 1 ... in the order of the index's shards, whose pages are
  // then asked for one after the other; each with its number.
  static KeyIndex::ShardStarts SortByShard(uint64_t first, const uint64_t* keys, uint64_t count,
                                           KeyItem* items);
  bool IsNewer(uint64_t location, const Segment& segment, uint64_t record) const;
  bool IsNewerThan(const Segment& segment, uint64_t record, uint64_t location,
                   const std::vector<bool>& is_gone) const;
  void LearnTombstones(const Segment& segment, const Tombstone* tombstones, uint64_t count,
                       const std::vector<bool>& is_gone, TableStore* lender);
  Status LearnTombstonesAgain(uint64_t number, const std::vector<bool>& is_gone,
                              TableStore* lender);
  Status ForgetSegment(uint32_t ordinal, TableStore* lender,
                       std::vector<std::weak_ptr<Segment>>* retired);
  bool LearnShard(const Learning& learning, const KeyItem* items, uint64_t count,
                  std::vector<Change>* changes);
  Status LearnSegment(const SegmentInfo& info, const std::vector<bool>& is_gone,
                      TableStore* lender);
  void NoteDisplaced(uint64_t hash, uint64_t location);
  // Ahead of Find. A lender is asked for keys that have changed since: nearly all are displaced,
  // and the index, each look into which is a page of its own, is not needed for them.
  void PrefetchFind(uint64_t hash) const { (is_lent_ ? displaced_ : *index_).Prefetch(hash); }
  uint64_t Find(uint64_t hash) const {
    if (is_lent_) {
      const uint64_t before = displaced_.Find(hash);
      if (before != KeyIndex::kNone) return before == kAbsent ? KeyIndex::kNone : before;
    }
    return index_->Find(hash);
  }
  Status CheckSegments(ThreadPool* pool) const;
  void Reset(std::vector<std::weak_ptr<Segment>>* retired);
  // Names the records [first, first + count) of the open segment, whose rows these are. After an
  // error some of the keys are in the index.
  Status InstallRows(ThreadPool* pool, const char* rows, uint64_t first, uint64_t count);
  void AddChanges(const ThreadChanges& changes);
  bool PutShard(const KeyItem* items, uint64_t count, std::vector<Change>* changes);
  WantedRecord Decode(uint64_t location) const {
    const ChunkPlace place = chunks_[location >> kChunkBits];
    return {place.idx * kChunkRecords + (location & (kChunkRecords - 1)), place.segment, 0};
  }
  bool IsDeadBy(uint32_t death) const { return death != kNeverDies && death <= period_; }
  bool IsExpired(uint64_t location) const;
  std::shared_ptr<Segment> FindEarly() const;
  // The index names the record no more, which is counted there, or in the segment; returns when it
  // dies.
  uint32_t Unname(uint64_t location, std::vector<Change>* changes);
  uint64_t NumExpired() const;
  void CountExpired(Segment* segment) const;
  Status LoadDeaths(ThreadPool* pool);
  // Gives the key a tombstone in the open segment.
  bool EraseNamed(uint64_t key);
  Status EnsureTombstonesFit();
  Status SealIfFull();
  uint64_t SegmentBytesFor(uint64_t num_rows) const;
  uint64_t CapacityFor(uint64_t num_rows) const;
  uint64_t FullBytesFor(uint64_t num_rows) const;
  bool IsWriterFull() const;

  StoreContext* context_;
  TableSchema schema_;
  mutable std::shared_mutex mutex_;  // guards what follows, but not writer_
  std::shared_ptr<KeyIndex> index_ = std::make_shared<KeyIndex>();
  // Of a reader whose index has become that of a later checkpoint (LoadBeside): where the records
  // of the keys are that it has otherwise, or kAbsent; and how many rows there are.
  bool is_lent_ = false;
  KeyIndex displaced_;
  uint64_t num_lent_rows_ = 0;
  // Of a reader that began with another one's index: whose it was, and the numbers of that one's
  // segments that are gone, of which every row has another record now.
  std::shared_ptr<const char> identity_ = std::make_shared<char>();
  std::shared_ptr<const char> followed_;
  std::set<uint64_t> superseded_;
  std::vector<ChunkPlace> chunks_;
  std::vector<uint32_t> free_chunks_;
  std::vector<std::shared_ptr<Segment>> segments_;  // by ordinal; empty where one was removed
  std::unique_ptr<SegmentWriter> writer_;           // guarded by context_->lock
  uint32_t writer_ordinal_ = 0;
  // Memory of Append, kept for the next one; guarded as writer_.
  std::unique_ptr<KeyItem[]> items_;
  std::vector<RecordPiece> pieces_;
  uint32_t period_ = 0;
  bool has_early_ = false;  // records that are marked as dead early may be there
  uint64_t num_loads_ = 0;
  std::set<uint32_t> busy_;       // ordinals of the running compaction, which only it may remove
  std::set<uint64_t> set_aside_;  // numbers of segments that compaction could not read
  uint64_t newest_output_ = 0;    // a compaction's; guarded by context_->lock
};

// The order of entries: by sequence, then generation.
inline bool IsOlder(const SegmentInfo& left, const SegmentInfo& right) {
  return left.sequence != right.sequence ? left.sequence < right.sequence
                                         : left.generation < right.generation;
}

}  // namespace hps
