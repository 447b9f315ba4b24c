// FileSystem and File: every call that the stores make to the operating system goes through these.
//
// Above them: ssd_store and update_log. Below them: POSIX (posix_file_system.cc), or in tests a
// layer that fails the Nth call, forgets unsynced bytes or tears a write
// (tests/native/fault_file_system.h). They are virtual for that reason alone; one call moves a
// whole batch, so the indirection costs nothing. Thread-safety: a FileSystem is safe to share; a
// File too, as long as writes do not overlap.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"

namespace hps {

enum class OpenMode {
  kRead,           // must exist
  kReadScattered,  // must exist; read in small pieces here and there, so nothing is read ahead
  kReadDirect,     // must exist; read past the page cache. kConfig where the file system refuses
  kReadWrite,      // must exist
  kCreate,         // read and write, made if missing
  kCreateNew,      // read and write, must not exist
};

class File {
 public:
  virtual ~File() = default;

  const std::string& path() const { return path_; }

  // Reads exactly `size` bytes; a file that ends before is kCorruption (naming path and offset).
  virtual Status Read(uint64_t offset, uint64_t size, void* bytes) = 0;
  // Reads them only if the system has them in memory; false (bytes undefined) where it would have
  // to wait, or for any error, which Read will then name. The system may begin to read what it
  // lacks: where that is likely, ask IsCached first.
  virtual bool ReadCached(uint64_t offset, uint64_t size, void* bytes);
  // Whether the system has all of a range in memory, as far as it tells; reads nothing.
  virtual bool IsCached(uint64_t offset, uint64_t size);
  // Writes all of `size` bytes. After an error the range holds old, new or torn bytes.
  virtual Status Write(uint64_t offset, const void* bytes, uint64_t size) = 0;
  // Reserves the disk space of a range; the file's size stays. kStore with ENOSPC when the disk is
  // full.
  virtual Status Allocate(uint64_t offset, uint64_t size) = 0;
  virtual Status Truncate(uint64_t size) = 0;
  virtual Status SyncData() = 0;
  // Lets the system begin to write a range to disk, so that SyncData has less to wait for.
  virtual void StartWriteback(uint64_t offset, uint64_t size);
  virtual Status Size(uint64_t* size) = 0;
  // Takes an advisory lock on the whole file without waiting; *taken tells whether it was free.
  virtual Status TryLock(bool exclusive, bool* taken) = 0;
  // Whether some name still leads to the file.
  virtual Status IsLinked(bool* linked) = 0;

 protected:
  explicit File(std::string path) : path_(std::move(path)) {}

 private:
  std::string path_;
};

// One read of a batch; the file is one that the same FileSystem opened.
struct BatchRead {
  File* file = nullptr;
  uint64_t offset = 0;
  uint64_t size = 0;
};
// Takes the bytes of read number `read`; they are gone when it returns. Several threads may call it
// at once, each for other reads.
using ReadSink = std::function<Status(uint64_t read, const char* bytes)>;

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual Status Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) = 0;
  virtual Status Rename(const std::string& source, const std::string& target) = 0;
  // Makes the names in a folder (creations, renames, removals) durable.
  virtual Status SyncFolder(const std::string& path) = 0;
  virtual Status Unlink(const std::string& path) = 0;
  // Opens a file that is about to lose its name: then its space is given back, which takes a while,
  // when the result goes and not in Unlink. nullptr where that cannot be. Here: nullptr.
  virtual std::unique_ptr<File> Hold(const std::string& path);
  // Makes `target`, which must not exist, another name of the file `source`. kStore with EOPNOTSUPP
  // or EXDEV where that cannot be.
  virtual Status Link(const std::string& source, const std::string& target);
  virtual Status List(const std::string& path, std::vector<std::string>* names) = 0;
  // Makes a folder in one that is there; no error if it exists.
  virtual Status CreateFolder(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;

  // A layer over this one that holds the folder `path` (absolute, there): names in it lead into
  // that folder, wherever it is moved to and whatever takes its path; all others lead where they
  // lead here. nullptr where a layer holds nothing: then this one is used instead. Here: nullptr.
  virtual Status HoldFolder(const std::string& path, std::unique_ptr<FileSystem>* held);
  // Of such a layer, as HeldFolder has them (held_folder.h). `lock` is a file that it has opened,
  // and outlives the last CheckHeld. Here: the lock is granted, all is as it was.
  virtual Status TryLockFolder(bool* taken);
  virtual void UnlockFolder();  // and no file is guarded any more
  virtual void Guard(const File* lock);
  virtual Status CheckHeld();
  // Of the held folder; -1 for none.
  virtual int folder_descriptor() const;

  // Another number after each start of the machine: what was written under the same one can be
  // read, synced or not. 0: nobody can tell. Here: 0.
  virtual uint64_t BootNumber();

  // Reads all, in any order, many of them under way at once, through a bounded number of buffers.
  // After an error, of a read or of the sink, no further read is begun; some may have been sunk.
  // Here: one after the other.
  virtual Status ReadBatch(const BatchRead* reads, uint64_t count, const ReadSink& sink);
};

// How POSIX files answer ReadBatch.
enum class BatchMethod {
  kRing,     // io_uring, which not every host grants
  kThreads,  // blocking reads by threads
};

// The best method that this machine grants.
BatchMethod GrantedBatchMethod();
// The operating system's files, with the best method that it grants. Lives as long as the process.
FileSystem* PosixFileSystem();
// The same with a chosen method; the ring still gives way to threads where it is refused.
std::unique_ptr<FileSystem> MakePosixFileSystem(BatchMethod method);

// kStore: what was tried, on which path, and the system's own words for `error` (an errno value).
// Of a full disk it advises to repeat the call, as it is right for all calls but those after which
// nobody knows what the disk holds.
Status SystemError(const std::string& action, const std::string& path, int error);
// Its message for a caller that may not repeat the call.
std::string WithoutAdvice(const std::string& message);
// kStore with EPERM: `what` was opened by process `owner`, of which this one was forked.
Status ForkedError(const std::string& what, int owner);

// The folder that holds `path`.
std::string ParentOf(const std::string& path);
// Makes a folder and those above it that are missing; each one made is durable when this returns.
Status CreateFolders(FileSystem* files, const std::string& path);
// The first name in a folder, by its letters, that is none of `own`; "" if there is none. One of
// `own` that ends in '*' is every name that begins so.
Status FindForeign(FileSystem* files, const std::string& folder,
                   const std::vector<std::string>& own, std::string* found);
// Reads a whole file.
Status ReadWholeFile(FileSystem* files, const std::string& path, std::string* bytes);
// Makes `path` (which must not exist) of `bytes`, space reserved first, synced at the end.
Status WriteNewFile(FileSystem* files, const std::string& path, const std::string& bytes);

}  // namespace hps
