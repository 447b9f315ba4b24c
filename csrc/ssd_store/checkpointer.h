// Checkpointer: makes a checkpoint, and renews the current one after a compaction.
//
// Above it: store.h. Below it: commits, store_tables, checkpoint_list, file_remover. Files are
// written first, then synced together, then named by one record. All methods need the store's lock.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ssd_store/checkpoint_list.h"
#include "ssd_store/file_remover.h"

namespace hps {

class Checkpointer {
 public:
  Checkpointer(const StoreOptions& options, StoreState* state, Commits* commits,
               StoreTables* tables, const CheckpointList* list, FileRemover* remover);

  // See SsdStore::MakeCheckpoint.
  Status Make(const std::string& tag, const std::vector<NamedBlob>& extras,
              CheckpointSummary* summary, const std::function<void()>& taken,
              const std::vector<double>& promoted);
  // The same rows under a new record, which names the segments of now; the old record goes. Not
  // where something was stored since, and not for a checkpoint that was deleted while it was
  // current: it is to be listed no more.
  Status Renew();
  // Whether something was stored since the current checkpoint.
  void SetChanged(bool is_changed);

 private:
  Status Prepare(const std::vector<NamedBlob>& extras, Checkpoint* checkpoint);
  Status WriteExtras(const std::vector<NamedBlob>& blobs, std::vector<Extra>* extras);
  void RemoveExtras(const Checkpoint& checkpoint);
  std::vector<uint64_t> Superseded(const std::string& tag,
                                   const std::vector<double>& promoted) const;

  FileSystem* const files_;
  const StoreOptions& options_;
  StoreState* const state_;
  Commits* const commits_;
  StoreTables* const tables_;
  const CheckpointList* const list_;
  FileRemover* const remover_;
  bool is_changed_ = false;  // guarded by state_->lock()
};

}  // namespace hps
