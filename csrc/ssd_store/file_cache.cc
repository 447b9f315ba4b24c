// FileCache: see file_cache.h.
//
// Above it: file_cache.h. Below it: file_system.
#include "ssd_store/file_cache.h"

#include <algorithm>

namespace hps {

Status FileCache::Open(uint64_t number, const std::string& path, std::shared_ptr<File>* file) {
  return OpenAs(mode_, number, path, file);
}

Status FileCache::OpenDirect(uint64_t number, const std::string& path,
                             std::shared_ptr<File>* file) {
  file->reset();
  if (mode_ == OpenMode::kReadDirect || is_refused_) return Status::Ok();
  Status opened = OpenAs(OpenMode::kReadDirect, number, path, file);
  if (opened.code() != StatusCode::kConfig) return opened;
  is_refused_ = true;
  return Status::Ok();
}

Status FileCache::OpenAs(OpenMode mode, uint64_t number, const std::string& path,
                         std::shared_ptr<File>* file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t slot = SlotOf(mode, number);
  const auto found = open_.find(slot);
  if (found != open_.end()) {
    found->second.used = ++clock_;
    *file = found->second.file;
    return Status::Ok();
  }
  std::unique_ptr<File> opened;
  HPS_RETURN_IF_ERROR(files_->Open(path, mode, &opened));
  if (open_.size() >= capacity_) {
    const auto oldest = std::min_element(
        open_.begin(), open_.end(),
        [](const auto& left, const auto& right) { return left.second.used < right.second.used; });
    open_.erase(oldest);
  }
  *file = std::move(opened);
  open_[slot] = Entry{*file, ++clock_};
  return Status::Ok();
}

void FileCache::Forget(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_.erase(2 * number);
  open_.erase(2 * number + 1);
}

}  // namespace hps
