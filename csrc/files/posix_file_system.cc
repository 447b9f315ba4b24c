// The production FileSystem: files and folders by plain POSIX calls, batches by a ring or threads.
//
// Above it: file_system.h. Below it: posix_file, held_folder, batch_read, the kernel. Every name
// goes through At: of a layer that holds a folder, names in it are looked up from its descriptor.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/hash.h"
#include "files/batch_read.h"
#include "files/held_folder.h"

namespace hps {
namespace {

constexpr uint64_t kFewReads = 3;  // not worth a ring
constexpr char kBootPath[] = "/proc/sys/kernel/random/boot_id";

int FlagsOf(OpenMode mode) {
  switch (mode) {
    case OpenMode::kRead:
    case OpenMode::kReadScattered:
      return O_RDONLY;
    case OpenMode::kReadDirect:
      return O_RDONLY | O_DIRECT;
    case OpenMode::kReadWrite:
      return O_RDWR;
    case OpenMode::kCreate:
      return O_RDWR | O_CREAT;
    case OpenMode::kCreateNew:
      return O_RDWR | O_CREAT | O_EXCL;
  }
  return O_RDONLY;
}

// Where a path leads: a name, looked up from a folder.
struct Place {
  int folder = AT_FDCWD;
  std::string name;
};

class PosixFiles : public FileSystem {
 public:
  explicit PosixFiles(BatchMethod method) : method_(method) {}

  virtual Place At(const std::string& path) const { return {AT_FDCWD, path}; }
  Status HoldFolder(const std::string& path, std::unique_ptr<FileSystem>* held) override;

  Status Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) override {
    const Place place = At(path);
    int descriptor = -1;
    do {
      descriptor = openat(place.folder, place.name.c_str(), FlagsOf(mode) | O_CLOEXEC, 0644);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0 && errno == EINVAL && mode == OpenMode::kReadDirect) {
      return Status(StatusCode::kConfig,
                    path +
                        ": the file system has no direct I/O; use "
                        "direct_io=False, or another file system",
                    EINVAL);
    }
    if (descriptor < 0) return SystemError("open", path, errno);
    if (mode == OpenMode::kReadScattered) posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);
    *file = std::make_unique<PosixFile>(path, descriptor, mode == OpenMode::kReadDirect);
    return Status::Ok();
  }

  Status Rename(const std::string& source, const std::string& target) override {
    const Place from = At(source);
    const Place to = At(target);
    if (renameat(from.folder, from.name.c_str(), to.folder, to.name.c_str()) == 0) {
      return Status::Ok();
    }
    return SystemError("rename to", target, errno);
  }

  Status SyncFolder(const std::string& path) override {
    const int descriptor = OpenFolder(path);
    if (descriptor < 0) return SystemError("open folder", path, errno);
    int result = 0;
    do {
      result = fsync(descriptor);
    } while (result != 0 && errno == EINTR);
    const int error = errno;
    close(descriptor);
    if (result != 0) return SystemError("fsync of folder", path, error);
    return Status::Ok();
  }

  Status Unlink(const std::string& path) override {
    const Place place = At(path);
    if (unlinkat(place.folder, place.name.c_str(), 0) == 0) return Status::Ok();
    return SystemError("remove", path, errno);
  }

  std::unique_ptr<File> Hold(const std::string& path) override {
    std::unique_ptr<File> file;
    (void)Open(path, OpenMode::kRead, &file).ok();
    return file;
  }

  Status Link(const std::string& source, const std::string& target) override {
    const Place from = At(source);
    const Place to = At(target);
    if (linkat(from.folder, from.name.c_str(), to.folder, to.name.c_str(), 0) == 0) {
      return Status::Ok();
    }
    return SystemError("link " + source + " to", target, errno);
  }

  Status List(const std::string& path, std::vector<std::string>* names) override {
    names->clear();
    const int descriptor = OpenFolder(path);
    DIR* folder = descriptor < 0 ? nullptr : fdopendir(descriptor);
    if (folder == nullptr) {
      const int refusal = errno;
      if (descriptor >= 0) close(descriptor);
      return SystemError("list", path, refusal);
    }
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
    const Place place = At(path);
    struct stat facts;
    if (mkdirat(place.folder, place.name.c_str(), 0755) != 0 && errno != EEXIST) {
      return SystemError("make folder", path, errno);
    }
    if (fstatat(place.folder, place.name.c_str(), &facts, 0) != 0) {
      return SystemError("stat", path, errno);
    }
    if (!S_ISDIR(facts.st_mode)) return SystemError("make folder", path, ENOTDIR);
    return Status::Ok();
  }

  bool Exists(const std::string& path) override {
    const Place place = At(path);
    return faccessat(place.folder, place.name.c_str(), F_OK, 0) == 0;
  }

  uint64_t BootNumber() override {
    const int descriptor = open(kBootPath, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return 0;
    char text[64];
    const ssize_t count = read(descriptor, text, sizeof(text));
    close(descriptor);
    return count > 0 ? Xxh64(text, static_cast<size_t>(count), 0) : 0;
  }

  Status ReadBatch(const BatchRead* reads, uint64_t count, const ReadSink& sink) override {
    if (count <= kFewReads) return FileSystem::ReadBatch(reads, count, sink);
    if (method_ == BatchMethod::kRing) {
      const auto depth = static_cast<uint32_t>(std::min<uint64_t>(count, kRingDepth));
      const std::unique_ptr<ReadRing> ring = ReadRing::Create(depth);
      if (ring != nullptr) return ReadByRing(ring.get(), &buffers_, reads, count, sink);
    }
    return ReadByThreads(reads, count, sink);
  }

 private:
  int OpenFolder(const std::string& path) const {
    const Place place = At(path);
    return openat(place.folder, place.name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }

  BatchMethod method_;
  ReadBuffers buffers_;
};

class HeldPosixFiles final : public PosixFiles {
 public:
  // `files` lives longer.
  HeldPosixFiles(PosixFiles* files, BatchMethod method, std::unique_ptr<HeldFolder> folder)
      : PosixFiles(method), files_(files), folder_(std::move(folder)) {}

  Place At(const std::string& path) const override {
    Place place{folder_->descriptor(), {}};
    return folder_->Contains(path, &place.name) ? place : files_->At(path);
  }
  Status TryLockFolder(bool* taken) override { return folder_->TryLock(taken); }
  void UnlockFolder() override {
    folder_->Unlock();
    folder_->Guard(-1, {});
  }
  void Guard(const File* lock) override {
    folder_->Guard(static_cast<const PosixFile*>(lock)->descriptor(), lock->path());
  }
  Status CheckHeld() override { return folder_->Check(); }
  int folder_descriptor() const override { return folder_->descriptor(); }
  Status ReadBatch(const BatchRead* reads, uint64_t count, const ReadSink& sink) override {
    return files_->ReadBatch(reads, count, sink);  // which has the buffers
  }

 private:
  PosixFiles* files_;
  std::unique_ptr<HeldFolder> folder_;
};

Status PosixFiles::HoldFolder(const std::string& path, std::unique_ptr<FileSystem>* held) {
  std::unique_ptr<HeldFolder> folder;
  HPS_RETURN_IF_ERROR(HeldFolder::Open(path, &folder));
  *held = std::make_unique<HeldPosixFiles>(this, method_, std::move(folder));
  return Status::Ok();
}

}  // namespace

Status FileSystem::Link(const std::string& source, const std::string& target) {
  return SystemError("link " + source + " to", target, EOPNOTSUPP);
}

BatchMethod GrantedBatchMethod() {
  static const bool has_ring = ReadRing::Create(kRingDepth) != nullptr;
  return has_ring ? BatchMethod::kRing : BatchMethod::kThreads;
}

FileSystem* PosixFileSystem() {
  static PosixFiles files(GrantedBatchMethod());
  return &files;
}

std::unique_ptr<FileSystem> MakePosixFileSystem(BatchMethod method) {
  return std::make_unique<PosixFiles>(method);
}

}  // namespace hps
