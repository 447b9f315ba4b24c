// The production FileSystem: files and folders by plain POSIX calls, batches by a ring or threads.
//
// Above it: file_system.h. Below it: posix_file, batch_read, the kernel.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/hash.h"
#include "ssd_store/batch_read.h"

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

class PosixFiles final : public FileSystem {
 public:
  explicit PosixFiles(BatchMethod method) : method_(method) {}

  Status Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) override {
    int descriptor = -1;
    do {
      descriptor = open(path.c_str(), FlagsOf(mode) | O_CLOEXEC, 0644);
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

  std::unique_ptr<File> Hold(const std::string& path) override {
    std::unique_ptr<File> file;
    (void)Open(path, OpenMode::kRead, &file).ok();
    return file;
  }

  Status Link(const std::string& source, const std::string& target) override {
    if (link(source.c_str(), target.c_str()) == 0) return Status::Ok();
    return SystemError("link " + source + " to", target, errno);
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
    struct stat facts;
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
      return SystemError("make folder", path, errno);
    }
    if (stat(path.c_str(), &facts) != 0) return SystemError("stat", path, errno);
    if (!S_ISDIR(facts.st_mode)) return SystemError("make folder", path, ENOTDIR);
    return Status::Ok();
  }

  bool Exists(const std::string& path) override { return access(path.c_str(), F_OK) == 0; }

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
  BatchMethod method_;
  ReadBuffers buffers_;
};

}  // namespace

Status FileSystem::Link(const std::string& source, const std::string& target) {
  return SystemError("link " + source + " to", target, EOPNOTSUPP);
}

FileSystem* PosixFileSystem() {
  static PosixFiles files(ReadRing::Create(kRingDepth) != nullptr ? BatchMethod::kRing
                                                                  : BatchMethod::kThreads);
  return &files;
}

std::unique_ptr<FileSystem> MakePosixFileSystem(BatchMethod method) {
  return std::make_unique<PosixFiles>(method);
}

}  // namespace hps
