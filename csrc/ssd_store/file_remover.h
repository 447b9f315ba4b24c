// FileRemover: removes the files of a store's folder that nobody needs any more.
//
// Above it: checkpointer, compactor, cloner, store.h. Below it: commits, store_tables, reader_pin.
// The name of a file goes at once; its blocks and its pages in memory go when the last one closes
// it, which takes a quarter of a millisecond a MiB, in a thread of its own. All methods but Abandon
// need the store's lock.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ssd_store/commits.h"
#include "ssd_store/store_tables.h"

namespace hps {

class FileRemover {
 public:
  FileRemover(const StoreOptions& options, StoreState* state, const Commits* commits,
              StoreTables* tables);
  ~FileRemover();

  // Removes everything in the folder that bears a store's name and that no kept checkpoint, no
  // table, no living reader and no running call needs. `holders` names the readers.
  Status Remove(std::vector<std::string>* holders);
  // The same where an error is of no weight: what stays is removed next time.
  void TryToRemove();

  // A file that the running compaction writes; 0: none.
  void KeepOutput(uint64_t number);
  // Files that a running clone needs.
  void KeepCloned(std::vector<uint64_t> numbers);

  // Until the space of what was removed is free.
  void AwaitClosing();
  // In a forked child, which lacks the thread.
  void Abandon() { (void)closer_.release(); }

 private:
  void CloseLater(std::vector<std::unique_ptr<File>> files);

  FileSystem* const files_;
  const StoreOptions& options_;
  StoreState* const state_;
  const Commits* const commits_;
  StoreTables* const tables_;
  // Guarded by state_->lock().
  uint64_t output_number_ = 0;
  std::vector<uint64_t> cloned_;
  std::unique_ptr<std::thread> closer_;
};

}  // namespace hps
