// What every FileSystem shares: reads one after the other, whole files, the wording of errors.
//
// Above it: file_system.h. Below it: whichever FileSystem is given.
#include "files/file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace hps {
namespace {

constexpr std::string_view kAdvice = "; nothing stored was lost: free space and repeat the call";

}  // namespace

bool File::ReadCached(uint64_t, uint64_t, void*) { return false; }
bool File::IsCached(uint64_t, uint64_t) { return false; }

void File::StartWriteback(uint64_t, uint64_t) {}

std::unique_ptr<File> FileSystem::Hold(const std::string&) { return nullptr; }

Status FileSystem::HoldFolder(const std::string&, std::unique_ptr<FileSystem>*) {
  return Status::Ok();
}

Status FileSystem::TryLockFolder(bool* taken) {
  *taken = true;
  return Status::Ok();
}

void FileSystem::UnlockFolder() {}

void FileSystem::Guard(const File*) {}

Status FileSystem::CheckHeld() { return Status::Ok(); }

int FileSystem::folder_descriptor() const { return -1; }

uint64_t FileSystem::BootNumber() { return 0; }

Status FileSystem::ReadBatch(const BatchRead* reads, uint64_t count, const ReadSink& sink) {
  uint64_t largest = 0;
  for (uint64_t i = 0; i < count; ++i) largest = std::max(largest, reads[i].size);
  const std::unique_ptr<char[]> buffer(new char[largest]);
  for (uint64_t i = 0; i < count; ++i) {
    HPS_RETURN_IF_ERROR(reads[i].file->Read(reads[i].offset, reads[i].size, buffer.get()));
    HPS_RETURN_IF_ERROR(sink(i, buffer.get()));
  }
  return Status::Ok();
}

Status SystemError(const std::string& action, const std::string& path, int error) {
  std::string message = "cannot " + action + " " + path + ": " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) message += kAdvice;
  return Status(StatusCode::kStore, message, error);
}

std::string WithoutAdvice(const std::string& message) {
  return message.ends_with(kAdvice) ? message.substr(0, message.size() - kAdvice.size()) : message;
}

Status ForkedError(const std::string& what, int owner) {
  return Status(StatusCode::kStore,
                what + ": process " + std::to_string(owner) +
                    " has it open, and this process was forked from it, without its threads and "
                    "its lock; start processes by the method 'spawn', and open there what they "
                    "need, for reading beside a writer: hps.open(path, read_only=True)",
                EPERM);
}

std::string ParentOf(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  const size_t slash = last == std::string::npos ? last : path.rfind('/', last);
  if (slash == std::string::npos) return last == std::string::npos ? "/" : ".";
  const size_t end = path.find_last_not_of('/', slash);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

Status CreateFolders(FileSystem* files, const std::string& path) {
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string folder = path.substr(0, end);
    const bool is_there = files->Exists(folder);
    if (is_there && end != std::string::npos) continue;
    HPS_RETURN_IF_ERROR(files->CreateFolder(folder));
    if (!is_there) HPS_RETURN_IF_ERROR(files->SyncFolder(ParentOf(folder)));
  }
  return Status::Ok();
}

Status FindForeign(FileSystem* files, const std::string& folder,
                   const std::vector<std::string>& own, std::string* found) {
  found->clear();
  std::vector<std::string> names;
  HPS_RETURN_IF_ERROR(files->List(folder, &names));
  for (const std::string& name : names) {
    const bool is_own = std::any_of(own.begin(), own.end(), [&name](const std::string& one) {
      return one.ends_with('*') ? name.starts_with(one.substr(0, one.size() - 1)) : name == one;
    });
    if (!is_own && (found->empty() || name < *found)) *found = name;
  }
  return Status::Ok();
}

Status ReadWholeFile(FileSystem* files, const std::string& path, std::string* bytes) {
  std::unique_ptr<File> file;
  HPS_RETURN_IF_ERROR(files->Open(path, OpenMode::kRead, &file));
  uint64_t size = 0;
  HPS_RETURN_IF_ERROR(file->Size(&size));
  bytes->resize(size);
  return file->Read(0, size, bytes->data());
}

Status WriteNewFile(FileSystem* files, const std::string& path, const std::string& bytes) {
  std::unique_ptr<File> file;
  HPS_RETURN_IF_ERROR(files->Open(path, OpenMode::kCreateNew, &file));
  if (!bytes.empty()) HPS_RETURN_IF_ERROR(file->Allocate(0, bytes.size()));
  HPS_RETURN_IF_ERROR(file->Write(0, bytes.data(), bytes.size()));
  return file->SyncData();
}

}  // namespace hps
