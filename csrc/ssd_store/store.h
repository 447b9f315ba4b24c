// SsdStore: a directory of tables with checkpoints; the lowest tier, which holds every row.
//
// Above it: the Python wrapper (hps/ssd_store/store.py). Below it: table_store, manifest,
// reader_pin. One process writes, by a lock that names it; readers stand beside it, each at one
// checkpoint. Thread-safety: every method may be called from any thread. Mutations run one after
// the other; Fetch and Contains do not wait for their I/O, nor for a compaction, which a thread of
// the store runs beside all of them (store_compact.cc). After a failed sync nobody knows what is
// on disk, so the store refuses every later mutation and says why; what was acknowledged before
// stays.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/turn_lock.h"
#include "ssd_store/compaction.h"
#include "ssd_store/manifest.h"
#include "ssd_store/reader_pin.h"
#include "ssd_store/table_store.h"

namespace hps {

// Names a checkpoint: by tag, or by id; with neither, the current cut.
struct CheckpointName {
  std::string tag;
  uint64_t id = 0;
};

struct StoreOptions {
  std::string path;
  std::vector<TableSchema> tables;  // ids are ignored
  uint64_t segment_bytes = uint64_t{256} << 20;
  uint32_t keep_last = 2;
  int num_threads = 1;               // that load a cut, sync a checkpoint, fetch; 0: one a core
  uint64_t snapshot_rows = 1 << 16;  // fewer are read from footers as fast as from a snapshot
  uint64_t most_places = KeyIndex::kNone;  // that a table's index can name; tests make do with few
  uint64_t seed = 0;
  bool has_seed = true;  // false: whatever is stored, 0 in a new store
  bool read_only = false;
  bool has_rows = true;       // read-only: false loads no cut, for its tables and extras alone
  bool direct_io = false;     // segments are read past the page cache; writes go through it
  CheckpointName checkpoint;  // read-only: the cut to open
  double compaction_threshold = 0.5;  // dead part of a segment from which it is rewritten
  uint64_t compaction_bytes_per_second = uint64_t{64} << 20;  // read and written, unless one waits
  bool compacts_in_background = false;  // else only in Compact, and in an Append that lacks space
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
  uint64_t written_bytes = 0;  // of the new segments, which stand beside the old ones at first
  uint64_t freed_bytes = 0;    // of old segments that are gone in the end
  uint64_t held_bytes = 0;     // of old segments that other checkpoints than the current one keep
};

struct CloneSummary {
  CheckpointSummary checkpoint;
  uint64_t files_linked = 0;
  uint64_t files_copied = 0;
  uint64_t bytes_copied = 0;
};

class SsdStore {
 public:
  static Status Open(FileSystem* files, const StoreOptions& options,
                     std::unique_ptr<SsdStore>* store);
  ~SsdStore();

  // Tables stand in the order of the options, then those that the directory holds besides.
  size_t num_tables() const { return tables_.size(); }
  const TableStore& table(size_t table) const { return *tables_[table]; }
  uint64_t seed() const { return manifest_.state().open.seed; }
  // Grows whenever the tables' contents are replaced by a cut; so a caller knows what a restore
  // that failed, or was interrupted, has done.
  uint64_t num_loads() const { return num_loads_; }

  Status Append(size_t table, const char* rows, uint64_t count);
  Status Erase(size_t table, const uint64_t* keys, uint64_t count, uint8_t* found);
  // Rewrites whatever has anything dead in it, of tables [first, end). If nothing was stored since
  // the current checkpoint, that one is renewed, so that the space is free at once: a new id, all
  // else the same. Damage ends it with kCorruption once the rest is done.
  Status Compact(size_t first, size_t end);
  CompactionSpace SpaceOfCompact(size_t first, size_t end) const;

  // `taken` is called once what the tables hold is in the cut, before it is durable: appends that
  // come later wait, and are not in it. It calls no store.
  Status MakeCheckpoint(const std::string& tag, const std::vector<NamedBlob>& extras,
                        CheckpointSummary* summary, const std::function<void()>& taken = {});
  // Makes an older cut the current one; what came after it stays only in its own checkpoints.
  Status Restore(const CheckpointName& name);
  // `holders` says which living readers still keep its files.
  Status DeleteCheckpoint(const CheckpointName& name, std::vector<std::string>* holders);
  std::vector<CheckpointSummary> Checkpoints() const;
  // The blobs of a checkpoint, or those of them with these names.
  Status Extras(const CheckpointName& name, std::vector<NamedBlob>* extras,
                const std::set<std::string>* wanted = nullptr) const;
  // Of each blob its name and its length; nothing is read.
  Status ExtraBytes(const CheckpointName& name,
                    std::vector<std::pair<std::string, uint64_t>>* bytes) const;
  StoreFigures Figures() const;
  // Makes a store of its own at `target`, a folder that is empty or not there, which holds the
  // current cut (of a reader: the one it opened) and nothing else. Its files are links to those
  // here, which neither store ever changes; copies where the system has no links, or `may_link` is
  // false. All are checked before CURRENT makes them a store. After an error only a LOCK is there.
  // Everything else goes on meanwhile, but Close and another Clone, which wait.
  Status Clone(const std::string& target, bool may_link, CloneSummary* summary);
  FileCache* cache() { return &cache_; }
  // Fetch, Contains and the rest of table(i) mean something: the store is neither closed nor left
  // half loaded by a failed restore.
  Status CheckReadable() const;
  // The folder and LOCK at the store's path are those that were opened; else kStore with ESTALE.
  // Nothing is committed where they are not.
  Status CheckHeld() const;
  // Of the folder, for as long as the store lives; -1 for none.
  int folder_descriptor() const { return files_->folder_descriptor(); }
  // Lets go of the writer's lock or the reader's pin at once, whoever still holds a scan; every
  // later call is refused. A writer that stands at its current cut leaves a snapshot of the index,
  // if that pays and the disk allows; the result is its size, else 0. In a forked child it lets go
  // of the child's share alone: the files are the parent's.
  uint64_t Close();

 private:
  SsdStore(FileSystem* files, std::unique_ptr<FileSystem> held, const StoreOptions& options);

  // store_open.cc
  static Status LockFolder(FileSystem* files, const std::string& folder,
                           std::unique_ptr<File>* lock);
  static Status TakeLock(FileSystem* files, const std::string& folder, std::unique_ptr<File>* lock);
  Status OpenWriter();
  Status OpenReader();
  Status CreateManifest();
  Status CheckSchemas() const;
  Status MergeSchemas(OpenRecord* open) const;
  Status MakeTables(const Checkpoint* cut);
  Status TakeNumber(uint64_t* number);

  // store_compact.cc
  Status StartCompactor();
  void RunCompactor();
  void NoteChange(size_t table, uint64_t bytes);
  void WakeCompactor();
  uint64_t SpaceBound(size_t table, uint64_t live_bytes, uint64_t num_spare) const;
  void WaitForSpace(size_t table, uint64_t bytes, std::unique_lock<std::mutex>* lock);
  enum class Runner { kThread, kAppend, kCompact };
  Status CompactOnce(size_t table, Runner runner, uint64_t below, bool* has_gained);
  Status BeginCompaction(size_t table, Runner runner, uint64_t below, bool* has_gained,
                         std::unique_ptr<Compaction>* compaction);
  Status EndCompaction(size_t table, std::unique_ptr<Compaction> compaction, Status status);
  Status RenewCheckpoint();

  // store.cc
  uint64_t Abandon();
  Status CheckOwner() const;
  Status CheckWritable() const;
  // The same, and the folder is at its path: before anything that ends in a commit.
  Status CheckCommittable();
  // In place of an error that comes of a folder that was removed, what has become of it.
  Status Explained(const Status& status);
  Status SettleIfBegun(const Status& status, bool is_begun);
  Status Stopped(StatusCode code, int os_error) const;
  // Stops the store after an error that leaves the disk unknown; the error that says so.
  Status Settle(const Status& status);
  Status CommitRecord(RecordKind kind, const std::string& payload);
  Status SyncPending();
  Status SyncBefore(File* current);
  Status SyncCut(Checkpoint* checkpoint);
  Status PrepareCheckpoint(const std::vector<NamedBlob>& extras, Checkpoint* checkpoint);
  void RemoveExtras(const Checkpoint& checkpoint);
  Status CheckCut(const Checkpoint& cut);
  Status WriteExtras(const std::vector<NamedBlob>& blobs, std::vector<Extra>* extras);
  std::vector<uint64_t> Superseded(const std::string& tag) const;
  Status RemoveUnneeded(std::vector<std::string>* holders);
  void CloseLater(std::vector<std::unique_ptr<File>> files);
  void AwaitClosing();
  Status LoadCut(const Checkpoint* cut);
  int NumLoadThreads(const Checkpoint* cut) const;
  int NumThreads() const;

  // store_snapshot.cc
  bool LoadSnapshot(const Checkpoint& cut, ThreadPool* pool);
  uint64_t SaveSnapshot();

  // store_clone.cc
  Status HoldCut(OpenRecord* open, Checkpoint* cut, CloneSummary* summary);
  void LetCutGo();
  Status MakeClone(const std::string& target, bool may_link, OpenRecord open, const Checkpoint& cut,
                   CloneSummary* summary) const;

  // store_queries.cc
  Status Resolve(const CheckpointName& name, const Checkpoint** checkpoint) const;
  Status NoSuchCheckpoint(const CheckpointName& name) const;
  CheckpointSummary Summarize(const Checkpoint& checkpoint) const;

  // The folder, whatever becomes of its path; nullptr where the layer below holds none. First of
  // all, so that it goes last.
  std::unique_ptr<FileSystem> held_;
  FileSystem* files_;
  StoreOptions options_;
  FileCache cache_;
  StoreContext context_;
  Manifest manifest_;
  std::unique_ptr<File> lock_;
  std::unique_ptr<ReaderPin> pin_;
  uint64_t reader_cut_ = 0;
  std::vector<std::unique_ptr<TableStore>> tables_;

  // What threads wait on, on the heap: a forked child lacks those threads, so it cannot destroy it.
  struct Waiting {
    explicit Waiting(uint64_t bytes_per_second) : pace(bytes_per_second) {}
    TurnLock mutations;
    CompactionPace pace;
    std::condition_variable progress;
    std::thread compactor;
    std::thread closer;
  };
  const int owner_;  // the process that opened it
  std::unique_ptr<Waiting> waiting_;

  TurnLock& mutations_ = waiting_->mutations;  // held also while a mutation waits for space
  std::mutex cloning_;         // held by a clone while it copies; taken before writer_
  std::mutex compaction_;      // one compaction at a time; taken after mutations_, before writer_
  mutable std::mutex writer_;  // guards what follows and the tables' contents
  std::string failure_;
  std::atomic<uint64_t> num_loads_{0};
  std::atomic<bool> is_closed_{false};
  std::atomic<bool> is_half_loaded_{false};
  uint64_t next_number_ = 1;
  uint64_t snapshot_number_ = 0;  // the file on disk that holds the index of snapshot_cut_
  uint64_t snapshot_cut_ = 0;     // a checkpoint's id
  uint64_t snapshot_bytes_ = 0;
  std::vector<std::shared_ptr<File>> unsynced_;
  std::vector<std::weak_ptr<Segment>> retired_;  // dropped from a table, perhaps still being read
  std::vector<uint64_t> cloned_;                 // files that a running clone needs
  bool is_changed_ = false;                      // something was stored since the current cut

  CompactionPace& pace_ = waiting_->pace;
  std::thread& compactor_ = waiting_->compactor;
  std::thread& closer_ = waiting_->closer;  // of files that were removed; guarded as failure_
  std::condition_variable& progress_ = waiting_->progress;  // with writer_: work is due, or done
  bool is_due_ = false;
  bool is_failing_ = false;     // the last compaction failed; nobody waits for the next
  uint64_t due_bytes_ = 0;      // stored since work was last due
  size_t waiting_table_ = 0;    // of the append that waits, or waited last
  uint64_t output_number_ = 0;  // a file that the running compaction writes; 0: none
  uint64_t num_compactions_ = 0;
  uint64_t num_compaction_failures_ = 0;
  uint64_t num_append_waits_ = 0;
};

}  // namespace hps
