// HeldFolder: a folder behind a descriptor, and whether its path still leads to it.
//
// Above it: posix_file_system, bindings. Below it: the kernel. A store is the folder that was
// opened, not whatever its path leads to later: names in it are looked up from the descriptor, so
// that nothing is ever changed in another folder that took the path. Thread-safe, but for Guard.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"

namespace hps {

// The file of a folder that its one writer has locked.
inline constexpr char kLockName[] = "LOCK";

// `path` behind the working directory, unless it is absolute; without slashes at its end.
std::string AbsolutePath(const std::string& path);

class HeldFolder {
 public:
  // `path` is absolute; the folder must be there.
  static Status Open(const std::string& path, std::unique_ptr<HeldFolder>* folder);
  ~HeldFolder();
  HeldFolder(const HeldFolder&) = delete;
  HeldFolder& operator=(const HeldFolder&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  // Whether `path` lies in the folder or is it; *name is what it is called from the descriptor.
  bool Contains(const std::string& path, std::string* name) const;

  // Keeps other writers out of the folder itself, without waiting: a lock file in it may be removed
  // while it is locked, the folder may not. *taken is true, too, where the file system locks no
  // folders. Given back by Unlock, once forked children have let go of it, too.
  Status TryLock(bool* taken);
  void Unlock();
  // Check looks at this file from now on. The descriptor stays its owner's; -1 for none.
  void Guard(int descriptor, std::string path);
  // kStore with ESTALE, and what happened, once the folder, or the guarded file, is no longer what
  // its path leads to; another kStore where the system does not say. Cost: four stats.
  Status Check() const;

 private:
  HeldFolder(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  // What has become of the folder, in words.
  std::string Fate() const;
  Status CheckGuarded() const;

  std::string path_;
  int descriptor_;
  int locked_ = -1;  // another descriptor of the folder: its end is the lock's
  int guarded_ = -1;
  std::string guarded_path_;
};

}  // namespace hps
