// The files, the seal and the record of a checkpoint.
//
// Above it: checkpointer.h. Below it: commits, store_tables, checkpoint_list, file_remover.
#include "ssd_store/checkpointer.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace hps {
namespace {

constexpr uint64_t kMostInlineBytes = 4096;

std::string ExtraPath(const std::string& folder, uint64_t number) {
  return folder + "/" + FileName(kExtraPrefix, number);
}

}  // namespace

Checkpointer::Checkpointer(const StoreOptions& options, StoreState* state, Commits* commits,
                           StoreTables* tables, const CheckpointList* list, FileRemover* remover)
    : files_(tables->context()->files),
      options_(options),
      state_(state),
      commits_(commits),
      tables_(tables),
      list_(list),
      remover_(remover) {}

Status Checkpointer::Make(const std::string& tag, const std::vector<NamedBlob>& extras,
                          CheckpointSummary* summary, const std::function<void()>& taken,
                          const std::vector<double>& promoted) {
  state_->AssertLocked();
  Checkpoint checkpoint;
  checkpoint.id = commits_->manifest().open.next_checkpoint;
  checkpoint.tag = tag;
  checkpoint.created =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  checkpoint.dropped = Superseded(tag, promoted);
  const Status prepared = Prepare(extras, &checkpoint);
  if (!prepared.ok()) {
    RemoveExtras(checkpoint);
    return prepared;
  }
  if (taken) taken();
  const Status committed = commits_->Commit(RecordKind::kCheckpoint, EncodeCheckpoint(checkpoint));
  if (!committed.ok()) {
    // After a failure that stops the store the record may be on disk, and need its files.
    if (!state_->has_stopped()) RemoveExtras(checkpoint);
    return committed;
  }
  *summary = list_->Summarize(checkpoint);
  is_changed_ = false;
  return Status::Ok();
}

// All of a checkpoint that comes before its record: files written, to be synced with it.
Status Checkpointer::Prepare(const std::vector<NamedBlob>& extras, Checkpoint* checkpoint) {
  HPS_RETURN_IF_ERROR(WriteExtras(extras, &checkpoint->extras));
  return tables_->Seal(checkpoint);
}

Status Checkpointer::WriteExtras(const std::vector<NamedBlob>& blobs, std::vector<Extra>* extras) {
  for (const NamedBlob& blob : blobs) {
    if (blob.name == kWrittenName) {
      return Status(StatusCode::kConfig, "the store keeps its own figures as '" + blob.name +
                                             "'; give the blob another name");
    }
    Extra extra;
    extra.name = blob.name;
    extra.length = blob.bytes.size();
    extra.digest = Xxh64(blob.bytes.data(), blob.bytes.size(), 0);
    if (blob.bytes.size() <= kMostInlineBytes) {
      extra.bytes = blob.bytes;
    } else {
      HPS_RETURN_IF_ERROR(commits_->TakeNumber(&extra.file_number));
      const std::string path = ExtraPath(options_.path, extra.file_number);
      std::unique_ptr<File> file;
      HPS_RETURN_IF_ERROR(files_->Open(path, OpenMode::kCreateNew, &file));
      Status status = file->Allocate(0, blob.bytes.size());
      if (status.ok()) status = file->Write(0, blob.bytes.data(), blob.bytes.size());
      if (!status.ok()) {
        (void)files_->Unlink(path).ok();  // else the next removal of leftovers takes it
        return status;
      }
      tables_->context()->bytes_written += blob.bytes.size();
      commits_->SyncWithNext(std::move(file));
    }
    extras->push_back(std::move(extra));
  }
  return Status::Ok();
}

// Of a checkpoint that was not made.
void Checkpointer::RemoveExtras(const Checkpoint& checkpoint) {
  for (const Extra& extra : checkpoint.extras) {
    if (extra.file_number == 0) continue;
    const std::string path = ExtraPath(options_.path, extra.file_number);
    commits_->ForgetUnsynced(path);
    (void)files_->Unlink(path).ok();
  }
}

std::vector<uint64_t> Checkpointer::Superseded(const std::string& tag,
                                               const std::vector<double>& promoted) const {
  std::vector<uint64_t> dropped;
  uint32_t untagged = tag.empty() ? 1 : 0;
  const auto& kept = commits_->manifest().checkpoints;
  for (auto it = kept.rbegin(); it != kept.rend(); ++it) {
    if (it->second.is_deleted) continue;  // goes by itself when another becomes current
    const auto same = std::find(promoted.begin(), promoted.end(), it->second.created);
    if (same != promoted.end()) continue;  // has a name of its own, and stays under that
    const bool is_replaced = !tag.empty() && it->second.tag == tag;
    const bool is_too_old = it->second.tag.empty() && ++untagged > options_.keep_last;
    if (is_replaced || is_too_old) dropped.push_back(it->first);
  }
  return dropped;
}

Status Checkpointer::Renew() {
  state_->AssertLocked();
  const Checkpoint* current = commits_->manifest().Current();
  if (is_changed_ || current == nullptr || current->is_deleted) return Status::Ok();
  Checkpoint renewed;
  renewed.id = commits_->manifest().open.next_checkpoint;
  // Of an older one that stays beside a newer of the same tag: it is not to hide that one.
  if (commits_->manifest().Find(current->tag) == current) renewed.tag = current->tag;
  renewed.created = current->created;
  renewed.extras = current->extras;
  renewed.dropped = {current->id};
  std::erase_if(renewed.extras, [](const Extra& extra) { return extra.name == kWrittenName; });
  HPS_RETURN_IF_ERROR(tables_->Seal(&renewed));
  const std::vector<uint64_t> before = current->FileNumbers();
  const std::vector<uint64_t> after = renewed.FileNumbers();
  if (before == after) return Status::Ok();
  HPS_RETURN_IF_ERROR(commits_->Commit(RecordKind::kCheckpoint, EncodeCheckpoint(renewed)));
  remover_->TryToRemove();
  return Status::Ok();
}

void Checkpointer::SetChanged(bool is_changed) {
  state_->AssertLocked();
  is_changed_ = is_changed;
}

}  // namespace hps
