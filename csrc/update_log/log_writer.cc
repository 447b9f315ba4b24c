// Spare, current, full and used files.
//
// Above it: log_writer.h. Below it: log_mark, files/file_system.
#include "update_log/log_writer.h"

#include <algorithm>

#include "common/check.h"

namespace hps {

LogWriter::LogWriter(FileSystem* files, std::string folder, std::unique_ptr<LogMarkFile> mark_file,
                     uint64_t end_before)
    : files_(files),
      folder_(std::move(folder)),
      mark_file_(std::move(mark_file)),
      mark_(mark_file_->mark()),
      current_end_(end_before) {}

Status LogWriter::ReserveSpare(uint64_t least, uint64_t ample, uint64_t* bytes) {
  if (spare_ == nullptr) HPS_RETURN_IF_ERROR(OpenSpare());
  Status reserved;
  if (ample > spare_bytes_) {
    reserved = spare_->Allocate(spare_bytes_, ample - spare_bytes_);
    if (reserved.ok()) spare_bytes_ = ample;
  }
  *bytes = spare_bytes_;
  if (reserved.ok() || (spare_bytes_ > 0 && spare_bytes_ >= least)) return Status::Ok();
  const std::string path = spare_->path();
  spare_.reset();  // what was granted of it is for others
  (void)files_->Unlink(path).ok();
  return FreeUsed() ? ReserveSpare(least, ample, bytes) : reserved;
}

Status LogWriter::OpenSpare() {
  std::string used;
  {
    const std::lock_guard<std::mutex> lock(used_mutex_);
    if (!used_.empty()) {
      used = std::move(used_.back());  // the one whose pages were used last
      used_.pop_back();
    }
  }
  if (!used.empty()) {
    Status status = files_->Open(used, OpenMode::kReadWrite, &spare_);
    if (status.ok()) status = spare_->Size(&spare_bytes_);
    if (!status.ok()) {
      spare_.reset();
      (void)files_->Unlink(used).ok();
    }
    return status;
  }
  const std::string path = folder_ + "/" + kLogSpareName;
  if (files_->Exists(path)) HPS_RETURN_IF_ERROR(files_->Unlink(path));
  HPS_RETURN_IF_ERROR(files_->Open(path, OpenMode::kCreateNew, &spare_));
  spare_bytes_ = 0;
  return Status::Ok();
}

Status LogWriter::Grow(uint64_t start, uint64_t end) {
  const Status grown = current_->Allocate(start, end - start);
  return grown.ok() || !FreeUsed() ? grown : current_->Allocate(start, end - start);
}

Status LogWriter::Start(uint64_t first) {
  HPS_CHECK(spare_ != nullptr);
  const std::string path = LogFilePath(folder_, first);
  if (current_ != nullptr) {
    HPS_RETURN_IF_ERROR(current_->Truncate(current_end_));  // gives the rest of its space back
    const std::lock_guard<std::mutex> lock(unsynced_mutex_);
    unsynced_.push_back({std::move(current_), first - 1});
  }
  const std::string header = EncodeLogFileHeader({mark_file_->identity(), first, current_end_});
  HPS_RETURN_IF_ERROR(spare_->Write(0, header.data(), header.size()));
  HPS_RETURN_IF_ERROR(files_->Rename(spare_->path(), path));
  has_new_names_ = true;
  spare_.reset();
  current_end_ = header.size();
  return files_->Open(path, OpenMode::kReadWrite, &current_);  // by the name that errors tell
}

Status LogWriter::Write(uint64_t offset, const void* bytes, uint64_t size) {
  current_end_ = offset + size;
  return current_->Write(offset, bytes, size);
}

Status LogWriter::NoteWritten(LogPosition end, uint64_t last_record, uint64_t number) {
  mark_.written = end;
  mark_.last_record = last_record;
  mark_.number_written = number;
  return mark_file_->Write(mark_);
}

Status LogWriter::Sync() {
  const Status synced = SyncFiles();
  if (synced.ok()) {
    mark_.synced = mark_.written;
    mark_.number_synced = mark_.number_written;
  } else {
    mark_.has_failed = true;
  }
  const Status marked = mark_file_->Write(mark_);
  return synced.ok() ? marked : synced;
}

Status LogWriter::SyncFiles() {
  std::vector<FullFile> full;
  {
    const std::lock_guard<std::mutex> lock(unsynced_mutex_);
    full = unsynced_;
  }
  for (const FullFile& file : full) HPS_RETURN_IF_ERROR(file.file->SyncData());
  if (!full.empty()) Forget(full.back().last);
  if (current_ != nullptr) HPS_RETURN_IF_ERROR(current_->SyncData());
  if (has_new_names_) HPS_RETURN_IF_ERROR(files_->SyncFolder(folder_));
  has_new_names_ = false;
  return Status::Ok();
}

void LogWriter::Forget(uint64_t number) {
  std::vector<FullFile> forgotten;  // closed without the lock
  const std::lock_guard<std::mutex> lock(unsynced_mutex_);
  while (!unsynced_.empty() && unsynced_.front().last <= number) {
    forgotten.push_back(std::move(unsynced_.front()));
    unsynced_.erase(unsynced_.begin());
  }
}

Status LogWriter::Retire(uint64_t first) {
  std::string used = UsedFilePath(folder_, first);
  HPS_RETURN_IF_ERROR(files_->Rename(LogFilePath(folder_, first), used));
  const std::lock_guard<std::mutex> lock(used_mutex_);
  used_.push_back(std::move(used));
  return Status::Ok();
}

Status LogWriter::KeepUsed(uint64_t most) {
  std::vector<std::string> needless;  // removed without the lock
  {
    const std::lock_guard<std::mutex> lock(used_mutex_);
    const auto count = static_cast<ptrdiff_t>(used_.size() - std::min(most, used_.size()));
    needless.assign(used_.begin(), used_.begin() + count);
    used_.erase(used_.begin(), used_.begin() + count);
  }
  Status status;
  for (const std::string& path : needless) {
    const Status removed = files_->Unlink(path);
    if (status.ok()) status = removed;  // an opening removes what stays
  }
  return status;
}

// True if there were some, and now there is more space.
bool LogWriter::FreeUsed() {
  {
    const std::lock_guard<std::mutex> lock(used_mutex_);
    if (used_.empty()) return false;
  }
  return KeepUsed(0).ok();
}

Status LogWriter::Close() {
  if (current_ != nullptr) HPS_RETURN_IF_ERROR(current_->Truncate(current_end_));
  if (spare_ != nullptr) {
    const std::string path = spare_->path();
    spare_.reset();
    HPS_RETURN_IF_ERROR(files_->Unlink(path));
  }
  HPS_RETURN_IF_ERROR(KeepUsed(0));
  return mark_file_->Sync();
}

}  // namespace hps
