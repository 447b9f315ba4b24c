// SsdStore's verbs over its parts.
//
// Above it: store.h. Below it: the parts. Opening is store_open.cc's.
#include "ssd_store/store.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>

namespace hps {

SsdStore::SsdStore(FileSystem* files, std::unique_ptr<FileSystem> held, const StoreOptions& options)
    : held_(std::move(held)),
      files_(held_ == nullptr ? files : held_.get()),
      options_(options),
      state_(files_, options_),
      tables_(files_, options_, &state_),
      commits_(options_, tables_.context(), &state_),
      remover_(options_, &state_, &commits_, &tables_),
      list_(files_, options_, &state_, &commits_),
      checkpointer_(options_, &state_, &commits_, &tables_, &list_, &remover_),
      compactor_(options_, &state_, &commits_, &tables_, &remover_),
      cloner_(files_, options_, &state_, &commits_, &list_, &remover_) {
  tables_.context()->take_number = [this](uint64_t* number) { return commits_.TakeNumber(number); };
  tables_.context()->sync_later = [this](std::shared_ptr<File> file) {
    return commits_.SyncLater(std::move(file));
  };
}

SsdStore::~SsdStore() { Close(); }

// Takes no lock: one of the parent's threads may have held it at the fork.
uint64_t SsdStore::Abandon() {
  state_.Abandon();
  compactor_.Abandon();
  remover_.Abandon();
  if (pin_ != nullptr) pin_->Abandon();
  pin_.reset();
  lock_.reset();
  files_->UnlockFolder();
  return 0;
}

uint64_t SsdStore::Close() {
  if (!state_.is_owner()) return Abandon();
  {
    const std::lock_guard<OwnedMutex> lock(state_.lock());
    state_.Close();
    compactor_.NotifyClosed();
  }
  compactor_.Stop();
  // Whatever still runs ends by itself now; the lock of the folder goes only when nobody writes.
  const std::lock_guard<TurnLock> turn(state_.mutations());
  compactor_.Join();
  const std::unique_lock<std::mutex> last = compactor_.Block();
  const std::unique_lock<std::mutex> clone = cloner_.Block();
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  remover_.AwaitClosing();
  const uint64_t snapshot_bytes =
      lock_ == nullptr ? 0 : tables_.SaveSnapshot(commits_.manifest().Current());
  commits_.ForgetUnsynced();
  lock_.reset();
  files_->UnlockFolder();
  pin_.reset();
  return snapshot_bytes;
}

Status SsdStore::Append(size_t table, const char* rows, uint64_t count) {
  HPS_RETURN_IF_ERROR(state_.CheckOwner());
  const std::lock_guard<TurnLock> turn(state_.mutations());
  std::unique_lock<OwnedMutex> lock(state_.lock());
  HPS_RETURN_IF_ERROR(state_.CheckWritable());
  remover_.AwaitClosing();  // or a full disk might refuse what there is space for
  TableStore& target = tables_[table];
  for (uint64_t first = 0; first < count;) {
    const uint64_t size = std::min(count - first, target.SegmentCapacity());
    compactor_.WaitForSpace(table, size * target.RowSpace(), &lock);
    HPS_RETURN_IF_ERROR(state_.CheckWritable());
    checkpointer_.SetChanged(true);
    const Status status = target.Append(rows + first * target.schema().row_bytes, size);
    // Stored, but not all in the index.
    const bool is_lame = status.os_error() == ENOMEM || status.os_error() == EOVERFLOW;
    if (!status.ok()) return is_lame ? state_.Settle(status) : state_.Explained(status);
    compactor_.NoteChange(table, size * target.RowSpace());
    first += size;
  }
  return Status::Ok();
}

Status SsdStore::Erase(size_t table, const uint64_t* keys, uint64_t count, uint8_t* found) {
  HPS_RETURN_IF_ERROR(state_.CheckOwner());
  const std::lock_guard<TurnLock> turn(state_.mutations());
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  HPS_RETURN_IF_ERROR(state_.CheckWritable());
  checkpointer_.SetChanged(true);
  compactor_.NoteChange(table, count * tables_[table].RowSpace());
  return state_.Explained(tables_[table].Erase(keys, count, found));
}

Status SsdStore::SetPeriod(uint32_t period, bool is_change, const std::vector<uint32_t>& horizons) {
  HPS_RETURN_IF_ERROR(state_.CheckOwner());
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  if (is_change) HPS_RETURN_IF_ERROR(state_.CheckWritable());
  if (is_change) checkpointer_.SetChanged(true);
  for (size_t table = 0; table < tables_.size(); ++table) {
    tables_[table].SetPeriod(period, table < horizons.size() ? horizons[table] : 0);
  }
  compactor_.Wake();
  return Status::Ok();
}

Status SsdStore::Compact(size_t first, size_t end) {
  HPS_RETURN_IF_ERROR(state_.CheckOwner());
  uint64_t below = 0;
  {
    const std::lock_guard<TurnLock> turn(state_.mutations());
    const std::lock_guard<OwnedMutex> lock(state_.lock());
    HPS_RETURN_IF_ERROR(state_.CheckCommittable());
    for (size_t table = first; table < end; ++table) {
      HPS_RETURN_IF_ERROR(tables_[table].Seal());
      tables_[table].TakeBack();
    }
    below = commits_.next_number();
  }
  Status damage;
  HPS_RETURN_IF_ERROR(compactor_.RewriteAll(first, end, below, &damage));
  const std::lock_guard<TurnLock> turn(state_.mutations());
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  HPS_RETURN_IF_ERROR(state_.CheckWritable());
  HPS_RETURN_IF_ERROR(checkpointer_.Renew());
  return damage;
}

CompactionSpace SsdStore::SpaceOfCompact(size_t first, size_t end) const {
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  return compactor_.SpaceOf(first, end);
}

Status SsdStore::MakeCheckpoint(const std::string& tag, const std::vector<NamedBlob>& extras,
                                CheckpointSummary* summary, const std::function<void()>& taken,
                                const std::vector<double>& promoted) {
  HPS_RETURN_IF_ERROR(state_.CheckOwner());
  const std::lock_guard<TurnLock> turn(state_.mutations());
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  HPS_RETURN_IF_ERROR(state_.CheckCommittable());
  HPS_RETURN_IF_ERROR(checkpointer_.Make(tag, extras, summary, taken, promoted));
  compactor_.Wake();
  remover_.TryToRemove();
  return Status::Ok();
}

Status SsdStore::Restore(const CheckpointName& name) {
  HPS_RETURN_IF_ERROR(state_.CheckOwner());
  const std::lock_guard<TurnLock> turn(state_.mutations());
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  HPS_RETURN_IF_ERROR(state_.CheckCommittable());
  const Checkpoint* target = nullptr;
  HPS_RETURN_IF_ERROR(list_.Resolve(name, &target));
  if (target != nullptr) {
    HPS_RETURN_IF_ERROR(tables_.Check(*target));
    HPS_RETURN_IF_ERROR(commits_.Commit(RecordKind::kRestore, EncodeId(target->id)));
  }
  commits_.ForgetUnsynced();
  const Status loaded = tables_.Load(commits_.manifest().Current());
  if (!loaded.ok()) return state_.Settle(loaded);
  checkpointer_.SetChanged(false);
  compactor_.Wake();
  remover_.TryToRemove();
  return Status::Ok();
}

Status SsdStore::DeleteCheckpoint(const CheckpointName& name, std::vector<std::string>* holders) {
  HPS_RETURN_IF_ERROR(state_.CheckOwner());
  const std::lock_guard<TurnLock> turn(state_.mutations());
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  HPS_RETURN_IF_ERROR(state_.CheckCommittable());
  const Checkpoint* target = nullptr;
  HPS_RETURN_IF_ERROR(list_.Resolve(name, &target));
  if (target == nullptr || target->is_deleted) {
    return Status(StatusCode::kConfig, options_.path + ": there is no checkpoint to delete");
  }
  HPS_RETURN_IF_ERROR(commits_.Commit(RecordKind::kDelete, EncodeId(target->id)));
  (void)remover_.Remove(holders).ok();
  remover_.AwaitClosing();
  return Status::Ok();
}

Status SsdStore::Verify(std::vector<Damage>* damages) const {
  HPS_RETURN_IF_ERROR(state_.CheckOwner());
  return VerifyHeld(files_, options_.path, damages);
}

StoreFigures SsdStore::Figures() const {
  const std::lock_guard<OwnedMutex> lock(state_.lock());
  std::map<uint64_t, uint64_t> live;
  std::map<uint64_t, uint64_t> kept;
  for (size_t table = 0; table < tables_.size(); ++table) {
    for (const auto& segment : tables_[table].Segments()) {
      live[segment->info.number] = segment->info.FileBytes(segment->row_bytes);
    }
  }
  for (const auto& [id, checkpoint] : commits_.manifest().checkpoints) {
    for (const TableCheckpoint& table : checkpoint.tables) {
      for (const SegmentInfo& info : table.segments) {
        kept[info.number] = info.FileBytes(table.schema.row_bytes);
      }
    }
    for (const Extra& extra : checkpoint.extras) {
      if (extra.file_number != 0) live[extra.file_number] = extra.length;
    }
  }
  StoreFigures figures;
  tables_.AddFigures(&figures);
  compactor_.AddFigures(&figures);
  for (const auto& [number, bytes] : live) figures.files_bytes += bytes;
  for (const auto& [number, bytes] : kept) {
    if (live.count(number) > 0) continue;
    figures.files_bytes += bytes;
    figures.checkpoint_only_bytes += bytes;
  }
  return figures;
}

}  // namespace hps
