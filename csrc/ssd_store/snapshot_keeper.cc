// The load of a snapshot, and its writing at a close.
//
// Above it: snapshot_keeper.h. Below it: index_snapshot, table_store.
#include "ssd_store/snapshot_keeper.h"

namespace hps {

bool SnapshotKeeper::Load(const Checkpoint& checkpoint, const Tables& tables, ThreadPool* pool,
                          std::vector<std::weak_ptr<Segment>>* retired) {
  state_->AssertLocked();
  const CheckpointIdentity wanted = CheckpointIdentity::Of(context_->store_id, checkpoint);
  number_ = checkpoint_ = num_bytes_ = 0;
  std::vector<std::string> names;
  if (!context_->files->List(context_->folder, &names).ok()) return false;
  for (const std::string& name : names) {
    uint64_t number = 0;
    if (!ParseFileName(name, kIndexPrefix, &number)) continue;
    std::unique_ptr<IndexSnapshot> snapshot;
    const Status opened =
        IndexSnapshot::Open(context_->files, context_->folder + "/" + name, &snapshot);
    if (!opened.ok() || snapshot->belongs_to() != wanted) continue;
    Status status;
    for (const std::unique_ptr<TableStore>& table : tables) {
      const TableCheckpoint* found = checkpoint.Find(table->schema().id);
      if (!status.ok()) continue;
      status = found == nullptr ? table->Load(nullptr, pool, retired)
                                : table->LoadSnapshot(*found, *snapshot, pool, retired);
    }
    if (!status.ok()) continue;
    context_->bytes_read += snapshot->num_bytes();
    number_ = number;
    checkpoint_ = checkpoint.id;
    num_bytes_ = snapshot->num_bytes();
    return true;
  }
  return false;
}

uint64_t SnapshotKeeper::Save(const Checkpoint* current, const Tables& tables) {
  const bool is_whole = !state_->has_stopped() && !state_->is_half_loaded();
  if (!is_whole || current == nullptr || checkpoint_ == current->id) return 0;
  if (!context_->files->CheckHeld().ok())
    return 0;  // nothing is made for a store that is elsewhere now
  if (tables.size() < current->tables.size()) return 0;  // an opening that has failed
  uint64_t num_rows = 0;
  std::vector<TableImage> images;
  for (const std::unique_ptr<TableStore>& table : tables) {
    const TableCheckpoint* found = current->Find(table->schema().id);
    if (!table->IsAt(found)) return 0;
    num_rows += table->num_rows();
    if (found != nullptr) images.push_back(table->Image());
  }
  uint64_t number = 0;
  if (num_rows < options_.snapshot_rows || !context_->take_number(&number).ok()) return 0;
  // An older one goes first, or there were two. A reader that has it open keeps it until it is
  // done.
  std::vector<std::string> names;
  if (!context_->files->List(context_->folder, &names).ok()) return 0;
  for (const std::string& name : names) {
    uint64_t old = 0;
    if (!ParseFileName(name, kIndexPrefix, &old)) continue;
    if (!context_->files->Unlink(context_->folder + "/" + name).ok()) return 0;
  }
  ThreadPool pool(options_.NumLoadThreads(current));
  uint64_t num_bytes = 0;
  const Status status = WriteIndexSnapshot(
      context_->files, context_->folder + "/" + FileName(kIndexPrefix, number),
      CheckpointIdentity::Of(context_->store_id, *current), images, &pool, &num_bytes);
  return status.ok() ? num_bytes : 0;
}

void SnapshotKeeper::AddNeeded(uint64_t checkpoint, std::set<uint64_t>* numbers) const {
  state_->AssertLocked();
  if (checkpoint_ == checkpoint) numbers->insert(number_);
}

uint64_t SnapshotKeeper::num_bytes() const {
  state_->AssertLocked();
  return num_bytes_;
}

}  // namespace hps
