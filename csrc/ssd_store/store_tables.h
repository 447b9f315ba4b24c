// StoreTables: the tables of a store, what they share, and their contents as a whole: loaded from a
// checkpoint, sealed for one.
//
// Above it: checkpointer, compactor, file_remover, store.h. Below it: table_store, snapshot_keeper,
// store_state. The tables are made once, at the opening, and any thread may look into them; what is
// declared below under the lock needs the store's.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <vector>

#include "ssd_store/file_cache.h"
#include "ssd_store/snapshot_keeper.h"
#include "ssd_store/store_state.h"
#include "ssd_store/table_store.h"

namespace hps {

class StoreTables {
 public:
  StoreTables(FileSystem* files, const StoreOptions& options, StoreState* state);

  // Without a lock.
  StoreContext* context() { return &context_; }
  const StoreContext& context() const { return context_; }
  FileCache* cache() { return &cache_; }
  size_t size() const { return tables_.size(); }
  TableStore& operator[](size_t table) { return *tables_[table]; }
  const TableStore& operator[](size_t table) const { return *tables_[table]; }
  uint64_t num_loads() const { return num_loads_; }

  // With the store's lock.

  // The tables in the order of the options, then those that the store holds besides; nothing is in
  // them yet. `checkpoint`: the one that is to be loaded; nullptr: none.
  void Make(const OpenRecord& open, const Checkpoint* checkpoint);
  // Replaces all contents by those of a checkpoint; nullptr: none. After an error the tables cannot
  // be read (StoreState::is_half_loaded). `beside`: of another reader of the same store, or
  // nullptr; `shares_index` as StoreOptions has it.
  Status Load(const Checkpoint* checkpoint, StoreTables* beside = nullptr,
              bool shares_index = false);
  Status Check(const Checkpoint& checkpoint);
  // Seals the tables and notes what they hold now. Their files are synced with the record.
  Status Seal(Checkpoint* checkpoint);
  uint64_t SaveSnapshot(const Checkpoint* current);
  void AddFigures(StoreFigures* figures) const;
  // Adds the files that a table, a fetch or a scan needs, and the snapshot of this checkpoint.
  void AddNeeded(uint64_t current, std::set<uint64_t>* numbers);
  // Where segments go that a table drops.
  std::vector<std::weak_ptr<Segment>>* retired();

 private:
  bool LoadBeside(const Checkpoint& checkpoint, StoreTables* beside, bool shares_index);

  const StoreOptions& options_;
  StoreState* const state_;
  FileCache cache_;
  StoreContext context_;
  std::vector<std::unique_ptr<TableStore>> tables_;  // fixed once they are made
  std::atomic<uint64_t> num_loads_{0};
  // Guarded by state_->lock().
  SnapshotKeeper snapshots_;
  std::vector<std::weak_ptr<Segment>> retired_;  // dropped from a table, perhaps still being read
};

}  // namespace hps
