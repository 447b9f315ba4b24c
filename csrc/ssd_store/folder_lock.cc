// The lock of a folder, and who holds it where it is taken.
//
// Above it: folder_lock.h. Below it: file_system.
#include "ssd_store/folder_lock.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "files/held_folder.h"

namespace hps {
namespace {

constexpr size_t kLongestHolder = 256;

// What a process that cannot be the writer is told.
constexpr char kReadInstead[] =
    "; a writer needs this file: get the right to write it, or only read the store "
    "(hps.open(path, read_only=True))";
constexpr char kReadBeside[] =
    ", or read beside it: hps.open(path, read_only=True), hps stats, evaluate, export and clone do";

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// Of the text of a LOCK: "<pid> <host>". The writer may not have written it yet, and another
// program may have written anything.
std::string HolderInWords(std::string text) {
  if (text.size() > kLongestHolder) text.resize(kLongestHolder);
  for (char& letter : text) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  const size_t space = text.find(' ');
  const std::string pid = text.substr(0, space);
  if (pid.empty()) return "another process";
  const std::string host = space == std::string::npos ? "" : text.substr(space + 1);
  return "process " + pid + (host.empty() ? "" : " of host " + host);
}

// Of a LOCK that may have been removed.
Status HeldByAnother(FileSystem* files, const std::string& folder) {
  std::string text;
  (void)ReadWholeFile(files, folder + "/" + kLockName, &text).ok();
  return Status(StatusCode::kStore,
                folder + ": the store is open for writing by " + HolderInWords(std::move(text)) +
                    "; end it first" + kReadBeside,
                EAGAIN);
}

}  // namespace

Status LockFolder(FileSystem* files, const std::string& folder, std::unique_ptr<File>* lock) {
  // The folder first: who finds its lock taken has not put a LOCK beside the one that is held.
  bool taken = false;
  HPS_RETURN_IF_ERROR(files->TryLockFolder(&taken));
  if (!taken) return HeldByAnother(files, folder);
  const std::string path = folder + "/" + kLockName;
  const Status opened = files->Open(path, OpenMode::kCreate, lock);
  if (opened.os_error() == EACCES || opened.os_error() == EROFS) {
    return Status(opened.code(), opened.message() + kReadInstead, opened.os_error());
  }
  HPS_RETURN_IF_ERROR(opened);
  HPS_RETURN_IF_ERROR((*lock)->TryLock(true, &taken));
  if (!taken) return HeldByAnother(files, folder);
  files->Guard(lock->get());
  HPS_RETURN_IF_ERROR(files->CheckHeld());
  const std::string holder = std::to_string(getpid()) + " " + HostName();
  HPS_RETURN_IF_ERROR((*lock)->Truncate(0));
  return (*lock)->Write(0, holder.data(), holder.size());
}

}  // namespace hps
