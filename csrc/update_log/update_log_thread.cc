// What the log's thread does: it writes what has gathered, syncs it for those who wait, and keeps a
// file ready with its space reserved. It sleeps when there is nothing to do.
//
// Above it: update_log.h. Below it: log_writer.
#include <cerrno>

#include "update_log/update_log.h"

namespace hps {

void UpdateLog::Work() {
  Lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return HasWork() || is_stopping_; });
    if (!HasWork()) return;
    const Status status = DoNext(&lock);
    if (!status.ok()) {
      Fail(status);
      return;
    }
  }
}

bool UpdateLog::HasWork() const { return marked_ < end_ || WantsSync() || WantsSpace(); }

// A close syncs all, also what took a durable record back.
bool UpdateLog::WantsSync() const {
  return std::max(durable_, cut_) < SyncTarget() || synced_ < sync_wanted_ ||
         (is_stopping_ && synced_ < end_);
}

// One file ahead, once the present one is half full.
bool UpdateLog::WantsSpace() const {
  if (is_stopping_) return false;
  if (spare_wanted_ > spare_bytes_ || growth_wanted_ > file_end_) return true;
  const bool is_due = file_end_ > 0 && file_end_ - end_.offset < options_.file_bytes / 2;
  return is_due && spare_bytes_ == 0 && !is_start_pending_ && !is_refused_ahead_;
}

// A sync does not wait until a flood of records has ended, nor does an append that needs a file.
Status UpdateLog::DoNext(Lock* lock) {
  const bool has_written =
      logged_ >= SyncTarget() && !(marked_ < sync_wanted_) && !(is_stopping_ && marked_ < end_);
  if (WantsSync() && has_written) return Sync(lock);
  const bool is_awaited = spare_wanted_ + growth_wanted_ > 0;
  const bool must_write = marked_ < end_ && (is_start_pending_ || !is_awaited);
  if (must_write || !WantsSpace()) return WriteAll(lock);
  ReserveSpace(lock);
  return Status::Ok();
}

// The buffer's space is given back run by run; records count as logged when all are written and
// the mark says so.
Status UpdateLog::WriteAll(Lock* lock) {
  target_ = end_;
  target_record_ = last_record_;
  target_number_ = appended_;
  while (written_ < target_) HPS_RETURN_IF_ERROR(WriteRun(lock));
  const LogPosition target = target_;
  const uint64_t record = target_record_;
  const uint64_t number = target_number_;
  lock->unlock();
  Status status = writer_->NoteWritten(target, record, number);
  if (status.ok()) status = files_->CheckHeld();
  lock->lock();
  HPS_RETURN_IF_ERROR(status);
  marked_ = target;
  logged_ = target_number_;
  changed_.notify_all();
  return Status::Ok();
}

Status UpdateLog::WriteRun(Lock* lock) {
  const LogBuffer::Run run = buffer_.NextRun();
  lock->unlock();
  Status status;
  if (run.starts_file) {
    status = files_->CheckHeld();
    if (status.ok()) status = writer_->Start(run.place.first);
  }
  if (status.ok()) status = writer_->Write(run.place.offset, run.bytes, run.size);
  lock->lock();
  HPS_RETURN_IF_ERROR(status);
  if (run.starts_file) {
    is_start_pending_ = false;
    const uint64_t first = run.place.first;
    // An opening may have left a file of that name, with no record; it has been replaced.
    if (!names_.empty() && names_.back().first == first) names_.pop_back();
    names_.push_back({LogFilePath(options_.folder, first), first, 0, 0});
    ++num_begun_;
  }
  buffer_.Finish(run);
  written_ = {run.place.first, run.place.offset + run.size};
  changed_.notify_all();
  return Status::Ok();
}

Status UpdateLog::Sync(Lock* lock) {
  sync_number_ = logged_;
  const LogPosition end = marked_;
  lock->unlock();
  Status status = writer_->Sync();
  if (status.ok()) status = files_->CheckHeld();
  lock->lock();
  HPS_RETURN_IF_ERROR(status);
  synced_ = end;
  durable_ = sync_number_;
  changed_.notify_all();
  return Status::Ok();
}

// A refusal is the answer to the append that waits, and harms nothing.
void UpdateLog::ReserveSpace(Lock* lock) {
  const bool grows = growth_wanted_ > file_end_;
  const bool is_awaited = grows || spare_wanted_ > 0;
  const uint64_t end = file_end_;
  const uint64_t least = grows ? growth_wanted_ : spare_wanted_;
  uint64_t bytes = least;
  lock->unlock();
  const Status status =
      grows ? writer_->Grow(end, least)
            : writer_->ReserveSpare(least, std::max(least, options_.file_bytes), &bytes);
  lock->lock();
  if (grows) {
    if (status.ok()) file_end_ = bytes;
  } else {
    spare_bytes_ = status.ok() ? bytes : 0;
    is_refused_ahead_ = !status.ok();
  }
  if (!status.ok() && is_awaited) {
    spare_wanted_ = growth_wanted_ = 0;
    refusal_ = status;
  }
  changed_.notify_all();
}

// A write or a sync that failed is never tried again: the kernel may have dropped the pages and
// call the next one a success. Not its errno: of a full disk it would say that a later try may do.
void UpdateLog::Fail(const Status& status) {
  failure_ = Status(status.code(),
                    options_.folder + ": the update log stopped after an error (" +
                        WithoutAdvice(status.message()) +
                        "); open it again to go on from what it has on the disk",
                    EIO);
  changed_.notify_all();
}

}  // namespace hps
