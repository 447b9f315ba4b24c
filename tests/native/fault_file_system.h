// FaultFileSystem: the operating system's files, but failing on request, losing power, or lying.
//
// Above it: native tests of ssd_store and update_log. Below it: PosixFileSystem. It counts the
// calls of a chosen kind; at a chosen one it fails, once or (as a crash) from then on, a write
// after half of its bytes. It remembers what each change replaced until it is synced, so that
// LosePower can take a random part of the unsynced bytes back, in pieces of 512 bytes, and a random
// part of the unsynced names. What a failed sync left behind is lost whatever comes after it: the
// kernel has dropped it. A Lie is a planted bug: the call reports success and has not done its
// work. Thread-safe, but for `faults`, which is set while no other thread uses it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "files/file_system.h"

namespace hps {

enum class Call {
  kChange,  // whatever alters a file, a name or what is durable; not a lock
  kSync,    // SyncData and SyncFolder
  kRead,
  kOpen,
};

enum class Lie {
  kNone,
  kForgottenSync,      // syncs do nothing
  kDroppedWrite,       // the write at call lie_at_call does not happen
  kHalvedWrite,        // the same, of its second half: a short write taken for a whole one
  kLongTruncate,       // a file is cut 12 bytes shorter than asked
  kHiddenFailedSync,   // the sync that fails says it has not
  kSwallowedFullDisk,  // what has no space is dropped
};

class FaultFileSystem : public FileSystem {
 public:
  struct Faults {
    Call counted = Call::kChange;
    int64_t fail_at_call = -1;  // counted from 0 over the calls of that kind; -1: never
    bool is_crash = false;      // every later call of that kind fails too
    int error = EIO;
    int64_t space_left = INT64_MAX;  // bytes that are still granted
    bool reserves = true;            // false: Allocate grants all, the disk is full at the write
    Lie lie = Lie::kNone;
    int64_t lie_at_call = -1;  // of the changing calls
  };

  Faults faults;
  int64_t num_calls = 0;    // of the counted kind
  int64_t num_changes = 0;  // of Call::kChange
  int64_t num_struck = 0;
  uint64_t boot = 1;                   // of the machine; a loss of power is another one
  std::atomic<bool> is_killed{false};  // the process is: it changes nothing more

  // Counts a call; whether it is to fail.
  bool Strikes(Call call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool is_change = call == Call::kChange || call == Call::kSync;
    if (is_change) ++num_changes;
    if (call != faults.counted && !(is_change && faults.counted == Call::kChange)) {
      return is_change && is_killed;
    }
    const int64_t number = num_calls++;
    const bool strikes =
        faults.fail_at_call >= 0 &&
        (number == faults.fail_at_call || (faults.is_crash && number > faults.fail_at_call));
    num_struck += strikes;
    return strikes || (is_change && is_killed);
  }
  // Whether the changing call that has just been counted is to be lied about in this way.
  bool Lies(Lie lie) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return faults.lie == lie && num_changes - 1 == faults.lie_at_call;
  }
  Status Struck(const std::string& path) const {
    return SystemError("(fault) use", path, faults.error);
  }
  void SetSpace(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    faults.space_left = bytes;
  }
  // Takes space of the disk; false when it is full.
  bool Grant(uint64_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<int64_t>(size) > faults.space_left) return false;
    if (faults.space_left != INT64_MAX) faults.space_left -= static_cast<int64_t>(size);
    return true;
  }

  Status Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) override;
  Status Rename(const std::string& source, const std::string& target) override;
  Status SyncFolder(const std::string& path) override;
  Status Unlink(const std::string& path) override;
  Status List(const std::string& path, std::vector<std::string>* names) override {
    return files_->List(path, names);
  }
  Status CreateFolder(const std::string& path) override;
  bool Exists(const std::string& path) override { return files_->Exists(path); }
  uint64_t BootNumber() override { return boot; }

  // Takes back a random part of what was not synced; the store must be gone by then.
  void LosePower(std::mt19937_64* random);

  // What a write or a truncation at `offset` is about to replace.
  void Remember(const std::string& path, uint64_t offset, std::string old, uint64_t length);
  void Synced(const std::string& path, uint64_t length);
  void SyncFailed(const std::string& path);
  // Space reserved, or asked for by a write that ends at `end` of a file of `length` bytes. A write
  // into space that nobody reserved succeeds on a full disk, and the file's next sync fails.
  bool Reserve(const std::string& path, uint64_t offset, uint64_t size);
  void Occupy(const std::string& path, uint64_t end, uint64_t length);
  bool IsOverdrawn(const std::string& path);

 private:
  struct Replaced {
    uint64_t offset = 0;
    std::string old;  // zeros where the file did not reach
  };
  struct Unsynced {
    std::vector<Replaced> pieces;
    uint64_t durable_length = UINT64_MAX;  // the file's at the last sync; unknown: all of it
    bool is_lost = false;                  // a sync of it has failed
  };
  // A name that was made, replaced or removed since its folder was synced.
  struct Renamed {
    std::string name;
    std::string old;
    bool existed = false;
    std::string source;  // the file's name before, if it had one
  };

  void LoseBytes(const std::string& path, const Unsynced& unsynced, std::mt19937_64* random);

  FileSystem* files_ = PosixFileSystem();
  std::mutex mutex_;
  std::map<std::string, Unsynced> unsynced_;
  std::vector<Renamed> names_;
  std::map<std::string, uint64_t> reserved_;  // to this end of the file
  std::set<std::string> overdrawn_;
};

class FaultFile final : public File {
 public:
  FaultFile(FaultFileSystem* owner, std::unique_ptr<File> file)
      : File(file->path()), owner_(owner), file_(std::move(file)) {}

  Status Read(uint64_t offset, uint64_t size, void* bytes) override {
    return owner_->Strikes(Call::kRead) ? owner_->Struck(path()) : file_->Read(offset, size, bytes);
  }
  Status Write(uint64_t offset, const void* bytes, uint64_t size) override {
    const bool strikes = owner_->Strikes(Call::kChange);
    if (strikes) size /= 2;  // torn
    if (owner_->Lies(Lie::kDroppedWrite)) return Status::Ok();
    if (owner_->Lies(Lie::kHalvedWrite)) size /= 2;
    uint64_t length = 0;
    HPS_RETURN_IF_ERROR(file_->Size(&length));
    const uint64_t grown = offset + size > length ? offset + size - length : 0;
    if (!owner_->faults.reserves && !owner_->Grant(grown)) {
      if (owner_->faults.lie == Lie::kSwallowedFullDisk) return Status::Ok();
      return SystemError("write", path(), ENOSPC);
    }
    if (owner_->faults.reserves) owner_->Occupy(path(), offset + size, length);
    HPS_RETURN_IF_ERROR(Remember(offset, size, length));
    HPS_RETURN_IF_ERROR(file_->Write(offset, bytes, size));
    return strikes ? owner_->Struck(path()) : Status::Ok();
  }
  Status Allocate(uint64_t offset, uint64_t size) override {
    if (owner_->Strikes(Call::kChange)) return owner_->Struck(path());
    if (!owner_->faults.reserves) return Status::Ok();
    if (owner_->Reserve(path(), offset, size)) return Status::Ok();
    return SystemError("reserve space in", path(), ENOSPC);
  }
  Status Truncate(uint64_t size) override {
    if (owner_->Strikes(Call::kChange)) return owner_->Struck(path());
    if (owner_->faults.lie == Lie::kLongTruncate) size -= std::min<uint64_t>(size, 12);
    uint64_t length = 0;
    HPS_RETURN_IF_ERROR(file_->Size(&length));
    if (length > size) HPS_RETURN_IF_ERROR(Remember(size, length - size, length));
    return file_->Truncate(size);
  }
  Status SyncData() override {
    if (owner_->Strikes(Call::kSync)) {
      owner_->SyncFailed(path());
      const bool is_hidden = owner_->faults.lie == Lie::kHiddenFailedSync;
      return is_hidden ? Status::Ok() : owner_->Struck(path());
    }
    if (owner_->IsOverdrawn(path())) return SystemError("fdatasync", path(), ENOSPC);
    uint64_t length = 0;
    HPS_RETURN_IF_ERROR(file_->Size(&length));
    owner_->Synced(path(), length);
    return Status::Ok();  // no power is lost here but by LosePower; the disk's own sync takes time
  }
  Status Size(uint64_t* size) override { return file_->Size(size); }
  Status TryLock(bool exclusive, bool* taken) override { return file_->TryLock(exclusive, taken); }
  Status IsLinked(bool* linked) override { return file_->IsLinked(linked); }

 private:
  Status Remember(uint64_t offset, uint64_t size, uint64_t length) {
    std::string old(size, '\0');
    const uint64_t kept = offset < length ? std::min(size, length - offset) : 0;
    HPS_RETURN_IF_ERROR(file_->Read(offset, kept, old.data()));
    owner_->Remember(path(), offset, std::move(old), length);
    return Status::Ok();
  }

  FaultFileSystem* owner_;
  std::unique_ptr<File> file_;
};

inline Status FaultFileSystem::Open(const std::string& path, OpenMode mode,
                                    std::unique_ptr<File>* file) {
  if (Strikes(Call::kOpen)) return Struck(path);
  const bool makes = (mode == OpenMode::kCreateNew || mode == OpenMode::kCreate) && !Exists(path);
  if (makes && Strikes(Call::kChange)) return Struck(path);
  std::unique_ptr<File> opened;
  HPS_RETURN_IF_ERROR(files_->Open(path, mode, &opened));
  if (makes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    names_.push_back({path, {}, false, {}});
  }
  *file = std::make_unique<FaultFile>(this, std::move(opened));
  return Status::Ok();
}

inline Status FaultFileSystem::Rename(const std::string& source, const std::string& target) {
  if (Strikes(Call::kChange)) return Struck(target);
  const std::lock_guard<std::mutex> lock(mutex_);
  Renamed renamed{target, {}, files_->Exists(target), source};
  if (renamed.existed) HPS_RETURN_IF_ERROR(ReadWholeFile(files_, target, &renamed.old));
  names_.push_back(std::move(renamed));
  unsynced_[target] = std::move(unsynced_[source]);
  unsynced_.erase(source);
  reserved_[target] = reserved_[source];
  reserved_.erase(source);
  return files_->Rename(source, target);
}

inline Status FaultFileSystem::SyncFolder(const std::string& path) {
  if (Strikes(Call::kSync)) {
    return faults.lie == Lie::kHiddenFailedSync ? Status::Ok() : Struck(path);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (faults.lie == Lie::kForgottenSync) return Status::Ok();
  std::erase_if(names_, [&](const Renamed& made) { return ParentOf(made.name) == path; });
  return Status::Ok();
}

inline Status FaultFileSystem::CreateFolder(const std::string& path) {
  if (Exists(path)) return files_->CreateFolder(path);
  if (Strikes(Call::kChange)) return Struck(path);
  HPS_RETURN_IF_ERROR(files_->CreateFolder(path));
  const std::lock_guard<std::mutex> lock(mutex_);
  names_.push_back({path, {}, false, {}});
  return Status::Ok();
}

inline Status FaultFileSystem::Unlink(const std::string& path) {
  if (Strikes(Call::kChange)) return Struck(path);
  const std::lock_guard<std::mutex> lock(mutex_);
  Renamed removed{path, {}, true, {}};
  HPS_RETURN_IF_ERROR(ReadWholeFile(files_, path, &removed.old));
  names_.push_back(std::move(removed));
  unsynced_.erase(path);
  reserved_.erase(path);
  overdrawn_.erase(path);
  return files_->Unlink(path);
}

inline void FaultFileSystem::Remember(const std::string& path, uint64_t offset, std::string old,
                                      uint64_t length) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Unsynced& unsynced = unsynced_[path];
  if (unsynced.durable_length == UINT64_MAX) unsynced.durable_length = length;
  unsynced.pieces.push_back({offset, std::move(old)});
}

inline void FaultFileSystem::Synced(const std::string& path, uint64_t length) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (faults.lie == Lie::kForgottenSync) return;
  const auto found = unsynced_.find(path);
  if (found == unsynced_.end() || found->second.is_lost) return;
  found->second.pieces.clear();
  found->second.durable_length = length;
}

inline void FaultFileSystem::SyncFailed(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unsynced_[path].is_lost = true;
}

inline bool FaultFileSystem::Reserve(const std::string& path, uint64_t offset, uint64_t size) {
  if (!Grant(size)) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  reserved_[path] = std::max(reserved_[path], offset + size);
  return true;
}

inline void FaultFileSystem::Occupy(const std::string& path, uint64_t end, uint64_t length) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t owned = std::max(length, reserved_[path]);
  if (end > owned && static_cast<int64_t>(end - owned) > faults.space_left) {
    overdrawn_.insert(path);
  }
}

inline bool FaultFileSystem::IsOverdrawn(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return overdrawn_.count(path) > 0;
}

inline void FaultFileSystem::LoseBytes(const std::string& path, const Unsynced& unsynced,
                                       std::mt19937_64* random) {
  constexpr uint64_t kPiece = 512;
  std::unique_ptr<File> file;
  if (unsynced.pieces.empty() || !files_->Exists(path)) return;
  if (!files_->Open(path, OpenMode::kReadWrite, &file).ok()) return;
  for (auto it = unsynced.pieces.rbegin(); it != unsynced.pieces.rend(); ++it) {
    for (uint64_t at = 0; at < it->old.size(); at += kPiece) {
      if ((*random)() % 2 == 0) continue;
      const uint64_t size = std::min(kPiece, it->old.size() - at);
      (void)file->Write(it->offset + at, it->old.data() + at, size).ok();
    }
  }
  uint64_t length = 0;
  (void)file->Size(&length).ok();
  if (length > unsynced.durable_length && (*random)() % 2 == 0) {  // nor was its new length
    const uint64_t grown = length - unsynced.durable_length;
    (void)file->Truncate(unsynced.durable_length + (*random)() % grown).ok();
  }
}

inline void FaultFileSystem::LosePower(std::mt19937_64* random) {
  for (const auto& [path, unsynced] : unsynced_) LoseBytes(path, unsynced, random);
  for (auto it = names_.rbegin(); it != names_.rend(); ++it) {
    if ((*random)() % 2 == 0) continue;
    if (!it->source.empty() && files_->Exists(it->name)) {
      if (files_->Exists(it->source)) continue;  // a later file has the name, and keeps it
      std::filesystem::rename(it->name, it->source);
    }
    std::filesystem::remove_all(it->name);  // a folder goes with all that is in it
    if (it->existed) (void)WriteNewFile(files_, it->name, it->old).ok();
  }
  unsynced_.clear();
  names_.clear();
  ++boot;
}

}  // namespace hps
