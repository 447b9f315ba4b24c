// Compactor: when a table is rewritten, who waits for it, and a full run.
//
// Above it: store.h. Below it: compaction, commits, store_tables, file_remover. One compaction at a
// time, in the thread, in an append without one, or in RewriteAll. What the tables name stays under
// a bound: live rows' bytes / (1 - threshold) + four full segments a table, and a full segment is a
// quarter of the live rows (8 MiB at least, segment_bytes at most). Two segments below it the
// thread takes whatever gives most back, one below it an append waits until as much is free as it
// needs; the last is for the output, which for a moment lies beside its inputs. An erase may break
// the bound from the other side, and leave larger segments than the table would make now, whose
// output may be larger, too: then appends may not make it worse. If compaction fails (a full disk,
// damage), appends go through: an append that the disk can take is never refused or kept waiting
// for the sake of the bound, and one that it cannot take says so itself.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "ssd_store/commits.h"
#include "ssd_store/compaction.h"
#include "ssd_store/file_remover.h"
#include "ssd_store/store_tables.h"

namespace hps {

class Compactor {
 public:
  Compactor(const StoreOptions& options, StoreState* state, Commits* commits, StoreTables* tables,
            FileRemover* remover);

  // Starts the thread, if the options want one. kStore with EAGAIN: the system grants none.
  Status Start();
  // The end, in this order: tells waiting threads that the store is closed (with the store's lock);
  // gives up a compaction that runs; waits for the thread; keeps all others from running.
  void NotifyClosed();
  void Stop();
  void Join();
  std::unique_lock<std::mutex> Block() { return std::unique_lock<std::mutex>(running_); }
  // In a forked child, which lacks the thread.
  void Abandon() { (void)waiting_.release(); }

  // Rewrites whatever has anything dead in it, of tables [first, end), but for files numbered
  // `below` or higher. *damage is what could not be read. Without the store's lock.
  Status RewriteAll(size_t first, size_t end, uint64_t below, Status* damage);

  // With the store's lock.

  // So many bytes of a table were stored or became dead: work may be due.
  void NoteChange(size_t table, uint64_t bytes);
  void Wake();
  // Lets compaction make space for an append of so many bytes, which has the turn of mutations.
  // `lock` is the store's, let go meanwhile.
  void WaitForSpace(size_t table, uint64_t bytes, std::unique_lock<OwnedMutex>* lock);
  // What RewriteAll would do to tables [first, end).
  CompactionSpace SpaceOf(size_t first, size_t end) const;
  void AddFigures(StoreFigures* figures) const;

 private:
  enum class Runner { kThread, kAppend, kRewriteAll };
  // What threads wait on.
  struct Waiting {
    explicit Waiting(uint64_t bytes_per_second) : pace(bytes_per_second) {}
    CompactionPace pace;
    std::condition_variable_any progress;  // with state_->lock(): work is due, or done
    std::thread thread;
  };

  void Run();
  uint64_t SpaceBound(size_t table, uint64_t live_bytes, uint64_t num_spare) const;
  Status CompactOnce(size_t table, Runner runner, uint64_t below, bool* has_gained);
  // Erases the expired records of segments that are worth a rewriting for their sake.
  Status BuryExpired(size_t table, Runner runner, uint64_t below);
  Status BuryOf(size_t table, const Segment& segment, bool is_paced);
  Status Begin(size_t table, Runner runner, uint64_t below, bool* has_gained,
               std::unique_ptr<Compaction>* compaction);
  Status End(size_t table, std::unique_ptr<Compaction> compaction, Status status);

  const StoreOptions& options_;
  StoreState* const state_;
  Commits* const commits_;
  StoreTables* const tables_;
  FileRemover* const remover_;
  // On the heap: a forked child lacks those threads, so it cannot destroy it.
  std::unique_ptr<Waiting> waiting_;
  std::mutex running_;  // one compaction at a time; taken before state_->lock()
  // Guarded by state_->lock().
  bool is_due_ = false;
  bool is_failing_ = false;   // the last compaction failed; no append waits for the next
  uint64_t due_bytes_ = 0;    // stored since work was last due
  size_t waiting_table_ = 0;  // of the append that waits, or waited last
  uint64_t num_compactions_ = 0;
  uint64_t num_failures_ = 0;
  uint64_t num_append_waits_ = 0;
};

}  // namespace hps
