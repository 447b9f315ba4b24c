// Batch reads of files: by the ring, by threads, one by one, direct and through the page cache, all
// bring the same bytes and name the same faults; a ring that answers badly changes nothing.
//
// Above it: ctest. Below it: file_system.h, batch_read, read_ring.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"
#include "files/batch_read.h"
#include "scratch_store.h"

namespace hps {
namespace {

constexpr uint64_t kFileBytes = 300001;
constexpr uint64_t kNumFiles = 3;

// The calls of FileSystem's own ReadBatch: one read after the other.
class OneByOne final : public FileSystem {
 public:
  Status Open(const std::string& path, OpenMode mode, std::unique_ptr<File>* file) override {
    return PosixFileSystem()->Open(path, mode, file);
  }
  Status Rename(const std::string&, const std::string&) override { return Status::Ok(); }
  Status SyncFolder(const std::string&) override { return Status::Ok(); }
  Status Unlink(const std::string&) override { return Status::Ok(); }
  Status List(const std::string&, std::vector<std::string>*) override { return Status::Ok(); }
  Status CreateFolder(const std::string&) override { return Status::Ok(); }
  bool Exists(const std::string&) override { return false; }
};

struct Path {
  std::string name;
  FileSystem* files;
  OpenMode mode;
};

class Lab {
 public:
  Lab() {
    std::mt19937_64 random(1);
    for (uint64_t i = 0; i < kNumFiles; ++i) {
      contents_.emplace_back(kFileBytes, '\0');
      for (char& byte : contents_.back()) byte = static_cast<char>(random());
      std::ofstream(Name(i), std::ios::binary) << contents_.back();
    }
    for (const auto& [name, files] : {std::pair<const char*, FileSystem*>{"ring", ring_.get()},
                                      {"threads", threads_.get()},
                                      {"one by one", &one_by_one_}}) {
      paths_.push_back({name, files, OpenMode::kReadScattered});
      std::unique_ptr<File> file;
      const Status direct = files->Open(Name(0), OpenMode::kReadDirect, &file);
      if (direct.ok())
        paths_.push_back({name + std::string(", direct"), files, OpenMode::kReadDirect});
      HPS_CHECK(direct.ok() || direct.code() == StatusCode::kConfig);
    }
    std::printf("ring %s, %zu paths\n", HasRing() ? "granted" : "refused", paths_.size());
  }

  static bool HasRing() { return ReadRing::Create(kRingDepth) != nullptr; }
  std::string Name(uint64_t file) const { return folder() + "/file" + std::to_string(file); }
  const std::string& folder() const { return folder_.path(); }
  const std::string& contents(uint64_t file) const { return contents_[file]; }
  const std::vector<Path>& paths() const { return paths_; }

 private:
  ScratchFolder folder_{ScratchFolder::Where::kDisk};
  std::vector<std::string> contents_;
  std::unique_ptr<FileSystem> ring_ = MakePosixFileSystem(BatchMethod::kRing);
  std::unique_ptr<FileSystem> threads_ = MakePosixFileSystem(BatchMethod::kThreads);
  OneByOne one_by_one_;
  std::vector<Path> paths_;
};

// Reads at random, of all sizes, some of which end with their file.
struct RandomBatch {
  std::vector<std::unique_ptr<File>> files;
  std::vector<BatchRead> reads;
  std::vector<uint64_t> file_of;

  RandomBatch(const Lab& lab, FileSystem* system, OpenMode mode, uint64_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (uint64_t i = 0; i < kNumFiles; ++i) {
      files.emplace_back();
      HPS_CHECK(system->Open(lab.Name(i), mode, &files.back()).ok());
    }
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t longest = random() % 8 == 0 ? 70000 : 300;
      const uint64_t size = 1 + random() % longest;
      const bool is_last = random() % 16 == 0;
      const uint64_t offset = is_last ? kFileBytes - size : random() % (kFileBytes - size + 1);
      file_of.push_back(random() % kNumFiles);
      reads.push_back({files[file_of.back()].get(), offset, size});
    }
  }
};

// A sink that compares what it is given, and counts.
class Compared {
 public:
  Compared(const Lab& lab, const RandomBatch& batch)
      : lab_(lab), batch_(batch), times_(batch.reads.size()) {}

  Status Take(uint64_t read, const char* bytes) {
    const BatchRead& wanted = batch_.reads[read];
    const std::string& whole = lab_.contents(batch_.file_of[read]);
    HPS_CHECK(std::memcmp(bytes, whole.data() + wanted.offset, wanted.size) == 0);
    ++times_[read];  // each read's own
    return Status::Ok();
  }
  bool IsEachOnce() const {
    for (const int times : times_) {
      if (times != 1) return false;
    }
    return true;
  }

 private:
  const Lab& lab_;
  const RandomBatch& batch_;
  std::vector<int> times_;
};

void TestEveryPathBringsTheSameBytes(const Lab& lab) {
  for (const Path& path : lab.paths()) {
    for (const uint64_t count : {0, 1, 3, 4, 63, 500}) {
      const RandomBatch batch(lab, path.files, path.mode, count, count);
      Compared compared(lab, batch);
      const Status status = path.files->ReadBatch(
          batch.reads.data(), count,
          [&](uint64_t read, const char* bytes) { return compared.Take(read, bytes); });
      HPS_CHECK(status.ok() && compared.IsEachOnce());
    }
  }
}

void TestPlainReadsAgreeToo(const Lab& lab) {
  for (const Path& path : lab.paths()) {
    const RandomBatch batch(lab, path.files, path.mode, 60, 7);
    Compared compared(lab, batch);
    std::vector<char> bytes(70000);
    uint64_t num_cached = 0;
    for (uint64_t i = 0; i < batch.reads.size(); ++i) {
      const BatchRead& read = batch.reads[i];
      HPS_CHECK(read.file->Read(read.offset, read.size, bytes.data()).ok());
      (void)compared.Take(i, bytes.data()).ok();
      std::fill(bytes.begin(), bytes.end(), '\0');
      if (!read.file->ReadCached(read.offset, read.size, bytes.data())) continue;
      ++num_cached;
      (void)compared.Take(i, bytes.data()).ok();
    }
    HPS_CHECK(num_cached == 0 || path.mode == OpenMode::kReadScattered);
    std::printf("%s: %llu of 60 from the page cache\n", path.name.c_str(),
                static_cast<unsigned long long>(num_cached));
    HPS_CHECK(!batch.reads[0].file->ReadCached(kFileBytes - 1, 2, bytes.data()));
    std::vector<char> whole(kFileBytes);
    HPS_CHECK(batch.files[0]->Read(0, kFileBytes, whole.data()).ok());
    HPS_CHECK(std::memcmp(whole.data(), lab.contents(0).data(), kFileBytes) == 0);
    const Status beyond = batch.files[0]->Read(1, kFileBytes, whole.data());
    HPS_CHECK(beyond.code() == StatusCode::kCorruption);
  }
}

void TestAFileThatEndsEarlyIsNamed(const Lab& lab) {
  for (const Path& path : lab.paths()) {
    for (const uint64_t beyond : {1, 5000}) {
      RandomBatch batch(lab, path.files, path.mode, 40, 11);
      batch.reads[20] = {batch.files[1].get(), kFileBytes - 9, 9 + beyond};
      const Status status =
          path.files->ReadBatch(batch.reads.data(), 40, [&](uint64_t read, const char*) {
            HPS_CHECK(read != 20);
            return Status::Ok();
          });
      HPS_CHECK(status.code() == StatusCode::kCorruption);
      const std::string where = lab.Name(1) + ": offset " + std::to_string(kFileBytes);
      const std::string missing = ", " + std::to_string(beyond) + " more bytes";
      HPS_CHECK(status.message().find(where) == 0);
      HPS_CHECK(status.message().find(missing) != std::string::npos);
    }
  }
}

void TestARefusedReadIsNamed(const Lab& lab) {
  for (const Path& path : lab.paths()) {
    if (path.mode == OpenMode::kReadDirect) continue;
    RandomBatch batch(lab, path.files, path.mode, 40, 12);
    std::unique_ptr<File> folder;  // the system opens a folder, but reads nothing from it
    HPS_CHECK(path.files->Open(lab.folder(), OpenMode::kRead, &folder).ok());
    batch.reads[20] = {folder.get(), 77, 10};
    const Status status = path.files->ReadBatch(batch.reads.data(), 40,
                                                [](uint64_t, const char*) { return Status::Ok(); });
    HPS_CHECK(status.code() == StatusCode::kStore && status.os_error() == EISDIR);
    HPS_CHECK(status.message().find("offset 77 of " + lab.folder() + ":") != std::string::npos);
  }
}

void TestAnErrorOfTheSinkEndsTheBatch(const Lab& lab) {
  for (const Path& path : lab.paths()) {
    const RandomBatch batch(lab, path.files, path.mode, 2000, 13);
    std::mutex mutex;
    uint64_t num_sunk = 0;
    const Status status =
        path.files->ReadBatch(batch.reads.data(), 2000, [&](uint64_t read, const char*) {
          const std::lock_guard<std::mutex> lock(mutex);
          ++num_sunk;
          return read == 5 ? Status(StatusCode::kCorruption, "the fifth") : Status::Ok();
        });
    HPS_CHECK(status.message() == "the fifth");
    HPS_CHECK(num_sunk < 1500);
  }
}

void TestDirectIoIsRefusedByName() {
  std::unique_ptr<File> file;
  const Status status = PosixFileSystem()->Open("/proc/self/status", OpenMode::kReadDirect, &file);
  HPS_CHECK(status.code() == StatusCode::kConfig);
  HPS_CHECK(status.message().find("direct_io=False") != std::string::npos);
}

// A ring of the test's own: answers in random order, with short reads, EINTR and EAGAIN, and fails
// when told to.
class BadRing final : public ReadRing {
 public:
  BadRing(uint64_t seed, uint64_t unit) : random_(seed), unit_(unit) {}

  void Push(int descriptor, uint64_t offset, uint32_t size, void* bytes, uint64_t tag) override {
    noted_.push_back({descriptor, offset, size, bytes, tag});
  }
  int Wait() override {
    if (waits_left > 0 && --waits_left == 0) return ENXIO;
    if (waits_left == 0) return ENXIO;
    // As many as it likes are begun, the others stay noted.
    for (uint64_t i = random_() % (noted_.size() + 1); i > 0; --i) {
      begun_.push_back(noted_.front());
      noted_.pop_front();
    }
    return 0;
  }
  uint32_t Withdraw() override {
    const auto count = static_cast<uint32_t>(noted_.size());
    noted_.clear();
    return count;
  }
  bool Pop(uint64_t* tag, int32_t* result) override {
    if (begun_.empty() || random_() % 4 == 0) return false;
    std::swap(begun_[random_() % begun_.size()], begun_.back());
    const Request request = begun_.back();
    begun_.pop_back();
    *tag = request.tag;
    ++num_answers;
    switch (random_() % 6) {
      case 0:
        *result = -EINTR;
        return true;
      case 1:
        *result = -EAGAIN;
        return true;
      default:
        break;
    }
    uint64_t size = request.size;
    if (size > unit_ && random_() % 3 == 0) {
      size = (1 + random_() % (size / unit_)) * unit_;
      num_short += size < request.size;
    }
    if (error_at >= 0 && error_at-- == 0) {
      *result = -EIO;
      return true;
    }
    const ssize_t count =
        pread(request.descriptor, request.bytes, size, static_cast<off_t>(request.offset));
    HPS_CHECK(count >= 0);
    *result = static_cast<int32_t>(count);
    return true;
  }

  int waits_left = -1;  // until every further Wait fails; -1: none does
  int error_at = -1;    // the answer that is EIO
  uint64_t num_short = 0;
  uint64_t num_answers = 0;
  bool is_idle() const { return begun_.empty() && noted_.empty(); }

 private:
  struct Request {
    int descriptor;
    uint64_t offset;
    uint64_t size;
    void* bytes;
    uint64_t tag;
  };

  std::mt19937_64 random_;
  uint64_t unit_;
  std::deque<Request> noted_;
  std::deque<Request> begun_;
};

void TestABadRingStillBringsEveryByte(const Lab& lab) {
  uint64_t num_short = 0;
  ReadBuffers spare;
  for (const Path& path : lab.paths()) {
    if (path.name.find("one") == 0) continue;
    const bool is_direct = path.mode == OpenMode::kReadDirect;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const RandomBatch batch(lab, path.files, path.mode, 300, seed);
      BadRing ring(seed, is_direct ? kDirectAlignment : 1);
      Compared compared(lab, batch);
      const Status status =
          ReadByRing(&ring, &spare, batch.reads.data(), 300,
                     [&](uint64_t read, const char* bytes) { return compared.Take(read, bytes); });
      HPS_CHECK(status.ok() && compared.IsEachOnce() && ring.is_idle());
      num_short += ring.num_short;
    }
  }
  HPS_CHECK(num_short > 100);
}

void TestABrokenRingIsAnErrorAfterItsLastAnswer(const Lab& lab) {
  ReadBuffers spare;
  for (int round = 1; round < 40; ++round) {
    const RandomBatch batch(lab, PosixFileSystem(), OpenMode::kReadScattered, 300, 3);
    BadRing ring(static_cast<uint64_t>(round), 1);
    const bool is_wait = round % 2 == 0;
    (is_wait ? ring.waits_left : ring.error_at) = round;
    const Status status = ReadByRing(&ring, &spare, batch.reads.data(), 300,
                                     [](uint64_t, const char*) { return Status::Ok(); });
    HPS_CHECK(status.code() == StatusCode::kStore && ring.is_idle());
    HPS_CHECK(status.os_error() == (is_wait ? ENXIO : EIO));
    HPS_CHECK(status.message().find(lab.folder() + "/file") != std::string::npos);
    HPS_CHECK(is_wait || status.message().find("offset ") != std::string::npos);
  }
}

// More bytes than the buffer holds, several times over, and answers in any order.
void TestABufferThatIsFullIsUsedAgain(const Lab& lab) {
  constexpr uint64_t kCount = 400;
  ReadBuffers spare;
  for (const Path& path : lab.paths()) {
    if (path.name.find("one") == 0) continue;
    RandomBatch batch(lab, path.files, path.mode, kCount, 17);
    std::mt19937_64 random(18);
    uint64_t total = 0;
    for (BatchRead& read : batch.reads) {  // fewer than the ring's depth fit
      read.offset = random() % 50000;
      read.size = 100000 + random() % 150000;
      total += read.size;
    }
    HPS_CHECK(total > 3 * ReadBuffers::kBytes);
    const bool is_direct = path.mode == OpenMode::kReadDirect;
    for (const bool is_bad : {false, true}) {
      Compared compared(lab, batch);
      const ReadSink sink = [&](uint64_t read, const char* bytes) {
        return compared.Take(read, bytes);
      };
      BadRing ring(5, is_direct ? kDirectAlignment : 1);
      const Status status = is_bad ? ReadByRing(&ring, &spare, batch.reads.data(), kCount, sink)
                                   : path.files->ReadBatch(batch.reads.data(), kCount, sink);
      HPS_CHECK(status.ok() && compared.IsEachOnce());
    }
  }
}

bool HasKernelWorker() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.starts_with("iou-wrk-")) return true;
  }
  return false;
}

// The kernel is woken once an answer does not come; its waking is no answer to anyone.
void TestAKernelThatForgetsAReadIsReminded() {
  std::unique_ptr<ReadRing> ring = ReadRing::Create(2);
  if (ring == nullptr || HasKernelWorker()) return;
  int ends[2];
  HPS_CHECK(pipe(ends) == 0);
  char bytes[4] = {};
  uint64_t tag = 0;
  int32_t result = 0;
  alarm(60);  // a Wait that waits for the answer alone would never return
  ring->Push(ends[0], 0, sizeof(bytes), bytes, 7);
  for (int i = 0; i < 20 && !HasKernelWorker(); ++i) {
    HPS_CHECK(ring->Wait() == 0);
    HPS_CHECK(!ring->Pop(&tag, &result));
  }
  HPS_CHECK(HasKernelWorker());
  HPS_CHECK(write(ends[1], "abcd", 4) == 4);
  while (!ring->Pop(&tag, &result)) HPS_CHECK(ring->Wait() == 0);
  alarm(0);
  HPS_CHECK(tag == 7 && result == 4 && std::memcmp(bytes, "abcd", 4) == 0);
  HPS_CHECK(!ring->Pop(&tag, &result));
  close(ends[0]);
  close(ends[1]);
}

void TestAskingForThePageCacheReadsNothing(const Lab& lab) {
  std::unique_ptr<File> file;
  HPS_CHECK(PosixFileSystem()->Open(lab.Name(1), OpenMode::kReadScattered, &file).ok());
  const int descriptor = open(lab.Name(1).c_str(), O_RDONLY);
  HPS_CHECK(descriptor >= 0 && fsync(descriptor) == 0);
  std::vector<char> bytes(20000);
  for (int round = 0; round < 3; ++round) {
    HPS_CHECK(posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) == 0);
    if (file->IsCached(8192, 100)) {
      std::printf("this file system keeps its pages; asking for them is not tested\n");
      break;
    }
    usleep(20000);  // what the question had begun would be there by now
    HPS_CHECK(!file->IsCached(8192, 100));
    HPS_CHECK(file->Read(8192, 4096, bytes.data()).ok());
    HPS_CHECK(file->IsCached(8192, 4096) && file->IsCached(9000, 1));
    HPS_CHECK(!file->IsCached(8192, bytes.size()) && !file->IsCached(8192, 0));
  }
  close(descriptor);
}

}  // namespace
}  // namespace hps

int main() {
  hps::TestAKernelThatForgetsAReadIsReminded();  // first: no other test has made a worker yet
  const hps::Lab lab;
  hps::TestEveryPathBringsTheSameBytes(lab);
  hps::TestPlainReadsAgreeToo(lab);
  hps::TestAFileThatEndsEarlyIsNamed(lab);
  hps::TestARefusedReadIsNamed(lab);
  hps::TestAnErrorOfTheSinkEndsTheBatch(lab);
  hps::TestDirectIoIsRefusedByName();
  hps::TestABadRingStillBringsEveryByte(lab);
  hps::TestABrokenRingIsAnErrorAfterItsLastAnswer(lab);
  hps::TestABufferThatIsFullIsUsedAgain(lab);
  hps::TestAskingForThePageCacheReadsNothing(lab);
  std::printf("ok\n");
  return 0;
}
