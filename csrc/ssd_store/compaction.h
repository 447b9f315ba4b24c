// Compaction: the live rows of a few sealed segments, copied into one and put in their place.
//
// Above it: compactor. Below it: table_store (what is live, and the exchange of places),
// segment. Rows are copied without any lock; each record's checksum and key are checked on the way.
// The output is sealed and synced before the first of its records is named by the index. For one
// thread; the pace may be hurried or stopped from another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "ssd_store/table_store.h"

namespace hps {

// How fast compaction may go: so many bytes read and written in a second, unless someone waits.
class CompactionPace {
 public:
  explicit CompactionPace(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Waits as long as `bytes` are to take, or until somebody hurries or stops it.
  void Spend(uint64_t bytes);
  void Hurry(bool is_hurried);
  void Stop();
  bool is_stopped() const { return is_stopped_; }

 private:
  const uint64_t bytes_per_second_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_hurried_ = false;
  std::atomic<bool> is_stopped_{false};
};

class Compaction {
 public:
  // Of a plan that has begun, or is about to.
  Compaction(StoreContext* context, TableStore* table, CompactionPlan plan)
      : context_(context), table_(table), plan_(std::move(plan)) {}

  // Copies, seals, syncs, installs. After an error all rows are still where the index says, but
  // some may be in the output already. ECANCELED: a checkpoint was loaded, or the pace was stopped.
  // `is_paced` false: as fast as it goes, but `pace` may still be stopped.
  Status Run(CompactionPace* pace, bool is_paced);
  // The error was of the output's sync: what the disk holds is unknown.
  bool has_failed_sync() const { return has_failed_sync_; }
  // The segment whose records could not be read; 0: none.
  uint64_t damaged() const { return damaged_; }
  const CompactionPlan& plan() const { return plan_; }

 private:
  Status CopyInput(size_t input, CompactionPace* pace, bool is_paced);
  Status CopyPiece(File* file, size_t input, uint64_t first, const std::vector<uint64_t>& keys);
  Status CopyRun(const Segment& segment, uint64_t first, const uint64_t* keys, uint64_t count,
                 const char* records);
  void CarryTombstones(const std::vector<Tombstone>& tombstones);
  Status SealOutput();
  Status Install();

  StoreContext* context_;
  TableStore* table_;
  CompactionPlan plan_;
  std::unique_ptr<SegmentWriter> writer_;
  ThreadPool pool_{1};
  std::vector<RecordPiece> pieces_;
  std::vector<std::vector<uint64_t>> copied_;  // of each input, one bit a record
  std::vector<char> records_;                  // of one piece, as read
  std::vector<char> rows_;                     // of one piece, as written
  bool has_failed_sync_ = false;
  uint64_t damaged_ = 0;
};

}  // namespace hps
