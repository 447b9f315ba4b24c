// Commits: the manifest of a store, the numbers of its files, and the files that a checkpoint's
// record needs synced before it.
//
// Above it: the parts that change the store (checkpointer, compactor), store_open. Below it:
// manifest, store_state. A failed sync is never retried: the kernel may have dropped the pages and
// call the next one a success. All methods need the store's lock.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ssd_store/manifest.h"
#include "ssd_store/store_state.h"
#include "ssd_store/table_store.h"

namespace hps {

class Commits {
 public:
  // `context` counts what is written.
  Commits(const StoreOptions& options, StoreContext* context, StoreState* state);

  // A writer's opening: makes the manifest of a new store, or goes on with the one that is there
  // after it has checked the tables that the options ask for.
  Status Create();
  Status Continue();
  // A reader's opening, which may come beside a living writer. `earlier`: of another reader of the
  // same store, whose lock is held; or nullptr.
  Status Read(const Commits* earlier);

  const ManifestState& manifest() const;
  std::string manifest_path() const;
  uint64_t manifest_number() const;

  // A file number never used before.
  Status TakeNumber(uint64_t* number);
  uint64_t next_number() const;
  // Makes one record count, after what it needs is synced.
  Status Commit(RecordKind kind, const std::string& payload);

  // The next checkpoint needs this file synced; at most a few wait for it.
  Status SyncLater(std::shared_ptr<File> file);
  void SyncWithNext(std::shared_ptr<File> file);  // the same, however many wait
  void ForgetUnsynced(const std::string& path);
  void ForgetUnsynced();

 private:
  Status SyncPending();
  Status SyncBefore(File* current);

  FileSystem* const files_;
  const StoreOptions& options_;
  StoreContext* const context_;
  StoreState* const state_;
  // Guarded by state_->lock(), as the rest.
  Manifest manifest_;
  uint64_t next_number_ = 1;
  std::vector<std::shared_ptr<File>> unsynced_;
};

}  // namespace hps
