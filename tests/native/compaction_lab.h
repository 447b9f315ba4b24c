// CompactionLab: a folder for a store of small rows, its dict twin, and files that call back.
//
// Above it: compaction_test, compaction_threads_test. Below it: scratch_store.h. A row is a key and
// a value; a state is the value of every stored key.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/check.h"
#include "forwarding_files.h"
#include "scratch_store.h"
#include "ssd_store/verify.h"

namespace hps {

using State = std::map<uint64_t, uint64_t>;

constexpr uint64_t kRowBytes = 32;

class CompactionLab {
 public:
  StoreOptions Options() const {
    StoreOptions options = SmallStore(folder_.path() + "/store", kRowBytes, 4000);
    options.keep_last = 1;
    return options;
  }
  void Reset() const { folder_.Reset(); }
  // Bytes of the segments and extras that lie in the folder, needed or not.
  uint64_t BytesOnDisk() const {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(Options().path)) {
      const std::string name = entry.path().filename();
      if (name.rfind("segment-", 0) == 0 || name.rfind("extra-", 0) == 0)
        bytes += entry.file_size();
    }
    return bytes;
  }

 private:
  ScratchFolder folder_;
};

inline std::vector<uint64_t> Range(uint64_t first, uint64_t end, uint64_t step = 1) {
  std::vector<uint64_t> keys;
  for (uint64_t key = first; key < end; key += step) keys.push_back(key);
  return keys;
}

inline std::vector<char> RowsOf(const std::vector<uint64_t>& keys, uint64_t value) {
  std::vector<char> rows(keys.size() * kRowBytes);
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t mixed = keys[i] * 31 + value;
    std::memcpy(&rows[i * kRowBytes], &keys[i], 8);
    std::memcpy(&rows[i * kRowBytes + 16], &value, 8);
    std::memcpy(&rows[i * kRowBytes + 24], &mixed, 8);
  }
  return rows;
}

inline Status Put(SsdStore* store, const std::vector<uint64_t>& keys, uint64_t value,
                  State* state) {
  HPS_RETURN_IF_ERROR(store->Append(0, RowsOf(keys, value).data(), keys.size()));
  for (const uint64_t key : keys) (*state)[key] = value;
  return Status::Ok();
}

inline Status Drop(SsdStore* store, const std::vector<uint64_t>& keys, State* state) {
  std::vector<uint8_t> found(keys.size());
  HPS_RETURN_IF_ERROR(store->Erase(0, keys.data(), keys.size(), found.data()));
  for (const uint64_t key : keys) state->erase(key);
  return Status::Ok();
}

inline Status Save(SsdStore* store, const std::string& tag = "") {
  CheckpointSummary summary;
  return store->MakeCheckpoint(tag, {{"dense", std::string(6000, 'd')}}, &summary);
}

// What the store has of the keys below `end`; false if a row cannot be read or is not whole.
inline bool Read(const SsdStore& store, uint64_t end, State* state) {
  const std::vector<uint64_t> keys = Range(0, end);
  std::vector<char> rows(end * kRowBytes);
  std::vector<uint8_t> found(end);
  if (!store.table(0).Fetch(keys.data(), end, rows.data(), found.data()).ok()) return false;
  state->clear();
  for (uint64_t key = 0; key < end; ++key) {
    if (found[key] == 0) continue;
    uint64_t value = 0;
    std::memcpy(&value, &rows[key * kRowBytes + 16], 8);
    if (std::memcmp(&rows[key * kRowBytes], RowsOf({key}, value).data(), kRowBytes) != 0) {
      return false;
    }
    (*state)[key] = value;
  }
  return state->size() == store.table(0).num_rows();
}

inline bool Holds(const SsdStore& store, uint64_t end, const State& expected) {
  State state;
  return Read(store, end, &state) && state == expected;
}

inline bool IsWhole(const CompactionLab& lab) {
  std::vector<Damage> damages;
  const Status status = VerifyStore(PosixFileSystem(), lab.Options().path, &damages);
  return status.ok() && damages.empty();
}

// The files of another layer, but every read of a segment calls `on_read` first, and while
// `is_full` the disk has no space for a new file of any thread but `favoured`.
class ReadHooks final : public ForwardingFiles {
 public:
  std::function<void(const std::string& path)> on_read;
  std::atomic<bool> is_full{false};
  const std::thread::id favoured = std::this_thread::get_id();

  explicit ReadHooks(FileSystem* files = PosixFileSystem()) : ForwardingFiles(files) {}
  Status Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) override;
};

class HookedFile final : public File {
 public:
  HookedFile(ReadHooks* owner, std::unique_ptr<File> file)
      : File(file->path()), owner_(owner), file_(std::move(file)) {}
  Status Read(uint64_t offset, uint64_t size, void* bytes) override {
    if (owner_->on_read && path().find("segment-") != std::string::npos) owner_->on_read(path());
    return file_->Read(offset, size, bytes);
  }
  Status Write(uint64_t offset, const void* bytes, uint64_t size) override {
    return file_->Write(offset, bytes, size);
  }
  Status Allocate(uint64_t offset, uint64_t size) override { return file_->Allocate(offset, size); }
  Status Truncate(uint64_t size) override { return file_->Truncate(size); }
  Status SyncData() override { return file_->SyncData(); }
  Status Size(uint64_t* size) override { return file_->Size(size); }
  Status TryLock(bool exclusive, bool* taken) override { return file_->TryLock(exclusive, taken); }
  Status IsLinked(bool* linked) override { return file_->IsLinked(linked); }

 private:
  ReadHooks* owner_;
  std::unique_ptr<File> file_;
};

inline Status ReadHooks::Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) {
  if (is_full && mode == OpenMode::kCreateNew && std::this_thread::get_id() != favoured) {
    return SystemError("(fault) make", path, ENOSPC);
  }
  std::unique_ptr<File> opened;
  HPS_RETURN_IF_ERROR(files_->Open(path, mode, &opened));
  *file = std::make_unique<HookedFile>(this, std::move(opened));
  return Status::Ok();
}

}  // namespace hps
