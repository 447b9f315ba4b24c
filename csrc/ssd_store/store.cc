// SsdStore's verbs: append, erase, checkpoint, restore, and the removal of files nobody needs.
//
// Above it: store.h. Below it: table_store, manifest. Opening is store_open.cc's, compaction
// store_compact.cc's.
#include "ssd_store/store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <set>
#include <system_error>

namespace hps {
namespace {

constexpr uint64_t kMostInlineBytes = 4096;
constexpr size_t kMostUnsynced = 16;
constexpr size_t kMostSyncs = 4;       // at once
constexpr uint64_t kCommitBytes = 52;  // what a record in the manifest and CURRENT take besides
constexpr size_t kMostOpenFiles = 256;

std::string ExtraPath(const std::string& folder, uint64_t number) {
  return folder + "/" + FileName(kExtraPrefix, number);
}

// What has been written since the store was made; a checkpoint carries it.
Extra WrittenExtra(const StoreContext& context) {
  Encoder out;
  out.Put(context.bytes_appended.load());
  out.Put(context.bytes_compacted.load());
  out.Put(context.bytes_overhead.load());
  Extra extra;
  extra.name = kWrittenName;
  extra.bytes = out.bytes();
  extra.length = extra.bytes.size();
  extra.digest = Xxh64(extra.bytes.data(), extra.bytes.size(), 0);
  return extra;
}

}  // namespace

SsdStore::SsdStore(FileSystem* files, std::unique_ptr<FileSystem> held, const StoreOptions& options)
    : held_(std::move(held)),
      files_(held_ == nullptr ? files : held_.get()),
      options_(options),
      cache_(files_, kMostOpenFiles,
             options.direct_io ? OpenMode::kReadDirect : OpenMode::kReadScattered),
      manifest_(files_, options.path),
      owner_(getpid()),
      waiting_(std::make_unique<Waiting>(options.compaction_bytes_per_second)) {
  context_.files = files_;
  context_.folder = options.path;
  context_.segment_bytes = options.segment_bytes;
  context_.num_threads = NumThreads();
  context_.most_places = options.most_places;
  context_.cache = &cache_;
  context_.take_number = [this](uint64_t* number) { return TakeNumber(number); };
  context_.sync_later = [this](std::shared_ptr<File> file) {
    unsynced_.push_back(std::move(file));
    return unsynced_.size() < kMostUnsynced ? Status::Ok() : SyncPending();
  };
}

SsdStore::~SsdStore() { Close(); }

// Before any lock: one of the parent's threads may have held it at the fork.
Status SsdStore::CheckOwner() const {
  return getpid() == owner_ ? Status::Ok() : ForkedError(options_.path, owner_);
}

Status SsdStore::CheckHeld() const {
  HPS_RETURN_IF_ERROR(CheckOwner());
  return files_->CheckHeld();
}

Status SsdStore::CheckReadable() const {
  HPS_RETURN_IF_ERROR(CheckOwner());
  if (is_closed_) {
    return Status(StatusCode::kStore, options_.path + ": the store has been closed", EBADF);
  }
  if (!options_.has_rows) {
    return Status(StatusCode::kStore, options_.path + ": the store was opened without its rows");
  }
  if (is_half_loaded_) {
    return Status(StatusCode::kStore,
                  options_.path + ": the checkpoint could not be loaded; open the store again",
                  EIO);
  }
  return Status::Ok();
}

// Takes no lock: one of the parent's threads may have held it at the fork.
uint64_t SsdStore::Abandon() {
  is_closed_ = true;
  (void)waiting_.release();
  if (pin_ != nullptr) pin_->Abandon();
  pin_.reset();
  lock_.reset();
  files_->UnlockFolder();
  return 0;
}

uint64_t SsdStore::Close() {
  if (getpid() != owner_) return Abandon();
  {
    const std::lock_guard<std::mutex> lock(writer_);
    is_closed_ = true;
    progress_.notify_all();
  }
  pace_.Stop();
  // Whatever still runs ends by itself now; the lock of the folder goes only when nobody writes.
  const std::lock_guard<TurnLock> turn(mutations_);
  if (compactor_.joinable()) compactor_.join();
  AwaitClosing();
  const std::lock_guard<std::mutex> last(compaction_);
  const std::lock_guard<std::mutex> clone(cloning_);
  const std::lock_guard<std::mutex> lock(writer_);
  const uint64_t snapshot_bytes = SaveSnapshot();
  unsynced_.clear();
  lock_.reset();
  files_->UnlockFolder();
  pin_.reset();
  return snapshot_bytes;
}

Status SsdStore::CheckWritable() const {
  HPS_RETURN_IF_ERROR(CheckReadable());
  if (options_.read_only) {
    return Status(StatusCode::kStore, options_.path + ": the store was opened read-only", EROFS);
  }
  return failure_.empty() ? Status::Ok() : Stopped(StatusCode::kStore, EIO);
}

Status SsdStore::Stopped(StatusCode code, int os_error) const {
  return Status(code,
                options_.path + ": the store stopped after an error (" + failure_ +
                    "); open it again to go on from its newest checkpoint",
                os_error);
}

Status SsdStore::Settle(const Status& status) {
  if (failure_.empty()) failure_ = WithoutAdvice(status.message());
  return Stopped(status.code(), status.os_error());
}

// What a store that is not at its path any more has done stays in the folder that it holds; it is
// the end of its writing too.
Status SsdStore::SettleIfBegun(const Status& status, bool is_begun) {
  if (is_begun) return Settle(status);
  if (status.os_error() != ESTALE) return status;
  return Settle(Status(status.code(), status.message() + "; nothing was committed", ESTALE));
}

Status SsdStore::CheckCommittable() {
  HPS_RETURN_IF_ERROR(CheckWritable());
  const Status held = files_->CheckHeld();
  return held.ok() ? held : SettleIfBegun(held, false);
}

Status SsdStore::Explained(const Status& status) {
  if (status.os_error() != ENOENT) return status;
  const Status held = files_->CheckHeld();
  return held.os_error() == ESTALE ? SettleIfBegun(held, false) : status;
}

// A failed sync is never retried: the kernel may have dropped the pages and call the next one a
// success.
Status SsdStore::SyncPending() {
  while (!unsynced_.empty()) {
    const Status status = unsynced_.back()->SyncData();
    if (!status.ok()) return Settle(status);
    unsynced_.pop_back();
  }
  return Status::Ok();
}

// Everything that a checkpoint's record stands on, at once: a system's syncs share most of their
// work. Only the new CURRENT may fail without harm, as it is thrown away then.
Status SsdStore::SyncBefore(File* current) {
  const size_t num_files = unsynced_.size();
  std::vector<Status> done(num_files + 2);
  const auto sync = [&](size_t number) {
    if (number < num_files) return unsynced_[number]->SyncData();
    return number == num_files ? files_->SyncFolder(options_.path) : current->SyncData();
  };
  ThreadPool pool(options_.num_threads == 1 ? 1
                                            : static_cast<int>(std::min(done.size(), kMostSyncs)));
  DealOut(&pool, done.size(), [&](size_t number, int) { done[number] = sync(number); });
  for (size_t number = 0; number <= num_files; ++number) {
    if (!done[number].ok()) return Settle(done[number]);
  }
  unsynced_.clear();
  return done.back();
}

Status SsdStore::CommitRecord(RecordKind kind, const std::string& payload) {
  bool is_begun = false;
  const auto sync = [&](File* current) {
    return kind == RecordKind::kCheckpoint ? SyncBefore(current) : current->SyncData();
  };
  const Status status = manifest_.Commit(kind, payload, sync, &is_begun);
  if (!status.ok()) return SettleIfBegun(status, is_begun);
  context_.CountOverhead(payload.size() + kCommitBytes);
  if (!manifest_.is_bloated()) return Status::Ok();
  uint64_t number = 0;
  // The record is durable already: without a number the log stays long until the next one.
  if (!TakeNumber(&number).ok()) return Status::Ok();
  const Status started = manifest_.Start(number, manifest_.state().open, &is_begun);
  return !started.ok() && is_begun ? Settle(started) : Status::Ok();
}

Status SsdStore::Append(size_t table, const char* rows, uint64_t count) {
  HPS_RETURN_IF_ERROR(CheckOwner());
  const std::lock_guard<TurnLock> turn(mutations_);
  std::unique_lock<std::mutex> lock(writer_);
  HPS_RETURN_IF_ERROR(CheckWritable());
  AwaitClosing();  // or a full disk might refuse what there is space for
  TableStore& target = *tables_[table];
  for (uint64_t first = 0; first < count;) {
    const uint64_t size = std::min(count - first, target.SegmentCapacity());
    WaitForSpace(table, size * target.RowSpace(), &lock);
    HPS_RETURN_IF_ERROR(CheckWritable());
    is_changed_ = true;
    const Status status = target.Append(rows + first * target.schema().row_bytes, size);
    // Stored, but not all in the index.
    const bool is_lame = status.os_error() == ENOMEM || status.os_error() == EOVERFLOW;
    if (!status.ok()) return is_lame ? Settle(status) : Explained(status);
    NoteChange(table, size * target.RowSpace());
    first += size;
  }
  return Status::Ok();
}

Status SsdStore::Erase(size_t table, const uint64_t* keys, uint64_t count, uint8_t* found) {
  HPS_RETURN_IF_ERROR(CheckOwner());
  const std::lock_guard<TurnLock> turn(mutations_);
  const std::lock_guard<std::mutex> lock(writer_);
  HPS_RETURN_IF_ERROR(CheckWritable());
  is_changed_ = true;
  NoteChange(table, count * tables_[table]->RowSpace());
  return Explained(tables_[table]->Erase(keys, count, found));
}

Status SsdStore::WriteExtras(const std::vector<NamedBlob>& blobs, std::vector<Extra>* extras) {
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
      HPS_RETURN_IF_ERROR(TakeNumber(&extra.file_number));
      const std::string path = ExtraPath(options_.path, extra.file_number);
      std::unique_ptr<File> file;
      HPS_RETURN_IF_ERROR(files_->Open(path, OpenMode::kCreateNew, &file));
      Status status = file->Allocate(0, blob.bytes.size());
      if (status.ok()) status = file->Write(0, blob.bytes.data(), blob.bytes.size());
      if (!status.ok()) {
        (void)files_->Unlink(path).ok();  // else the next removal of leftovers takes it
        return status;
      }
      context_.bytes_written += blob.bytes.size();
      unsynced_.push_back(std::move(file));
    }
    extras->push_back(std::move(extra));
  }
  return Status::Ok();
}

std::vector<uint64_t> SsdStore::Superseded(const std::string& tag) const {
  std::vector<uint64_t> dropped;
  uint32_t untagged = tag.empty() ? 1 : 0;
  const auto& kept = manifest_.state().checkpoints;
  for (auto it = kept.rbegin(); it != kept.rend(); ++it) {
    if (it->second.is_deleted) continue;  // goes by itself when another becomes current
    const bool is_replaced = !tag.empty() && it->second.tag == tag;
    const bool is_too_old = it->second.tag.empty() && ++untagged > options_.keep_last;
    if (is_replaced || is_too_old) dropped.push_back(it->first);
  }
  return dropped;
}

Status SsdStore::MakeCheckpoint(const std::string& tag, const std::vector<NamedBlob>& extras,
                                CheckpointSummary* summary, const std::function<void()>& taken) {
  HPS_RETURN_IF_ERROR(CheckOwner());
  const std::lock_guard<TurnLock> turn(mutations_);
  const std::lock_guard<std::mutex> lock(writer_);
  HPS_RETURN_IF_ERROR(CheckCommittable());
  Checkpoint checkpoint;
  checkpoint.id = manifest_.state().open.next_checkpoint;
  checkpoint.tag = tag;
  checkpoint.created =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  checkpoint.dropped = Superseded(tag);
  const Status prepared = PrepareCheckpoint(extras, &checkpoint);
  if (!prepared.ok()) {
    RemoveExtras(checkpoint);
    return prepared;
  }
  if (taken) taken();
  const Status committed = CommitRecord(RecordKind::kCheckpoint, EncodeCheckpoint(checkpoint));
  if (!committed.ok()) {
    // After a failure that stops the store the record may be on disk, and need its files.
    if (failure_.empty()) RemoveExtras(checkpoint);
    return committed;
  }
  *summary = Summarize(checkpoint);
  is_changed_ = false;
  WakeCompactor();
  std::vector<std::string> holders;
  (void)RemoveUnneeded(&holders).ok();  // what stays is removed next time
  return Status::Ok();
}

// All of a checkpoint that comes before its record: files written, to be synced with it.
Status SsdStore::PrepareCheckpoint(const std::vector<NamedBlob>& extras, Checkpoint* checkpoint) {
  HPS_RETURN_IF_ERROR(WriteExtras(extras, &checkpoint->extras));
  return SyncCut(checkpoint);
}

// Seals the tables, notes what they hold now, and makes all of it durable but the record itself.
Status SsdStore::SyncCut(Checkpoint* checkpoint) {
  for (const std::unique_ptr<TableStore>& table : tables_) {
    HPS_RETURN_IF_ERROR(table->Seal());
    table->DropDead(&retired_);
    checkpoint->tables.push_back(table->Cut());
  }
  checkpoint->extras.push_back(WrittenExtra(context_));
  return Status::Ok();
}

// Of a checkpoint that was not made. Open files would keep their space.
void SsdStore::RemoveExtras(const Checkpoint& checkpoint) {
  for (const Extra& extra : checkpoint.extras) {
    if (extra.file_number == 0) continue;
    const std::string path = ExtraPath(options_.path, extra.file_number);
    std::erase_if(unsynced_, [&](const auto& file) { return file->path() == path; });
    (void)files_->Unlink(path).ok();
  }
}

// Look-ups wait from before the first table changes until all have, so none ever sees a table that
// is empty because it is still to be filled. If one cannot be, that is known before they go on.
Status SsdStore::LoadCut(const Checkpoint* cut) {
  ++num_loads_;
  ThreadPool pool(NumLoadThreads(cut));
  std::vector<std::unique_lock<std::shared_mutex>> held;
  for (const std::unique_ptr<TableStore>& table : tables_) held.push_back(table->HoldContents());
  struct Outcome {
    ~Outcome() { *is_half_loaded = !is_whole; }
    std::atomic<bool>* is_half_loaded;
    bool is_whole = false;
  } outcome{&is_half_loaded_};
  if (cut == nullptr || !LoadSnapshot(*cut, &pool)) {
    for (const std::unique_ptr<TableStore>& table : tables_) {
      const TableCut* found = cut == nullptr ? nullptr : cut->Find(table->schema().id);
      HPS_RETURN_IF_ERROR(table->Load(found, &pool, &retired_));
    }
  }
  outcome.is_whole = true;
  return Status::Ok();
}

// Everything that LoadCut will look at, so that a damaged cut leaves the store where it is.
Status SsdStore::CheckCut(const Checkpoint& cut) {
  for (const TableCut& table : cut.tables) {
    for (const SegmentInfo& info : table.segments) {
      Segment segment;
      segment.path = options_.path + "/" + FileName(kSegmentPrefix, info.number);
      segment.row_bytes = table.schema.row_bytes;
      segment.info = info;
      std::shared_ptr<File> file;
      HPS_RETURN_IF_ERROR(cache_.Open(info.number, segment.path, &file));
      HPS_RETURN_IF_ERROR(CheckSegmentHeader(file.get(), segment, table.schema, context_.store_id));
      HPS_RETURN_IF_ERROR(ReadFooter(file.get(), segment, FooterVisitor()));
    }
  }
  return Status::Ok();
}

Status SsdStore::Restore(const CheckpointName& name) {
  HPS_RETURN_IF_ERROR(CheckOwner());
  const std::lock_guard<TurnLock> turn(mutations_);
  const std::lock_guard<std::mutex> lock(writer_);
  HPS_RETURN_IF_ERROR(CheckCommittable());
  const Checkpoint* target = nullptr;
  HPS_RETURN_IF_ERROR(Resolve(name, &target));
  if (target != nullptr) {
    HPS_RETURN_IF_ERROR(CheckCut(*target));
    HPS_RETURN_IF_ERROR(CommitRecord(RecordKind::kRestore, EncodeId(target->id)));
  }
  unsynced_.clear();
  const Status loaded = LoadCut(manifest_.state().Current());
  if (!loaded.ok()) return Settle(loaded);
  is_changed_ = false;
  WakeCompactor();
  std::vector<std::string> holders;
  (void)RemoveUnneeded(&holders).ok();
  return Status::Ok();
}

Status SsdStore::DeleteCheckpoint(const CheckpointName& name, std::vector<std::string>* holders) {
  HPS_RETURN_IF_ERROR(CheckOwner());
  const std::lock_guard<TurnLock> turn(mutations_);
  const std::lock_guard<std::mutex> lock(writer_);
  HPS_RETURN_IF_ERROR(CheckCommittable());
  const Checkpoint* target = nullptr;
  HPS_RETURN_IF_ERROR(Resolve(name, &target));
  if (target == nullptr || target->is_deleted) {
    return Status(StatusCode::kConfig, options_.path + ": there is no checkpoint to delete");
  }
  HPS_RETURN_IF_ERROR(CommitRecord(RecordKind::kDelete, EncodeId(target->id)));
  (void)RemoveUnneeded(holders).ok();
  AwaitClosing();
  return Status::Ok();
}

// Everything in the folder that bears a store's name and that no kept checkpoint, no table, no
// living reader and no running call needs. Leftovers of killed processes go the same way. An error
// is of no weight after a durable record: what stays is met again next time. A store that stopped
// removes nothing: the manifest on disk may be newer than the one that it knows.
Status SsdStore::RemoveUnneeded(std::vector<std::string>* holders) {
  if (!failure_.empty()) return Status::Ok();
  PinnedFiles pinned;
  HPS_RETURN_IF_ERROR(ReadPins(files_, options_.path, &pinned));
  *holders = pinned.holders;
  if (pinned.everything) return Status::Ok();
  std::set<uint64_t> needed = pinned.numbers;
  needed.insert(manifest_.number());
  if (snapshot_cut_ == manifest_.state().current) needed.insert(snapshot_number_);
  needed.insert(output_number_);
  needed.insert(cloned_.begin(), cloned_.end());
  for (const auto& [id, checkpoint] : manifest_.state().checkpoints) {
    for (const uint64_t number : checkpoint.FileNumbers()) needed.insert(number);
  }
  for (const std::unique_ptr<TableStore>& table : tables_) {
    for (const auto& segment : table->Segments()) needed.insert(segment->info.number);
  }
  std::erase_if(retired_, [](const std::weak_ptr<Segment>& segment) { return segment.expired(); });
  for (const std::weak_ptr<Segment>& retired : retired_) {
    if (const auto segment = retired.lock()) needed.insert(segment->info.number);
  }
  std::vector<std::string> names;
  HPS_RETURN_IF_ERROR(files_->List(options_.path, &names));
  std::vector<std::unique_ptr<File>> removed_files;
  Status first;
  for (const std::string& name : names) {
    uint64_t number = 0;
    const bool is_ours = ParseFileName(name, kSegmentPrefix, &number) ||
                         ParseFileName(name, kExtraPrefix, &number) ||
                         ParseFileName(name, kIndexPrefix, &number) ||
                         ParseFileName(name, kManifestPrefix, &number);
    if (!is_ours || needed.count(number) > 0) continue;
    cache_.Forget(number);
    const std::string path = options_.path + "/" + name;
    removed_files.push_back(files_->Hold(path));
    const Status removed = files_->Unlink(path);
    if (first.ok()) first = removed;
  }
  CloseLater(std::move(removed_files));
  return first;
}

// The name of a file goes at once; its blocks and its pages in memory go when the last one closes
// it, which takes a quarter of a millisecond a MiB.
void SsdStore::CloseLater(std::vector<std::unique_ptr<File>> files) {
  AwaitClosing();
  if (files.empty()) return;
  try {
    closer_ = std::thread([files = std::move(files)]() mutable { files.clear(); });
  } catch (const std::system_error&) {
    // The system grants no more threads: they have been closed here.
  }
}

void SsdStore::AwaitClosing() {
  if (closer_.joinable()) closer_.join();
}

}  // namespace hps
