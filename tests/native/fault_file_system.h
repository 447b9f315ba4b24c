// FaultFileSystem: the operating system's files, but failing on request, and losing power.
//
// Above it: native tests of ssd_store. Below it: PosixFileSystem. It counts every call that changes
// something; at a chosen one it fails, once or (as a crash) from then on, after half of a write. It
// remembers what each write replaced until the file is synced, so that LosePower can take a random
// part of the unsynced bytes back, in pieces of 512 bytes. For one thread.
#pragma once

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ssd_store/file_system.h"

namespace hps {

class FaultFileSystem : public FileSystem {
 public:
  struct Faults {
    int64_t fail_at_call = -1;  // counted from 0 over all changing calls; -1: never
    bool is_crash = false;      // every later changing call fails too
    int error = EIO;
    bool only_syncs = false;         // count SyncData and SyncFolder alone
    int64_t space_left = INT64_MAX;  // bytes that Allocate still grants
    bool forgets_syncs = false;      // a planted bug: syncs report success and do nothing
  };

  Faults faults;
  int64_t num_calls = 0;

  // Whether the next changing call is to fail.
  bool Strikes(bool is_sync) {
    if (faults.only_syncs && !is_sync) return false;
    const int64_t call = num_calls++;
    if (faults.fail_at_call < 0) return false;
    return call == faults.fail_at_call || (faults.is_crash && call > faults.fail_at_call);
  }
  Status Struck(const std::string& path) {
    return SystemError("(fault) change", path, faults.error);
  }

  Status Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) override;
  Status Rename(const std::string& source, const std::string& target) override {
    if (Strikes(false)) return Struck(target);
    Renamed renamed{target, {}, files_->Exists(target)};
    if (renamed.existed) HPS_RETURN_IF_ERROR(ReadWholeFile(files_, target, &renamed.old));
    renamed_.push_back(std::move(renamed));
    replaced_[target] = std::move(replaced_[source]);
    replaced_.erase(source);
    return files_->Rename(source, target);
  }
  Status SyncFolder(const std::string& path) override {
    if (Strikes(true)) return Struck(path);
    if (!faults.forgets_syncs) renamed_.clear();
    return files_->SyncFolder(path);
  }
  Status Unlink(const std::string& path) override {
    if (Strikes(false)) return Struck(path);
    replaced_.erase(path);
    return files_->Unlink(path);
  }
  Status List(const std::string& path, std::vector<std::string>* names) override {
    return files_->List(path, names);
  }
  Status CreateFolder(const std::string& path) override { return files_->CreateFolder(path); }
  bool Exists(const std::string& path) override { return files_->Exists(path); }

  // Takes back a random part of what was not synced; the store must be gone by then.
  void LosePower(std::mt19937_64* random);

  void Remember(const std::string& path, uint64_t offset, std::string old) {
    replaced_[path].push_back({offset, std::move(old)});
  }
  void Forget(const std::string& path) {
    if (!faults.forgets_syncs) replaced_.erase(path);
  }

 private:
  struct Replaced {
    uint64_t offset = 0;
    std::string old;  // zeros where the file did not reach
  };
  struct Renamed {
    std::string target;
    std::string old;
    bool existed = false;
  };

  FileSystem* files_ = PosixFileSystem();
  std::map<std::string, std::vector<Replaced>> replaced_;
  std::vector<Renamed> renamed_;
};

class FaultFile final : public File {
 public:
  FaultFile(FaultFileSystem* owner, std::unique_ptr<File> file)
      : File(file->path()), owner_(owner), file_(std::move(file)) {}

  Status Read(uint64_t offset, uint64_t size, void* bytes) override {
    return file_->Read(offset, size, bytes);
  }
  Status Write(uint64_t offset, const void* bytes, uint64_t size) override {
    const bool strikes = owner_->Strikes(false);
    if (strikes) size /= 2;  // torn
    uint64_t length = 0;
    HPS_RETURN_IF_ERROR(file_->Size(&length));
    std::string old(size, '\0');
    const uint64_t kept = offset < length ? std::min(size, length - offset) : 0;
    HPS_RETURN_IF_ERROR(file_->Read(offset, kept, old.data()));
    owner_->Remember(path(), offset, std::move(old));
    HPS_RETURN_IF_ERROR(file_->Write(offset, bytes, size));
    return strikes ? owner_->Struck(path()) : Status::Ok();
  }
  Status Allocate(uint64_t offset, uint64_t size) override {
    if (owner_->Strikes(false)) return owner_->Struck(path());
    if (static_cast<int64_t>(size) > owner_->faults.space_left) {
      return SystemError("reserve space in", path(), ENOSPC);
    }
    owner_->faults.space_left -= static_cast<int64_t>(size);
    return file_->Allocate(offset, size);
  }
  Status Truncate(uint64_t size) override {
    return owner_->Strikes(false) ? owner_->Struck(path()) : file_->Truncate(size);
  }
  Status SyncData() override {
    if (owner_->Strikes(true)) return owner_->Struck(path());
    owner_->Forget(path());
    return file_->SyncData();
  }
  Status Size(uint64_t* size) override { return file_->Size(size); }
  Status TryLock(bool exclusive, bool* taken) override { return file_->TryLock(exclusive, taken); }
  Status IsLinked(bool* linked) override { return file_->IsLinked(linked); }

 private:
  FaultFileSystem* owner_;
  std::unique_ptr<File> file_;
};

inline Status FaultFileSystem::Open(const std::string& path, OpenMode mode,
                                    std::unique_ptr<File>* file) {
  const bool changes = mode == OpenMode::kCreateNew || mode == OpenMode::kCreate;
  if (changes && Strikes(false)) return Struck(path);
  std::unique_ptr<File> opened;
  HPS_RETURN_IF_ERROR(files_->Open(path, mode, &opened));
  *file = std::make_unique<FaultFile>(this, std::move(opened));
  return Status::Ok();
}

inline void FaultFileSystem::LosePower(std::mt19937_64* random) {
  constexpr uint64_t kPiece = 512;
  for (auto& [path, pieces] : replaced_) {
    std::unique_ptr<File> file;
    if (!files_->Exists(path) || !files_->Open(path, OpenMode::kReadWrite, &file).ok()) continue;
    for (auto it = pieces.rbegin(); it != pieces.rend(); ++it) {
      for (uint64_t at = 0; at < it->old.size(); at += kPiece) {
        if ((*random)() % 2 == 0) continue;
        const uint64_t size = std::min(kPiece, it->old.size() - at);
        (void)file->Write(it->offset + at, it->old.data() + at, size).ok();
      }
    }
  }
  for (auto it = renamed_.rbegin(); it != renamed_.rend(); ++it) {
    if ((*random)() % 2 == 0) continue;
    (void)files_->Unlink(it->target).ok();
    if (it->existed) (void)WriteNewFile(files_, it->target, it->old).ok();
  }
  replaced_.clear();
  renamed_.clear();
}

}  // namespace hps
