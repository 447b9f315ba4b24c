// CheckpointList: which checkpoints a store has and what they carry beside rows.
//
// Above it: checkpointer, cloner, store.h. Below it: commits.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ssd_store/commits.h"

namespace hps {

class CheckpointList {
 public:
  CheckpointList(FileSystem* files, const StoreOptions& options, const StoreState* state,
                 const Commits* commits)
      : files_(files), options_(options), state_(state), commits_(commits) {}

  // Without the store's lock, which these take.
  std::vector<CheckpointSummary> All() const;
  Status Extras(const CheckpointName& name, std::vector<NamedBlob>* extras,
                const std::set<std::string>* wanted) const;
  Status ExtraBytes(const CheckpointName& name,
                    std::vector<std::pair<std::string, uint64_t>>* bytes) const;

  // With it.

  // Of no name the current checkpoint (of a reader: the one it opened); nullptr: it is empty.
  Status Resolve(const CheckpointName& name, const Checkpoint** checkpoint) const;
  CheckpointSummary Summarize(const Checkpoint& checkpoint) const;
  // The checkpoint that a reader has opened.
  void SetOpened(uint64_t id);

 private:
  Status NoSuchCheckpoint(const CheckpointName& name) const;

  FileSystem* const files_;
  const StoreOptions& options_;
  const StoreState* const state_;
  const Commits* const commits_;
  uint64_t opened_ = 0;  // guarded by state_->lock(); of a reader
};

}  // namespace hps
