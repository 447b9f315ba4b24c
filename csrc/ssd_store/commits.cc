// The manifest opened, file numbers taken, and the syncs of all that a record names. The record
// itself becomes durable in manifest.cc.
//
// Above it: commits.h. Below it: manifest, table_schemas.
#include "ssd_store/commits.h"

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "common/thread_pool.h"
#include "ssd_store/table_schemas.h"

namespace hps {
namespace {

constexpr uint64_t kReservedNumbers = uint64_t{1} << 20;  // file numbers taken at each open
constexpr int kMostReaderAttempts = 50;
constexpr size_t kMostUnsynced = 16;
constexpr size_t kMostSyncs = 4;       // at once
constexpr uint64_t kCommitBytes = 52;  // what a record in the manifest and CURRENT take besides

}  // namespace

Commits::Commits(const StoreOptions& options, StoreContext* context, StoreState* state)
    : files_(context->files),
      options_(options),
      context_(context),
      state_(state),
      manifest_(files_, options.path) {}

Status Commits::Create() {
  state_->AssertLocked();
  std::vector<std::string> names;
  HPS_RETURN_IF_ERROR(files_->List(options_.path, &names));
  uint64_t last = 0;
  for (const std::string& name : names) {
    uint64_t number = 0;
    if (ParseFileName(name, kSegmentPrefix, &number) ||
        ParseFileName(name, kExtraPrefix, &number)) {
      return Corruption(options_.path + "/" + kCurrentName, 0,
                        "the file is missing, but the store has " + name);
    }
    if (ParseFileName(name, kManifestPrefix, &number)) last = std::max(last, number);
  }
  OpenRecord open;
  std::random_device random;
  open.store_id = uint64_t{random()} << 32 | random();
  open.seed = options_.seed;
  next_number_ = last + 2;
  open.reserved_end = next_number_ + kReservedNumbers;
  AddSchemas(options_, &open);
  // The process that made the folder may have died before its name was durable. One that may not be
  // read was made by somebody else, and long ago.
  const Status named = files_->SyncFolder(ParentOf(options_.path));
  if (!named.ok() && named.os_error() != EACCES) return named;
  bool is_begun = false;
  return manifest_.Start(last + 1, open, &is_begun);
}

Status Commits::Continue() {
  state_->AssertLocked();
  HPS_RETURN_IF_ERROR(manifest_.Load(true));
  HPS_RETURN_IF_ERROR(CheckSchemas(options_, manifest_.state().open));
  OpenRecord open = manifest_.state().open;
  next_number_ = open.reserved_end;
  open.reserved_end = next_number_ + kReservedNumbers;
  AddSchemas(options_, &open);
  return Commit(RecordKind::kOpen, EncodeOpen(open));
}

// A writer may replace the manifest between the reading of CURRENT and of the file that it names.
Status Commits::Read(const Commits* earlier) {
  state_->AssertLocked();
  Status loaded;
  for (int attempt = 0; attempt < kMostReaderAttempts; ++attempt) {
    loaded = manifest_.Load(false, earlier == nullptr ? nullptr : &earlier->manifest_);
    if (loaded.os_error() != ENOENT) break;
  }
  HPS_RETURN_IF_ERROR(loaded);
  return CheckSchemas(options_, manifest_.state().open);
}

const ManifestState& Commits::manifest() const {
  state_->AssertLocked();
  return manifest_.state();
}

std::string Commits::manifest_path() const {
  state_->AssertLocked();
  return manifest_.path();
}

uint64_t Commits::manifest_number() const {
  state_->AssertLocked();
  return manifest_.number();
}

Status Commits::TakeNumber(uint64_t* number) {
  state_->AssertLocked();
  if (next_number_ == manifest_.state().open.reserved_end) {
    OpenRecord open = manifest_.state().open;
    open.reserved_end += kReservedNumbers;
    bool is_begun = false;
    const auto sync = [](File* current) { return current->SyncData(); };
    const Status status = manifest_.Commit(RecordKind::kOpen, EncodeOpen(open), sync, &is_begun);
    if (!status.ok()) return state_->SettleIfBegun(status, is_begun);
  }
  *number = next_number_++;
  return Status::Ok();
}

uint64_t Commits::next_number() const {
  state_->AssertLocked();
  return next_number_;
}

Status Commits::Commit(RecordKind kind, const std::string& payload) {
  state_->AssertLocked();
  bool is_begun = false;
  const auto sync = [&](File* current) {
    return kind == RecordKind::kCheckpoint ? SyncBefore(current) : current->SyncData();
  };
  const Status status = manifest_.Commit(kind, payload, sync, &is_begun);
  if (!status.ok()) return state_->SettleIfBegun(status, is_begun);
  context_->CountOverhead(payload.size() + kCommitBytes);
  if (!manifest_.is_bloated()) return Status::Ok();
  uint64_t number = 0;
  // The record is durable already: without a number the log stays long until the next one.
  if (!TakeNumber(&number).ok()) return Status::Ok();
  const Status started = manifest_.Start(number, manifest_.state().open, &is_begun);
  return !started.ok() && is_begun ? state_->Settle(started) : Status::Ok();
}

Status Commits::SyncLater(std::shared_ptr<File> file) {
  SyncWithNext(std::move(file));
  return unsynced_.size() < kMostUnsynced ? Status::Ok() : SyncPending();
}

void Commits::SyncWithNext(std::shared_ptr<File> file) {
  state_->AssertLocked();
  unsynced_.push_back(std::move(file));
}

// Open files would keep their space.
void Commits::ForgetUnsynced(const std::string& path) {
  state_->AssertLocked();
  std::erase_if(unsynced_, [&](const auto& file) { return file->path() == path; });
}

void Commits::ForgetUnsynced() {
  state_->AssertLocked();
  unsynced_.clear();
}

Status Commits::SyncPending() {
  while (!unsynced_.empty()) {
    const Status status = unsynced_.back()->SyncData();
    if (!status.ok()) return state_->Settle(status);
    unsynced_.pop_back();
  }
  return Status::Ok();
}

// Everything that a checkpoint's record needs, at once: a system's syncs share most of their
// work. Only the new CURRENT may fail without harm, as it is thrown away then.
Status Commits::SyncBefore(File* current) {
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
    if (!done[number].ok()) return state_->Settle(done[number]);
  }
  unsynced_.clear();
  return done.back();
}

}  // namespace hps
