// HeldFolder: see held_folder.h.
//
// Above it: held_folder.h. Below it: openat, flock, stat.
#include "files/held_folder.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "files/file_system.h"

namespace hps {
namespace {

bool IsSame(const struct stat& left, const struct stat& right) {
  return left.st_dev == right.st_dev && left.st_ino == right.st_ino;
}

// Errors of a stat that say that the name leads nowhere.
bool IsGone(int error) { return error == ENOENT || error == ENOTDIR || error == ESTALE; }

Status Lost(const std::string& path, const std::string& what) {
  return Status(StatusCode::kStore, path + ": " + what, ESTALE);
}

}  // namespace

std::string AbsolutePath(const std::string& path) {
  std::error_code error;  // without a working directory the path stays as it is, and leads nowhere
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  std::string text = error ? path : whole.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

Status HeldFolder::Open(const std::string& path, std::unique_ptr<HeldFolder>* folder) {
  int descriptor = -1;
  do {
    descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  } while (descriptor < 0 && errno == EINTR);
  // One that may be entered and not listed is enough for a reader.
  if (descriptor < 0 && errno == EACCES) {
    descriptor = open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  }
  if (descriptor < 0) return SystemError("open folder", path, errno);
  folder->reset(new HeldFolder(path, descriptor));
  return Status::Ok();
}

HeldFolder::~HeldFolder() {
  Unlock();
  close(descriptor_);
}

bool HeldFolder::Contains(const std::string& path, std::string* name) const {
  if (!path.starts_with(path_)) return false;
  const bool is_inside =
      path.size() == path_.size() || path[path_.size()] == '/' || path_.back() == '/';
  if (!is_inside) return false;
  const size_t first = path.find_first_not_of('/', path_.size());
  *name = first == std::string::npos ? std::string(1, '.') : path.substr(first);
  return true;
}

Status HeldFolder::TryLock(bool* taken) {
  Unlock();
  locked_ = openat(descriptor_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (locked_ < 0) return SystemError("open folder", path_, errno);
  *taken = flock(locked_, LOCK_EX | LOCK_NB) == 0;
  // Another error: a file system that locks files alone, or nothing (NFS).
  if (!*taken && errno != EWOULDBLOCK) *taken = true;
  if (!*taken) Unlock();
  return Status::Ok();
}

// By closing, not by LOCK_UN: a forked child must not take the lock from its parent.
void HeldFolder::Unlock() {
  if (locked_ >= 0) close(locked_);
  locked_ = -1;
}

void HeldFolder::Guard(int descriptor, std::string path) {
  guarded_ = descriptor;
  guarded_path_ = std::move(path);
}

std::string HeldFolder::Fate() const {
  char target[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor_);
  const ssize_t length = readlink(link.c_str(), target, sizeof(target));
  const std::string place(target, length > 0 ? static_cast<size_t>(length) : 0);
  if (place.ends_with(" (deleted)")) return "was removed";
  return place.empty() || place == path_ ? "was moved away" : "was moved to " + place;
}

Status HeldFolder::Check() const {
  struct stat held;
  struct stat found;
  if (fstat(descriptor_, &held) != 0) return SystemError("stat", path_, errno);
  if (stat(path_.c_str(), &found) != 0) {
    if (!IsGone(errno)) return SystemError("stat", path_, errno);
    return Lost(path_, "the folder that was opened here " + Fate());
  }
  if (!IsSame(held, found)) {
    return Lost(path_,
                "the folder that was opened here " + Fate() + ", and another one has its path now");
  }
  return guarded_ < 0 ? Status::Ok() : CheckGuarded();
}

Status HeldFolder::CheckGuarded() const {
  struct stat held;
  struct stat found;
  std::string name;
  const bool is_inside = Contains(guarded_path_, &name);
  if (fstat(guarded_, &held) != 0) return SystemError("stat", guarded_path_, errno);
  if (fstatat(is_inside ? descriptor_ : AT_FDCWD, (is_inside ? name : guarded_path_).c_str(),
              &found, 0) != 0) {
    if (!IsGone(errno)) return SystemError("stat", guarded_path_, errno);
    return Lost(guarded_path_, "the file, with which this writer keeps others out, was removed");
  }
  if (IsSame(held, found)) return Status::Ok();
  return Lost(guarded_path_,
              "the file, with which this writer keeps others out, was replaced by another one");
}

}  // namespace hps
