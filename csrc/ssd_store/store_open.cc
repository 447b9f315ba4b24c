// Opening a store: the folder, the lock or the pin, the manifest, and the load of a checkpoint.
//
// Above it: store.h. Below it: folder_lock, commits, reader_pin, store_tables.
#include <cerrno>
#include <mutex>
#include <utility>

#include "files/held_folder.h"
#include "ssd_store/folder_lock.h"
#include "ssd_store/store.h"

namespace hps {

Status SsdStore::Open(FileSystem* files, const StoreOptions& options,
                      std::unique_ptr<SsdStore>* store) {
  StoreOptions absolute = options;  // the working directory may change
  absolute.path = AbsolutePath(options.path);
  if (!options.read_only) HPS_RETURN_IF_ERROR(CreateFolders(files, absolute.path));
  std::unique_ptr<FileSystem> held;
  const Status holds = files->HoldFolder(absolute.path, &held);
  if (holds.os_error() == ENOENT || holds.os_error() == ENOTDIR) {
    return Status(StatusCode::kStore, absolute.path + ": there is no store here", ENOENT);
  }
  HPS_RETURN_IF_ERROR(holds);
  std::unique_ptr<SsdStore> opened(new SsdStore(files, std::move(held), absolute));
  HPS_RETURN_IF_ERROR(options.read_only ? opened->OpenReader() : opened->OpenWriter());
  if (options.direct_io) {
    // Tried here, so that no fetch is the first to be refused.
    std::unique_ptr<File> current;
    char first = 0;
    const std::string path = absolute.path + "/" + kCurrentName;
    HPS_RETURN_IF_ERROR(opened->files_->Open(path, OpenMode::kReadDirect, &current));
    HPS_RETURN_IF_ERROR(current->Read(0, 1, &first));
  }
  *store = std::move(opened);
  return Status::Ok();
}

Status SsdStore::OpenWriter() {
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  HPS_RETURN_IF_ERROR(CreateFolders(files_, options_.path + "/" + kPinFolder));
  HPS_RETURN_IF_ERROR(LockFolder(files_, options_.path, &lock_));
  const bool is_there = files_->Exists(options_.path + "/" + kCurrentName);
  HPS_RETURN_IF_ERROR(is_there ? commits_.Continue() : commits_.Create());
  seed_ = commits_.manifest().open.seed;
  const Checkpoint* const current = commits_.manifest().Current();
  tables_.Make(commits_.manifest().open, current);
  HPS_RETURN_IF_ERROR(tables_.Load(current));
  remover_.TryToRemove();
  return compactor_.Start();
}

Status SsdStore::OpenReader() {
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  if (!files_->Exists(options_.path + "/" + kCurrentName)) {
    return Status(StatusCode::kStore, options_.path + ": there is no store here", ENOENT);
  }
  HPS_RETURN_IF_ERROR(ReaderPin::Create(files_, options_.path, &pin_));
  {
    std::unique_lock<OwnedMutex> other;  // nobody waits for this store, which is not open yet
    if (options_.beside != nullptr) other = std::unique_lock(options_.beside->state_.lock());
    const bool is_reader = options_.beside != nullptr && options_.beside->options_.read_only;
    HPS_RETURN_IF_ERROR(commits_.Read(is_reader ? &options_.beside->commits_ : nullptr));
  }
  seed_ = commits_.manifest().open.seed;
  list_.SetOpened(commits_.manifest().current);
  const Checkpoint* found = nullptr;
  HPS_RETURN_IF_ERROR(list_.Resolve(options_.checkpoint, &found));
  const uint64_t id = found == nullptr ? 0 : found->id;
  list_.SetOpened(id);
  StoreTables* beside = options_.beside == nullptr ? nullptr : &options_.beside->tables_;
  tables_.Make(commits_.manifest().open, found);
  if (options_.has_rows) HPS_RETURN_IF_ERROR(tables_.Load(found, beside, options_.shares_index));
  if (pin_ == nullptr) return Status::Ok();
  return pin_->Narrow(id, found == nullptr ? std::vector<uint64_t>() : found->FileNumbers());
}

Status SsdStore::LoadRows(SsdStore* beside, bool shares_index) {
  HPS_RETURN_IF_ERROR(state_.CheckOwner());
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  HPS_CHECK(options_.read_only && !options_.has_rows);
  options_.has_rows = true;
  HPS_RETURN_IF_ERROR(state_.CheckReadable());
  const Checkpoint* found = nullptr;
  HPS_RETURN_IF_ERROR(list_.Resolve(CheckpointName(), &found));
  return tables_.Load(found, beside == nullptr ? nullptr : &beside->tables_, shares_index);
}

}  // namespace hps
