// SnapshotKeeper: which snapshot of the index a store is opened with, and when it leaves one.
//
// Above it: store_tables. Below it: index_snapshot, table_store. At most one is kept, of the
// current checkpoint; file_remover takes all others. Every error here is of no weight: the footers
// hold the same. All methods need the store's lock.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "ssd_store/store_state.h"
#include "ssd_store/table_store.h"

namespace hps {

class SnapshotKeeper {
 public:
  using Tables = std::vector<std::unique_ptr<TableStore>>;

  SnapshotKeeper(const StoreOptions& options, StoreContext* context, const StoreState* state)
      : options_(options), context_(context), state_(state) {}

  // Fills the tables, whose contents the caller holds, from a snapshot of this checkpoint. False:
  // there is none that holds.
  bool Load(const Checkpoint& checkpoint, const Tables& tables, ThreadPool* pool,
            std::vector<std::weak_ptr<Segment>>* retired);
  // Leaves a snapshot of `current` if the tables are exactly at it and it pays. Its size, or 0.
  uint64_t Save(const Checkpoint* current, const Tables& tables);
  // Adds the number of the file that holds the index of this checkpoint, if there is one.
  void AddNeeded(uint64_t checkpoint, std::set<uint64_t>* numbers) const;
  uint64_t num_bytes() const;  // of the one that was loaded

 private:
  const StoreOptions& options_;
  StoreContext* const context_;
  const StoreState* const state_;
  // Guarded by state_->lock().
  uint64_t number_ = 0;      // the file on disk that holds the index of checkpoint_
  uint64_t checkpoint_ = 0;  // an id
  uint64_t num_bytes_ = 0;
};

}  // namespace hps
