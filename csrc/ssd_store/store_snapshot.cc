// SsdStore and the snapshot of its index: which one to open with, when to leave one.
//
// Above it: store.h. Below it: index_snapshot, table_store. At most one is kept, of the current
// cut; RemoveUnneeded takes all others. Every error here is of no weight: the footers hold the
// same.
#include "ssd_store/store.h"

namespace hps {

bool SsdStore::LoadSnapshot(const Checkpoint& cut, ThreadPool* pool) {
  const SnapshotCut wanted = SnapshotCut::Of(manifest_.state().open.store_id, cut);
  snapshot_number_ = snapshot_cut_ = snapshot_bytes_ = 0;
  std::vector<std::string> names;
  if (!files_->List(options_.path, &names).ok()) return false;
  for (const std::string& name : names) {
    uint64_t number = 0;
    if (!ParseFileName(name, kIndexPrefix, &number)) continue;
    std::unique_ptr<IndexSnapshot> snapshot;
    const Status opened = IndexSnapshot::Open(files_, options_.path + "/" + name, &snapshot);
    if (!opened.ok() || snapshot->cut() != wanted) continue;
    Status status;
    for (const std::unique_ptr<TableStore>& table : tables_) {
      const TableCut* found = cut.Find(table->schema().id);
      if (!status.ok()) continue;
      status = found == nullptr ? table->Load(nullptr, pool, &retired_)
                                : table->LoadSnapshot(*found, *snapshot, pool, &retired_);
    }
    if (!status.ok()) continue;
    context_.bytes_read += snapshot->num_bytes();
    snapshot_number_ = number;
    snapshot_cut_ = cut.id;
    snapshot_bytes_ = snapshot->num_bytes();
    return true;
  }
  return false;
}

uint64_t SsdStore::SaveSnapshot() {
  const Checkpoint* cut = manifest_.state().Current();
  const bool is_whole = lock_ != nullptr && failure_.empty() && !is_half_loaded_;
  if (!is_whole || cut == nullptr || snapshot_cut_ == cut->id) return 0;
  if (!files_->CheckHeld().ok()) return 0;  // nothing is made for a store that is elsewhere now
  if (tables_.size() < cut->tables.size()) return 0;  // an opening that has failed
  uint64_t num_rows = 0;
  std::vector<TableImage> images;
  for (const std::unique_ptr<TableStore>& table : tables_) {
    const TableCut* found = cut->Find(table->schema().id);
    if (!table->IsAt(found)) return 0;
    num_rows += table->num_rows();
    if (found != nullptr) images.push_back(table->Image());
  }
  uint64_t number = 0;
  if (num_rows < options_.snapshot_rows || !TakeNumber(&number).ok()) return 0;
  // An older one goes first, or there were two. A reader that has it open keeps it until it is
  // done.
  std::vector<std::string> names;
  if (!files_->List(options_.path, &names).ok()) return 0;
  for (const std::string& name : names) {
    uint64_t old = 0;
    if (!ParseFileName(name, kIndexPrefix, &old)) continue;
    if (!files_->Unlink(options_.path + "/" + name).ok()) return 0;
  }
  ThreadPool pool(NumLoadThreads(cut));
  uint64_t num_bytes = 0;
  const Status status = WriteIndexSnapshot(
      files_, options_.path + "/" + FileName(kIndexPrefix, number),
      SnapshotCut::Of(manifest_.state().open.store_id, *cut), images, &pool, &num_bytes);
  return status.ok() ? num_bytes : 0;
}

}  // namespace hps
