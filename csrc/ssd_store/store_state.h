// StoreState: the two locks that the parts of a store share, and whether the store may still be
// read, changed and committed.
//
// Above it: every part of the store. Below it: file_system, owned_mutex, turn_lock. After a failed
// sync nobody knows what is on disk, so the store stops: it refuses every later mutation and says
// why; what was acknowledged before stays. Lock order: mutations(), then a clone's or a
// compaction's own mutex, then lock(). Methods assert the lock that they need.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/owned_mutex.h"
#include "common/turn_lock.h"
#include "files/file_system.h"
#include "ssd_store/store_options.h"

namespace hps {

class StoreState {
 public:
  StoreState(FileSystem* files, const StoreOptions& options);

  // One mutation after the other; held also while a mutation waits for space.
  TurnLock& mutations() const { return *mutations_; }
  // Guards the fields of the parts and the tables' contents.
  OwnedMutex& lock() const { return lock_; }
  void AssertLocked() const { lock_.AssertHeld(); }

  // Without a lock.
  bool is_owner() const;
  // Of another process than this one: it was forked from the one that opened the store.
  Status CheckOwner() const;
  Status CheckHeld() const;
  Status CheckReadable() const;
  bool is_closed() const { return is_closed_; }
  bool is_half_loaded() const { return is_half_loaded_; }
  void SetHalfLoaded(bool is_half_loaded) { is_half_loaded_ = is_half_loaded; }
  void Close() { is_closed_ = true; }
  // In a forked child: closes it, and leaves what its parent's threads may wait on alone.
  void Abandon();

  // With the lock.
  Status CheckWritable() const;
  // The same, and the folder is at its path: before anything that ends in a commit.
  Status CheckCommittable();
  bool has_stopped() const;
  // Stops the store after an error that leaves the disk unknown; the error that says so.
  Status Settle(const Status& status);
  Status SettleIfBegun(const Status& status, bool is_begun);
  // In place of an error that comes of a folder that was removed, what has become of it.
  Status Explained(const Status& status);

 private:
  Status Stopped(StatusCode code, int os_error) const;

  FileSystem* const files_;
  const StoreOptions& options_;
  const int owner_;  // the process that opened it
  // On the heap: a forked child lacks the threads that wait on it, so it cannot destroy it.
  std::unique_ptr<TurnLock> mutations_;
  mutable OwnedMutex lock_;
  std::string failure_;  // guarded by lock_; why the store stopped, or empty
  std::atomic<bool> is_closed_{false};
  std::atomic<bool> is_half_loaded_{false};
};

}  // namespace hps
