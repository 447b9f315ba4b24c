// Two slots, each with its checksum; the one with the higher counter counts.
//
// Above it: log_mark.h. Below it: files/file_system and crc32c.
#include "update_log/log_mark.h"

#include <algorithm>

#include "common/check.h"
#include "files/crc32c.h"

namespace hps {
namespace {

constexpr uint64_t kSlotBytes = 112;
constexpr uint64_t kSlotStride = 512;  // a disk writes so much as a whole
constexpr uint64_t kMarkFileBytes = 2 * kSlotStride;

}  // namespace

LogPosition LogMark::Required(uint64_t boot_now, uint64_t after) const {
  const bool is_all_there = boot != 0 && boot == boot_now && !has_failed;
  const uint64_t number = is_all_there ? number_written : number_synced;
  if (number <= after) return {};
  return is_all_there ? written : synced;
}

Status LogMarkFile::Open(FileSystem* files, const std::string& folder,
                         std::unique_ptr<LogMarkFile>* mark_file) {
  std::unique_ptr<LogMarkFile> opened(new LogMarkFile(files, folder));
  std::string bytes;
  if (files->Exists(opened->path_)) {
    HPS_RETURN_IF_ERROR(ReadWholeFile(files, opened->path_, &bytes));
  }
  const std::string_view slots = bytes;
  for (uint64_t at = 0; at < slots.size() && at < kMarkFileBytes; at += kSlotStride) {
    (void)opened->Decode(slots.substr(at, kSlotBytes));  // one may be torn; the other counts then
  }
  if (opened->newest_version_ > kLogVersion) {
    return NewerVersion(opened->path_, opened->newest_version_, kLogVersion, kLogVersion);
  }
  *mark_file = std::move(opened);
  return Status::Ok();
}

Status LogMarkFile::Begin(const LogIdentity& identity) {
  identity_ = identity;
  if (has_mark()) return files_->Open(path_, OpenMode::kReadWrite, &file_);
  if (files_->Exists(path_)) HPS_RETURN_IF_ERROR(files_->Unlink(path_));
  HPS_RETURN_IF_ERROR(files_->Open(path_, OpenMode::kCreateNew, &file_));
  HPS_RETURN_IF_ERROR(file_->Allocate(0, kMarkFileBytes));
  const std::string zeros(kMarkFileBytes, '\0');
  HPS_RETURN_IF_ERROR(file_->Write(0, zeros.data(), zeros.size()));
  HPS_RETURN_IF_ERROR(Write({}));
  HPS_RETURN_IF_ERROR(Sync());
  return files_->SyncFolder(folder_);
}

Status LogMarkFile::Write(const LogMark& mark) {
  mark_ = mark;
  ++counter_;
  const std::string slot = Encode();
  return file_->Write(counter_ % 2 * kSlotStride, slot.data(), slot.size());
}

std::string LogMarkFile::Encode() const {
  Encoder out;
  out.PutRaw(kLogMarkMagic);
  out.Put(kLogVersion);
  out.Put(static_cast<uint32_t>(mark_.has_failed));
  out.Put(counter_);
  out.Put(identity_.store);
  out.Put(identity_.epoch);
  out.Put(mark_.boot);
  out.Put(mark_.written.first);
  out.Put(mark_.written.offset);
  out.Put(mark_.last_record);
  out.Put(mark_.number_written);
  out.Put(mark_.synced.first);
  out.Put(mark_.synced.offset);
  out.Put(mark_.number_synced);
  out.Put(uint32_t{0});
  out.Put(Crc32c(0, out.bytes().data(), out.bytes().size()));
  HPS_CHECK(out.bytes().size() == kSlotBytes);
  return std::move(out.bytes());
}

bool LogMarkFile::Decode(std::string_view slot) {
  if (slot.size() != kSlotBytes) return false;
  Decoder in(slot);
  const std::string_view magic = in.GetRaw(kLogMarkMagic.size());
  const uint32_t version = in.Get<uint32_t>();
  LogMark mark;
  mark.has_failed = in.Get<uint32_t>() != 0;
  const uint64_t counter = in.Get<uint64_t>();
  LogIdentity identity;
  identity.store = in.Get<uint64_t>();
  identity.epoch = in.Get<uint64_t>();
  mark.boot = in.Get<uint64_t>();
  mark.written.first = in.Get<uint64_t>();
  mark.written.offset = in.Get<uint64_t>();
  mark.last_record = in.Get<uint64_t>();
  mark.number_written = in.Get<uint64_t>();
  mark.synced.first = in.Get<uint64_t>();
  mark.synced.offset = in.Get<uint64_t>();
  mark.number_synced = in.Get<uint64_t>();
  (void)in.Get<uint32_t>();
  if (Crc32c(0, slot.data(), kSlotBytes - 4) != in.Get<uint32_t>()) return false;
  if (magic != kLogMarkMagic) return false;
  newest_version_ = std::max(newest_version_, version);
  if (version != kLogVersion || counter <= counter_) return false;
  identity_ = identity;
  mark_ = mark;
  counter_ = counter;
  return true;
}

}  // namespace hps
