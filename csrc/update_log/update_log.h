// UpdateLog: the write-ahead log of the service: numbered records in files, grouped by one thread.
//
// Above it: csrc/bindings/update_log.cc. Below it: log_buffer, log_writer, log_scan. A record is
// copied into a buffer with its checksum on the way; a thread writes all that has gathered, and
// syncs it once for all who wait for that. Space on the disk is reserved before a record is taken,
// so a full disk refuses it whole. Thread-safe; no lock that Append needs is held during I/O. It
// owns its thread and joins it. The folder must have no other writer. After an error in a write or
// a sync it takes nothing more until it is opened again; nor does it once the folder, or the LOCK
// beside it, is not at its path any more, which is looked at before anything counts as logged.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "update_log/log_buffer.h"
#include "update_log/log_reader.h"
#include "update_log/log_scan.h"
#include "update_log/log_writer.h"

namespace hps {

struct UpdateLogOptions {
  std::string folder;    // made if it is missing
  LogIdentity identity;  // files of the same store with another epoch are removed
  uint64_t after = 0;    // records up to it are in the checkpoint already
  uint64_t file_bytes = uint64_t{64} << 20;
  uint64_t buffer_bytes = uint64_t{64} << 20;
};

struct LogRecord {
  uint64_t number = 0;
  std::string payload;
};

// What a log holds, every frame read and checked, nothing changed; beside the process that writes
// it, too, though what that has cut meanwhile may look like damage. kCorruption: damage.
Status VerifyLog(FileSystem* files, const UpdateLogOptions& options, LogContents* contents);

class UpdateLog {
 public:
  // kCorruption: damage, but not a torn end, which is cut off.
  static Status Open(FileSystem* files, const UpdateLogOptions& options,
                     std::unique_ptr<UpdateLog>* log);
  ~UpdateLog();

  // The next records behind `after`: at most `max_bytes` of them, but at least one; none at the
  // end. Before the first Append only.
  Status Read(uint64_t max_bytes, std::vector<LogRecord>* records);
  // Adds a record whose payload is the parts one after the other. Waits while the buffer is full.
  // kStore with ENOSPC: nothing has happened, and later ones may succeed.
  Status Append(const std::vector<LogPart>& parts, uint64_t* number);
  // The newest record never was; the next one takes its number. Whatever of it was written is taken
  // back on the disk when this returns; after an error an opening may find it.
  Status TakeBack(uint64_t number);
  // Waits until records up to `number` are logged (durable): written to the system (the disk).
  Status Wait(uint64_t number, bool is_durable, double seconds, bool* is_covered);
  // Records up to `number` are in a durable checkpoint: files of nothing else are used again, as
  // many as were begun since the cut before this one; the others go.
  Status Cut(uint64_t number);
  // Files that wait to be used again go: somebody needs their space.
  Status FreeSpace();
  // Writes and syncs all; what the failed log did not is lost, and said. Again: no effect.
  Status Close();

  uint64_t appended() const;
  uint64_t logged() const;
  uint64_t durable() const;
  uint64_t num_bytes() const;                                // of records behind the last cut
  uint64_t dropped_bytes() const { return dropped_bytes_; }  // of a torn end, by Open

 private:
  using Lock = std::unique_lock<std::mutex>;

  UpdateLog(FileSystem* files, std::unique_ptr<FileSystem> held, const UpdateLogOptions& options);

  // kStore in a forked child; before any lock.
  Status CheckOwner() const;
  void Abandon();

  // Opening, in update_log_open.cc.
  Status GuardLock();
  Status Recover(std::unique_ptr<LogMarkFile>* mark_file);
  Status MakeDurable(const LogContents& contents, LogMark mark, LogMarkFile* mark_file);
  Status StartThread(std::unique_ptr<LogMarkFile> mark_file);

  Status FindNext();

  // Append's parts; with the lock.
  Status CheckOpen() const;
  Status MakeRoom(uint64_t bytes, bool* starts_file, Lock* lock);
  Status WaitForSpace(uint64_t bytes, uint64_t* wanted, const uint64_t* reserved, Lock* lock);
  void AddFrame(LogBuffer::Room room, uint64_t bytes);
  void LowerNumbers(uint64_t number);

  // The thread's parts, in update_log_thread.cc; with the lock, given back while the system works.
  void Work();
  bool HasWork() const;
  bool WantsSpace() const;
  bool WantsSync() const;
  // The newest record for which a sync is due.
  uint64_t SyncTarget() const { return std::min(durable_wanted_, appended_); }
  Status DoNext(Lock* lock);
  Status WriteAll(Lock* lock);
  Status WriteRun(Lock* lock);
  Status Sync(Lock* lock);
  void ReserveSpace(Lock* lock);
  void Fail(const Status& status);

  // The folder, whatever becomes of its path; first of all, so that it goes last.
  const std::unique_ptr<FileSystem> held_;
  FileSystem* const files_;
  const UpdateLogOptions options_;
  const int owner_;             // the process that opened it
  std::unique_ptr<File> lock_;  // LOCK of the store that the log is of, if it has one

  // Replay.
  std::vector<LogFile> old_files_;  // with records behind `after`
  size_t next_old_file_ = 0;
  std::unique_ptr<LogReader> reader_;
  bool has_next_ = false;
  uint64_t dropped_bytes_ = 0;

  // What threads wait on, on the heap: a forked child lacks those threads, so it cannot destroy it.
  struct Waiting {
    std::thread thread;
    std::condition_variable work;
    std::condition_variable changed;
  };
  std::unique_ptr<Waiting> waiting_ = std::make_unique<Waiting>();

  std::unique_ptr<LogWriter> writer_;
  std::thread& thread_ = waiting_->thread;
  std::mutex close_turn_;   // these three before mutex_, the first one first
  std::mutex append_turn_;  // one record is copied at a time
  std::mutex cut_turn_;

  mutable std::mutex mutex_;                              // of all below
  std::condition_variable& work_ = waiting_->work;        // the thread waits for it
  std::condition_variable& changed_ = waiting_->changed;  // all others do
  Status failure_;
  bool is_closed_ = false;    // nothing more is appended
  bool is_stopping_ = false;  // the thread goes when it has nothing left to do
  LogBuffer buffer_;
  LogSizes sizes_;
  std::vector<LogFile> names_;  // of files on the disk, oldest first
  uint64_t num_begun_ = 0;      // files since the last cut
  uint64_t most_used_ = 0;      // files to be used again that are kept

  // The newest record, and where the next one goes.
  uint64_t appended_ = 0;
  bool has_appended_ = false;
  uint64_t newest_bytes_ = 0;  // of its frame; 0: it cannot be taken back
  LogPosition end_;
  uint64_t last_record_ = 0;  // as LogMark has it
  uint64_t file_end_ = 0;     // so far space is reserved

  // How far the thread is. A record that is taken back lowers the numbers.
  LogPosition written_;  // the buffer's bytes are
  LogPosition marked_;   // the mark says so
  LogPosition target_;   // of the present write, and what the mark says then
  uint64_t target_record_ = 0;
  uint64_t target_number_ = 0;
  uint64_t logged_ = 0;
  LogPosition synced_;
  LogPosition sync_wanted_;   // by who has taken a record back
  uint64_t sync_number_ = 0;  // what the present sync makes durable
  uint64_t durable_ = 0;
  uint64_t durable_wanted_ = 0;
  uint64_t cut_ = 0;

  // The file that comes next, and what an append waits for.
  uint64_t spare_bytes_ = 0;       // reserved for it; 0: there is none
  uint64_t spare_wanted_ = 0;      // by an append, of that
  uint64_t growth_wanted_ = 0;     // by an append, of the present file
  Status refusal_;                 // its answer
  bool is_start_pending_ = false;  // it has records in the buffer, and no name yet
  bool is_refused_ahead_ = false;  // when nobody waited; the next one who does has it tried again
};

}  // namespace hps
