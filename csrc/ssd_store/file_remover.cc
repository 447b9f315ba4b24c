// What is needed, and the removal of all else.
//
// Above it: file_remover.h. Below it: commits, store_tables, reader_pin.
#include "ssd_store/file_remover.h"

#include <set>
#include <system_error>
#include <utility>

#include "ssd_store/reader_pin.h"

namespace hps {

FileRemover::FileRemover(const StoreOptions& options, StoreState* state, const Commits* commits,
                         StoreTables* tables)
    : files_(tables->context()->files),
      options_(options),
      state_(state),
      commits_(commits),
      tables_(tables),
      closer_(std::make_unique<std::thread>()) {}

FileRemover::~FileRemover() {
  if (closer_ != nullptr && closer_->joinable()) closer_->join();
}

// Leftovers of killed processes go the same way. An error is of no weight after a durable record:
// what stays is met again next time. A store that stopped removes nothing: the manifest on disk may
// be newer than the one that it knows.
Status FileRemover::Remove(std::vector<std::string>* holders) {
  if (state_->has_stopped()) return Status::Ok();
  PinnedFiles pinned;
  HPS_RETURN_IF_ERROR(ReadPins(files_, options_.path, &pinned));
  *holders = pinned.holders;
  if (pinned.everything) return Status::Ok();
  std::set<uint64_t> needed = pinned.numbers;
  needed.insert(commits_->manifest_number());
  needed.insert(output_number_);
  needed.insert(cloned_.begin(), cloned_.end());
  for (const auto& [id, checkpoint] : commits_->manifest().checkpoints) {
    for (const uint64_t number : checkpoint.FileNumbers()) needed.insert(number);
  }
  tables_->AddNeeded(commits_->manifest().current, &needed);
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
    tables_->cache()->Forget(number);
    const std::string path = options_.path + "/" + name;
    removed_files.push_back(files_->Hold(path));
    const Status removed = files_->Unlink(path);
    if (first.ok()) first = removed;
  }
  CloseLater(std::move(removed_files));
  return first;
}

void FileRemover::TryToRemove() {
  std::vector<std::string> holders;
  (void)Remove(&holders).ok();
}

void FileRemover::KeepOutput(uint64_t number) {
  state_->AssertLocked();
  output_number_ = number;
}

void FileRemover::KeepCloned(std::vector<uint64_t> numbers) {
  state_->AssertLocked();
  cloned_ = std::move(numbers);
}

void FileRemover::CloseLater(std::vector<std::unique_ptr<File>> files) {
  AwaitClosing();
  if (files.empty()) return;
  try {
    *closer_ = std::thread([files = std::move(files)]() mutable { files.clear(); });
  } catch (const std::system_error&) {
    // The system grants no more threads: they have been closed here.
  }
}

void FileRemover::AwaitClosing() {
  state_->AssertLocked();
  if (closer_->joinable()) closer_->join();
}

}  // namespace hps
