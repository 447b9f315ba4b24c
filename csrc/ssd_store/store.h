// SsdStore: a directory of tables with checkpoints; the lowest tier, which holds every row.
//
// Above it: the Python wrapper (hps/ssd_store/store.py). Below it, its parts, each with its own
// fields: store_state (the locks, and whether the store may be used), store_tables, commits,
// file_remover, checkpoint_list, checkpointer, compactor, cloner. One process writes, by a lock
// that names it; readers live beside it, each at one checkpoint. Thread-safety: every method may be
// called from any thread. Mutations run one after the other; Fetch and Contains do not wait for
// their I/O, nor for a compaction, which a thread of the store runs beside all of them. After a
// failed sync nobody knows what is on disk, so the store refuses every later mutation and says why;
// what was acknowledged before stays.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ssd_store/checkpoint_list.h"
#include "ssd_store/checkpointer.h"
#include "ssd_store/cloner.h"
#include "ssd_store/commits.h"
#include "ssd_store/compactor.h"
#include "ssd_store/file_remover.h"
#include "ssd_store/reader_pin.h"
#include "ssd_store/store_options.h"
#include "ssd_store/store_state.h"
#include "ssd_store/store_tables.h"
#include "ssd_store/verify.h"

namespace hps {

class SsdStore {
 public:
  static Status Open(FileSystem* files, const StoreOptions& options,
                     std::unique_ptr<SsdStore>* store);
  ~SsdStore();

  // Tables come in the order of the options, then those that the directory holds besides.
  size_t num_tables() const { return tables_.size(); }
  const TableStore& table(size_t table) const { return tables_[table]; }
  uint64_t seed() const { return seed_; }
  // Drawn when the store was made; a clone has that of its source.
  uint64_t id() const { return tables_.context().store_id; }
  // Grows whenever the tables' contents are replaced by a checkpoint; so a caller knows what a
  // restore that failed, or was interrupted, has done.
  uint64_t num_loads() const { return tables_.num_loads(); }

  Status Append(size_t table, const char* rows, uint64_t count);
  Status Erase(size_t table, const uint64_t* keys, uint64_t count, uint8_t* found);
  // In every table the rows that are dead in the period are absent from now on. A checkpoint that
  // was loaded is at period 0 until its caller, who knows, has set the one in which it was taken;
  // any other is a change, like a mutation. Of table i rows die early that would by horizons[i],
  // where that is later.
  Status SetPeriod(uint32_t period, bool is_change, const std::vector<uint32_t>& horizons = {});
  // Rewrites whatever has anything dead in it, of tables [first, end). If nothing was stored since
  // the current checkpoint, that one is renewed, so that the space is free at once: a new id, all
  // else the same. Damage ends it with kCorruption once the rest is done.
  Status Compact(size_t first, size_t end);
  CompactionSpace SpaceOfCompact(size_t first, size_t end) const;

  // `taken` is called once what the tables hold is in the checkpoint, before it is durable: appends
  // that come later wait, and are not in it. It calls no store.
  // Those that were created at the times of `promoted` stay, also where the new one has their tag.
  Status MakeCheckpoint(const std::string& tag, const std::vector<NamedBlob>& extras,
                        CheckpointSummary* summary, const std::function<void()>& taken = {},
                        const std::vector<double>& promoted = {});
  // Of a reader that was opened without rows: as if it had them from the beginning, for whoever
  // comes later. `beside` and `shares_index` as StoreOptions has them.
  Status LoadRows(SsdStore* beside, bool shares_index);
  // Makes an older checkpoint the current one; what came after it stays only in its own.
  Status Restore(const CheckpointName& name);
  // `holders` says which living readers still keep its files.
  Status DeleteCheckpoint(const CheckpointName& name, std::vector<std::string>* holders);
  std::vector<CheckpointSummary> Checkpoints() const { return list_.All(); }
  // The blobs of a checkpoint, or those of them with these names.
  Status Extras(const CheckpointName& name, std::vector<NamedBlob>* extras,
                const std::set<std::string>* wanted = nullptr) const {
    return list_.Extras(name, extras, wanted);
  }
  // Of each blob its name and its length; nothing is read.
  Status ExtraBytes(const CheckpointName& name,
                    std::vector<std::pair<std::string, uint64_t>>* bytes) const {
    return list_.ExtraBytes(name, bytes);
  }
  StoreFigures Figures() const;
  // Makes a store of its own at `target`, a folder that is empty or not there, which holds the
  // current checkpoint (of a reader: the one it opened) and nothing else. Its files are links to
  // those here, which neither store ever changes; copies where the system has no links, or
  // `may_link` is false. All are checked before CURRENT makes them a store. After an error only a
  // LOCK is there. Everything else goes on meanwhile, but Close and another Clone, which wait.
  Status Clone(const std::string& target, bool may_link, CloneSummary* summary) {
    return cloner_.Clone(target, may_link, summary);
  }
  // As VerifyStore, of the folder that was opened, wherever it is now. May run beside all else.
  Status Verify(std::vector<Damage>* damages) const;
  FileCache* cache() { return tables_.cache(); }
  // Fetch, Contains and the rest of table(i) mean something: the store is neither closed nor left
  // half loaded by a failed restore.
  Status CheckReadable() const { return state_.CheckReadable(); }
  // The folder and LOCK at the store's path are those that were opened; else kStore with ESTALE.
  // Nothing is committed where they are not.
  Status CheckHeld() const { return state_.CheckHeld(); }
  // Of the folder, for as long as the store lives; -1 for none.
  int folder_descriptor() const { return files_->folder_descriptor(); }
  // Lets go of the writer's lock or the reader's pin at once, even while a scan is still held;
  // every later call is refused. A writer that is at its current checkpoint leaves a snapshot of
  // the index, if that pays and the disk allows; the result is its size, else 0. In a forked child
  // it lets go of the child's share alone: the files are the parent's.
  uint64_t Close();

 private:
  SsdStore(FileSystem* files, std::unique_ptr<FileSystem> held, const StoreOptions& options);

  Status OpenWriter();
  Status OpenReader();
  uint64_t Abandon();

  // The folder, even after its path has gone; nullptr where the layer below holds none. First of
  // all, so that it goes last.
  const std::unique_ptr<FileSystem> held_;
  FileSystem* const files_;
  StoreOptions options_;  // as it was opened, but for has_rows of a reader
  uint64_t seed_ = 0;     // fixed once it is open
  StoreState state_;
  StoreTables tables_;
  Commits commits_;
  FileRemover remover_;
  CheckpointList list_;
  Checkpointer checkpointer_;
  Compactor compactor_;
  Cloner cloner_;
  // Guarded by state_.lock().
  std::unique_ptr<File> lock_;      // of a writer
  std::unique_ptr<ReaderPin> pin_;  // of a reader
};

}  // namespace hps
