// The production FileSystem: plain POSIX calls, retried on EINTR and on short transfers.
//
// Above it: file_system.h. Below it: the kernel.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ssd_store/file_system.h"

namespace hps {
namespace {

constexpr uint64_t kLargestTransfer = uint64_t{1}
                                      << 30;  // the kernel moves just under 2 GiB a call

class PosixFile final : public File {
 public:
  PosixFile(std::string path, int descriptor) : File(std::move(path)), descriptor_(descriptor) {}
  ~PosixFile() override { close(descriptor_); }

  Status Read(uint64_t offset, uint64_t size, void* bytes) override {
    char* target = static_cast<char*>(bytes);
    while (size > 0) {
      const ssize_t count =
          pread(descriptor_, target, std::min(size, kLargestTransfer), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return SystemError("read", path(), errno);
      if (count == 0) {
        return Status(StatusCode::kCorruption, path() + ": offset " + std::to_string(offset) +
                                                   ": the file ends here, " + std::to_string(size) +
                                                   " more bytes expected");
      }
      target += count;
      offset += static_cast<uint64_t>(count);
      size -= static_cast<uint64_t>(count);
    }
    return Status::Ok();
  }

  Status Write(uint64_t offset, const void* bytes, uint64_t size) override {
    const char* source = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t count =
          pwrite(descriptor_, source, std::min(size, kLargestTransfer), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return SystemError("write", path(), count < 0 ? errno : EIO);
      source += count;
      offset += static_cast<uint64_t>(count);
      size -= static_cast<uint64_t>(count);
    }
    return Status::Ok();
  }

  Status Allocate(uint64_t offset, uint64_t size) override {
    int result = 0;
    do {
      result = fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                         static_cast<off_t>(size));
    } while (result != 0 && errno == EINTR);
    // A file system without reservation reports a full disk at the write instead.
    if (result != 0 && errno != EOPNOTSUPP) return SystemError("reserve space in", path(), errno);
    return Status::Ok();
  }

  Status Truncate(uint64_t size) override {
    if (ftruncate(descriptor_, static_cast<off_t>(size)) != 0) {
      return SystemError("truncate", path(), errno);
    }
    return Status::Ok();
  }

  Status SyncData() override {
    if (fdatasync(descriptor_) != 0) return SystemError("fdatasync", path(), errno);
    return Status::Ok();
  }

  Status Size(uint64_t* size) override {
    struct stat facts;
    if (fstat(descriptor_, &facts) != 0) return SystemError("stat", path(), errno);
    *size = static_cast<uint64_t>(facts.st_size);
    return Status::Ok();
  }

  Status TryLock(bool exclusive, bool* taken) override {
    *taken = flock(descriptor_, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0;
    if (!*taken && errno != EWOULDBLOCK) return SystemError("lock", path(), errno);
    return Status::Ok();
  }

  Status IsLinked(bool* linked) override {
    struct stat facts;
    if (fstat(descriptor_, &facts) != 0) return SystemError("stat", path(), errno);
    *linked = facts.st_nlink > 0;
    return Status::Ok();
  }

 private:
  int descriptor_;
};

class PosixFiles final : public FileSystem {
 public:
  Status Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) override {
    int flags = O_CLOEXEC | (mode == OpenMode::kRead ? O_RDONLY : O_RDWR);
    if (mode == OpenMode::kCreate) flags |= O_CREAT;
    if (mode == OpenMode::kCreateNew) flags |= O_CREAT | O_EXCL;
    int descriptor = -1;
    do {
      descriptor = open(path.c_str(), flags, 0644);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0) return SystemError("open", path, errno);
    *file = std::make_unique<PosixFile>(path, descriptor);
    return Status::Ok();
  }

  Status Rename(const std::string& source, const std::string& target) override {
    if (rename(source.c_str(), target.c_str()) != 0) return SystemError("rename to", target, errno);
    return Status::Ok();
  }

  Status SyncFolder(const std::string& path) override {
    const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return SystemError("open folder", path, errno);
    const int result = fsync(descriptor);
    const int error = errno;
    close(descriptor);
    if (result != 0) return SystemError("fsync of folder", path, error);
    return Status::Ok();
  }

  Status Unlink(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return SystemError("remove", path, errno);
    return Status::Ok();
  }

  Status Link(const std::string& source, const std::string& target) override {
    if (link(source.c_str(), target.c_str()) != 0) return SystemError("link to", target, errno);
    return Status::Ok();
  }

  Status List(const std::string& path, std::vector<std::string>* names) override {
    names->clear();
    DIR* folder = opendir(path.c_str());
    if (folder == nullptr) return SystemError("list", path, errno);
    errno = 0;
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names->push_back(name);
    }
    const int error = errno;
    closedir(folder);
    if (error != 0) return SystemError("list", path, error);
    return Status::Ok();
  }

  Status CreateFolder(const std::string& path) override {
    for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
      mkdir(path.substr(0, end).c_str(), 0755);  // the last one tells whether all went well
    }
    struct stat facts;
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
      return SystemError("make folder", path, errno);
    }
    if (stat(path.c_str(), &facts) != 0) return SystemError("stat", path, errno);
    if (!S_ISDIR(facts.st_mode)) return SystemError("make folder", path, ENOTDIR);
    return Status::Ok();
  }

  bool Exists(const std::string& path) override { return access(path.c_str(), F_OK) == 0; }
};

}  // namespace

Status FileSystem::Link(const std::string&, const std::string& target) {
  return SystemError("link to", target, EOPNOTSUPP);
}

FileSystem* PosixFileSystem() {
  static PosixFiles files;
  return &files;
}

Status SystemError(const std::string& action, const std::string& path, int error) {
  std::string message = "cannot " + action + " " + path + ": " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    message += "; nothing stored was lost: free space and repeat the call";
  }
  return Status(StatusCode::kStore, message, error);
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
