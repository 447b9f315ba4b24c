// The links or copies of a clone, their check, and its manifest.
//
// Above it: cloner.h. Below it: manifest, verify.
#include "ssd_store/cloner.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "files/held_folder.h"
#include "ssd_store/folder_lock.h"
#include "ssd_store/verify.h"

namespace hps {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{8} << 20;

Status CopyFile(FileSystem* files, const std::string& source, const std::string& target,
                uint64_t* num_bytes) {
  std::unique_ptr<File> from;
  std::unique_ptr<File> to;
  HPS_RETURN_IF_ERROR(files->Open(source, OpenMode::kRead, &from));
  HPS_RETURN_IF_ERROR(files->Open(target, OpenMode::kCreateNew, &to));
  uint64_t size = 0;
  HPS_RETURN_IF_ERROR(from->Size(&size));
  if (size > 0) HPS_RETURN_IF_ERROR(to->Allocate(0, size));
  const std::unique_ptr<char[]> bytes(new char[std::min(size, kPieceBytes)]);
  for (uint64_t offset = 0; offset < size; offset += kPieceBytes) {
    const uint64_t count = std::min(kPieceBytes, size - offset);
    HPS_RETURN_IF_ERROR(from->Read(offset, count, bytes.get()));
    HPS_RETURN_IF_ERROR(to->Write(offset, bytes.get(), count));
  }
  *num_bytes += size;
  return to->SyncData();
}

// Only these say that the file system cannot link here; any other error would meet a copy too.
bool CannotLink(const Status& status) {
  const int error = status.os_error();
  return error == EXDEV || error == EOPNOTSUPP || error == EPERM || error == EMLINK ||
         error == ENOSYS;
}

std::vector<std::string> FileNames(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const TableCheckpoint& table : checkpoint.tables) {
    for (const SegmentInfo& info : table.segments) {
      names.push_back(FileName(kSegmentPrefix, info.number));
    }
  }
  for (const Extra& extra : checkpoint.extras) {
    if (extra.file_number != 0) names.push_back(FileName(kExtraPrefix, extra.file_number));
  }
  return names;
}

// What every store's folder may have without holding anything.
bool IsFurniture(const std::string& name) { return name == kLockName || name == kPinFolder; }

Status CheckEmpty(FileSystem* files, const std::string& folder) {
  std::string name;
  HPS_RETURN_IF_ERROR(FindForeign(files, folder, {kLockName, kPinFolder}, &name));
  if (name.empty()) return Status::Ok();
  return Status(StatusCode::kConfig,
                folder + ": a clone needs a folder that is new or empty, and this one has '" +
                    name + "'; choose another one, or remove it if a clone was interrupted there");
}

Status WriteClone(FileSystem* files, const std::string& source, const std::string& target,
                  bool may_link, CloneSummary* summary, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string from = source + "/" + name;
    const std::string to = target + "/" + name;
    const Status linked = may_link ? files->Link(from, to) : Status::Ok();
    if (may_link && linked.ok()) {
      ++summary->files_linked;
      continue;
    }
    if (may_link && !CannotLink(linked)) return linked;
    HPS_RETURN_IF_ERROR(CopyFile(files, from, to, &summary->bytes_copied));
    ++summary->files_copied;
  }
  return Status::Ok();
}

}  // namespace

Status Cloner::Clone(const std::string& target, bool may_link, CloneSummary* summary) {
  HPS_RETURN_IF_ERROR(state_->CheckOwner());
  const std::lock_guard<std::mutex> one(running_);
  OpenRecord open;
  Checkpoint checkpoint;
  HPS_RETURN_IF_ERROR(HoldCheckpoint(&open, &checkpoint, summary));
  const Status made = Make(AbsolutePath(target), may_link, std::move(open), checkpoint, summary);
  LetGo();
  return made;
}

// Notes what is to be cloned, and keeps its files from removal until LetGo.
Status Cloner::HoldCheckpoint(OpenRecord* open, Checkpoint* checkpoint, CloneSummary* summary) {
  const std::lock_guard<OwnedMutex> lock(state_->lock());
  if (state_->is_closed()) return state_->CheckReadable();
  const Checkpoint* found = nullptr;
  HPS_RETURN_IF_ERROR(list_->Resolve(CheckpointName(), &found));
  if (found == nullptr) {
    return Status(StatusCode::kConfig, options_.path + ": there is no checkpoint to clone");
  }
  *open = commits_->manifest().open;
  *checkpoint = *found;
  summary->checkpoint = list_->Summarize(*found);
  remover_->KeepCloned(found->FileNumbers());
  return Status::Ok();
}

// The checkpoint may have been given up meanwhile: then its files go now.
void Cloner::LetGo() {
  const std::lock_guard<OwnedMutex> lock(state_->lock());
  remover_->KeepCloned({});
  if (state_->CheckWritable().ok()) remover_->TryToRemove();
}

Status Cloner::Make(const std::string& target, bool may_link, OpenRecord open,
                    const Checkpoint& checkpoint, CloneSummary* summary) const {
  HPS_RETURN_IF_ERROR(CreateFolders(files_, target));
  std::unique_ptr<File> target_lock;
  std::unique_ptr<FileSystem> both;  // holds the target, and what this store holds
  HPS_RETURN_IF_ERROR(files_->HoldFolder(target, &both));
  FileSystem* files = both == nullptr ? files_ : both.get();
  HPS_RETURN_IF_ERROR(CheckEmpty(files, target));
  HPS_RETURN_IF_ERROR(LockFolder(files, target, &target_lock));
  HPS_RETURN_IF_ERROR(CheckEmpty(files, target));  // again, now that nobody else can begin
  const uint64_t number = open.reserved_end++;
  open.next_checkpoint = checkpoint.id + 1;
  open.tables.clear();
  for (const TableCheckpoint& table : checkpoint.tables) open.tables.push_back(table.schema);
  Status status =
      WriteClone(files, options_.path, target, may_link, summary, FileNames(checkpoint));
  if (status.ok()) status = VerifyCheckpoint(files, target, checkpoint, open.store_id);
  if (status.code() == StatusCode::kCorruption) {
    // Most likely it is in the source; that name will still mean something when this call is over.
    const Status source = VerifyCheckpoint(files, options_.path, checkpoint, open.store_id);
    if (!source.ok()) status = source;
  }
  if (status.ok()) status = files->SyncFolder(ParentOf(target));
  if (status.ok()) status = Manifest(files, target).StartWith(number, open, checkpoint);
  if (status.ok()) return status;
  std::vector<std::string> names;
  (void)files->List(target, &names).ok();  // what cannot be removed makes the next clone refuse
  for (const std::string& name : names) {
    if (!IsFurniture(name)) (void)files->Unlink(target + "/" + name).ok();
  }
  return status;
}

}  // namespace hps
