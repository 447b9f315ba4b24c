// Cloner: one checkpoint as a store of its own, in another folder.
//
// Above it: store.h. Below it: checkpoint_list, file_remover, verify, folder_lock. The files of a
// checkpoint are never written again, so a link is as good as a copy. Their headers carry the
// store's id, which the clone keeps, and its file numbers go on behind all of this store's. CURRENT
// comes last: a clone that was interrupted is no store, and neither is the folder empty, so it is
// refused until someone removes it.
#pragma once

#include <mutex>
#include <string>

#include "ssd_store/checkpoint_list.h"
#include "ssd_store/file_remover.h"

namespace hps {

class Cloner {
 public:
  Cloner(FileSystem* files, const StoreOptions& options, const StoreState* state,
         const Commits* commits, const CheckpointList* list, FileRemover* remover)
      : files_(files),
        options_(options),
        state_(state),
        commits_(commits),
        list_(list),
        remover_(remover) {}

  // See SsdStore::Clone. Takes the store's lock before and after the copying.
  Status Clone(const std::string& target, bool may_link, CloneSummary* summary);
  // Waits for a running clone and keeps others from beginning.
  std::unique_lock<std::mutex> Block() { return std::unique_lock<std::mutex>(running_); }

 private:
  Status HoldCheckpoint(OpenRecord* open, Checkpoint* checkpoint, CloneSummary* summary);
  void LetGo();
  Status Make(const std::string& target, bool may_link, OpenRecord open,
              const Checkpoint& checkpoint, CloneSummary* summary) const;

  FileSystem* const files_;
  const StoreOptions& options_;
  const StoreState* const state_;
  const Commits* const commits_;
  const CheckpointList* const list_;
  FileRemover* const remover_;
  std::mutex running_;  // one clone at a time; taken before state_->lock()
};

}  // namespace hps
