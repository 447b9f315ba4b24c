// Fetches of the SSD store on every read path: random batches with duplicates and absent keys agree
// with a map, damage is found and named, and many threads may fetch beside a writer.
//
// Above it: ctest. Below it: csrc/ssd_store.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/check.h"
#include "files/posix_file.h"
#include "forwarding_files.h"
#include "scratch_store.h"

namespace hps {
namespace {

// POSIX files, counting the reads that were not answered by the page cache.
class CountingFiles final : public ForwardingFiles {
 public:
  explicit CountingFiles(BatchMethod method) : CountingFiles(MakePosixFileSystem(method)) {}

  Status ReadBatch(const BatchRead* reads, uint64_t count, const ReadSink& sink) override {
    num_reads += count;
    for (uint64_t i = 0; i < count; ++i) {
      num_direct += static_cast<PosixFile*>(reads[i].file)->alignment() > 1 ? 1 : 0;
    }
    return files_->ReadBatch(reads, count, sink);
  }

  std::atomic<uint64_t> num_reads{0};
  std::atomic<uint64_t> num_direct{0};  // of them, those past the page cache

 private:
  explicit CountingFiles(std::unique_ptr<FileSystem> files)
      : ForwardingFiles(files.get()), owned_(std::move(files)) {}

  std::unique_ptr<FileSystem> owned_;
};

struct Path {
  const char* name;
  BatchMethod method;
  bool is_direct;
};

class Lab {
 public:
  Lab() {
    const bool has_direct = Opens(true).ok();
    for (const bool is_direct : {false, true}) {
      if (is_direct && !has_direct) continue;
      paths_.push_back({is_direct ? "ring, direct" : "ring", BatchMethod::kRing, is_direct});
      paths_.push_back(
          {is_direct ? "threads, direct" : "threads", BatchMethod::kThreads, is_direct});
    }
    Reset();
  }

  StoreOptions Options(uint32_t row_bytes, bool is_direct) const {
    StoreOptions options = SmallStore(folder_.path() + "/store", row_bytes, 100000);
    options.direct_io = is_direct;
    return options;
  }
  void Reset() const { folder_.Reset(); }
  const std::vector<Path>& paths() const { return paths_; }

  std::vector<std::string> Segments() const {
    std::vector<std::string> result;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/store")) {
      const std::string name = entry.path().filename();
      if (name.find("segment-") == 0) result.push_back(entry.path());
    }
    std::sort(result.begin(), result.end());
    return result;
  }

  // Takes what has been synced out of the page cache; whether that worked is seen in CountingFiles.
  void DropCache() const {
    for (const std::string& name : Segments()) {
      const int descriptor = open(name.c_str(), O_RDONLY);
      posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
      close(descriptor);
    }
  }

 private:
  Status Opens(bool is_direct) const {
    std::unique_ptr<SsdStore> store;
    const Status status = SsdStore::Open(PosixFileSystem(), Options(32, is_direct), &store);
    HPS_CHECK(status.ok() || status.code() == StatusCode::kConfig);
    return status;
  }

  ScratchFolder folder_{ScratchFolder::Where::kDisk};
  std::vector<Path> paths_;
};

uint64_t KeyOf(uint64_t number) { return number * 0x9E3779B97F4A7C15; }

// The row of a key with some value, its last byte included.
std::vector<char> RowOf(uint64_t key, uint64_t value, uint32_t row_bytes) {
  std::vector<char> row(row_bytes);
  std::memcpy(row.data(), &key, 8);
  for (uint32_t i = 8; i < row_bytes; ++i)
    row[i] = static_cast<char>(MixKey(key + value) >> i % 57);
  return row;
}

// Stores keys in random order with the value given; *values follows.
void Write(SsdStore* store, uint32_t row_bytes, uint64_t num_keys, uint64_t value,
           std::mt19937_64* random, std::map<uint64_t, uint64_t>* values) {
  std::vector<uint64_t> numbers(num_keys);
  for (uint64_t i = 0; i < num_keys; ++i) numbers[i] = (*random)() % (2 * num_keys);
  std::vector<char> rows;
  for (const uint64_t number : numbers) {
    const std::vector<char> row = RowOf(KeyOf(number), value, row_bytes);
    rows.insert(rows.end(), row.begin(), row.end());
    (*values)[KeyOf(number)] = value;
  }
  HPS_CHECK(store->Append(0, rows.data(), num_keys).ok());
}

// A batch of stored and absent keys, some of them twice, against the map.
void FetchAndCompare(const SsdStore& store, uint32_t row_bytes, uint64_t num_keys, uint64_t count,
                     std::mt19937_64* random, const std::map<uint64_t, uint64_t>& values) {
  std::vector<uint64_t> keys;
  while (keys.size() < count) {
    keys.push_back(KeyOf((*random)() % (2 * num_keys + 50)));
    if ((*random)() % 8 == 0) keys.push_back(keys[(*random)() % keys.size()]);
  }
  const std::vector<char> untouched(row_bytes, 'x');
  std::vector<char> rows(keys.size() * row_bytes, 'x');
  std::vector<uint8_t> found(keys.size(), 7);
  HPS_CHECK(store.table(0).Fetch(keys.data(), keys.size(), rows.data(), found.data()).ok());
  for (uint64_t i = 0; i < keys.size(); ++i) {
    const auto value = values.find(keys[i]);
    HPS_CHECK(found[i] == (value != values.end()));
    const std::vector<char> expected =
        value == values.end() ? untouched : RowOf(keys[i], value->second, row_bytes);
    HPS_CHECK(std::memcmp(&rows[i * row_bytes], expected.data(), row_bytes) == 0);
  }
}

// Rows that are small, that cross pages everywhere, and that are longer than a page.
void TestRandomBatchesOnEveryPath(const Lab& lab) {
  for (const Path& path : lab.paths()) {
    for (const uint32_t row_bytes : {32, 240, 5008}) {
      lab.Reset();
      std::mt19937_64 random(row_bytes);
      CountingFiles files(path.method);
      std::unique_ptr<SsdStore> store;
      HPS_CHECK(SsdStore::Open(&files, lab.Options(row_bytes, path.is_direct), &store).ok());
      const uint64_t num_keys = row_bytes > 1000 ? 300 : 3000;
      std::map<uint64_t, uint64_t> values;
      for (uint64_t value = 1; value <= 3; ++value) {
        Write(store.get(), row_bytes, num_keys, value, &random, &values);
        FetchAndCompare(*store, row_bytes, num_keys, 700, &random, values);  // some not sealed
        CheckpointSummary summary;
        HPS_CHECK(store->MakeCheckpoint("", {}, &summary).ok());
        for (const uint64_t count : {1, 2, 20, 1000}) {
          lab.DropCache();
          FetchAndCompare(*store, row_bytes, num_keys, count, &random, values);
          FetchAndCompare(*store, row_bytes, num_keys, count, &random, values);
        }
      }
      HPS_CHECK(lab.Segments().size() > 3);
      HPS_CHECK(files.num_reads > 0 || !path.is_direct);
      std::printf("%s, %u bytes a row: %llu reads\n", path.name, row_bytes,
                  static_cast<unsigned long long>(files.num_reads));
    }
  }
}

// One table in one segment, sealed; the rows are keys 0 to count - 1 in order.
std::unique_ptr<SsdStore> OneSegment(const Lab& lab, const Path& path, FileSystem* files,
                                     uint64_t count) {
  lab.Reset();
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(files, lab.Options(32, path.is_direct), &store).ok());
  std::vector<char> rows;
  for (uint64_t key = 0; key < count; ++key) {
    const std::vector<char> row = RowOf(key, 1, 32);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  CheckpointSummary summary;
  HPS_CHECK(store->Append(0, rows.data(), count).ok());
  HPS_CHECK(store->MakeCheckpoint("", {}, &summary).ok());
  HPS_CHECK(lab.Segments().size() == 1);
  return store;
}

Status FetchKeys(const SsdStore& store, uint64_t first, uint64_t count, uint64_t step = 1) {
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < count; ++i) keys.push_back(first + i * step);
  std::vector<char> rows(count * 32);
  std::vector<uint8_t> found(count);
  return store.table(0).Fetch(keys.data(), count, rows.data(), found.data());
}

// What the page cache has nothing of is read past it, but for one read in sixteen: so what is
// wanted again and again comes to stay.
void TestAColdFetchGoesPastThePageCacheUntilItIsWarm(const Lab& lab) {
  constexpr uint64_t kCount = 2000;
  const bool has_direct = lab.paths().size() > 2;
  for (const Path& path : lab.paths()) {
    if (path.is_direct) continue;
    CountingFiles files(path.method);
    const std::unique_ptr<SsdStore> store = OneSegment(lab, path, &files, kCount);
    lab.DropCache();
    HPS_CHECK(FetchKeys(*store, 0, kCount / 100, 100).ok());
    if (files.num_reads == 0) {
      std::printf("%s: this file system keeps its pages\n", path.name);
      continue;
    }
    uint64_t num_fetches = 1;
    for (uint64_t before = 0; before != files.num_reads && num_fetches < 400; ++num_fetches) {
      before = files.num_reads;
      HPS_CHECK(FetchKeys(*store, 0, kCount / 100, 100).ok());
    }
    HPS_CHECK(num_fetches < 400);  // warm now
    HPS_CHECK(files.num_reads > files.num_direct);
    HPS_CHECK(!has_direct || 2 * files.num_direct > files.num_reads);
    std::printf("%s: warm after %llu fetches\n", path.name,
                static_cast<unsigned long long>(num_fetches));
  }
}

void TestDamageIsFoundOnEveryPath(const Lab& lab) {
  constexpr uint64_t kCount = 2000;
  for (const Path& path : lab.paths()) {
    const std::unique_ptr<FileSystem> files = MakePosixFileSystem(path.method);
    const std::unique_ptr<SsdStore> store = OneSegment(lab, path, files.get(), kCount);
    const std::string name = lab.Segments()[0];
    const auto flip = [&](uint64_t record) {
      const int descriptor = open(name.c_str(), O_RDWR);
      char byte = 0;
      const auto place = static_cast<off_t>(64 + record * 36 + 30);
      HPS_CHECK(pread(descriptor, &byte, 1, place) == 1);
      byte ^= 1;
      HPS_CHECK(pwrite(descriptor, &byte, 1, place) == 1 && fdatasync(descriptor) == 0);
      close(descriptor);
    };
    for (const uint64_t record : {uint64_t{0}, uint64_t{112}, uint64_t{113}, kCount - 1}) {
      for (const bool is_cached : {true, false}) {
        flip(record);
        if (!is_cached) lab.DropCache();
        for (const auto& [first, count, step] : {std::array<uint64_t, 3>{0, kCount, 1},
                                                 {record % 100, kCount / 100, 100},
                                                 {record, 1, 1}}) {
          const Status status = FetchKeys(*store, first, count, step);
          HPS_CHECK(status.code() == StatusCode::kCorruption);
          const std::string where = name + ": offset " + std::to_string(64 + record * 36) + ":";
          HPS_CHECK(status.message().find(where) == 0);
          HPS_CHECK(status.message().find("record " + std::to_string(record)) != std::string::npos);
        }
        flip(record);
        HPS_CHECK(FetchKeys(*store, 0, kCount).ok());
      }
    }
  }
}

void TestAFileShorterByOneByteOnEveryPath(const Lab& lab) {
  constexpr uint64_t kCount = 2000;
  for (const Path& path : lab.paths()) {
    const std::unique_ptr<FileSystem> files = MakePosixFileSystem(path.method);
    const std::unique_ptr<SsdStore> store = OneSegment(lab, path, files.get(), kCount);
    const std::string name = lab.Segments()[0];
    std::filesystem::resize_file(name, 64 + kCount * 36 - 1);
    for (const bool is_cached : {true, false}) {
      if (!is_cached) lab.DropCache();
      HPS_CHECK(FetchKeys(*store, 0, kCount - 1).ok());
      for (const uint64_t count : {uint64_t{1}, kCount / 50}) {
        const uint64_t step = kCount / count;
        const Status status = FetchKeys(*store, (kCount - 1) % step, count, step);
        HPS_CHECK(status.code() == StatusCode::kCorruption);
        HPS_CHECK(status.message().find(name + ": offset ") == 0);
        HPS_CHECK(status.message().find("the file ends here") != std::string::npos);
      }
    }
  }
}

void TestManyThreadsBesideAWriter(const Lab& lab) {
  constexpr uint64_t kNumKeys = 2000;
  for (const Path& path : lab.paths()) {
    lab.Reset();
    const std::unique_ptr<FileSystem> files = MakePosixFileSystem(path.method);
    std::unique_ptr<SsdStore> store;
    HPS_CHECK(SsdStore::Open(files.get(), lab.Options(32, path.is_direct), &store).ok());
    // Every append writes all keys with one value, so a row is of some value between two counters.
    std::atomic<uint64_t> begun{1};
    std::atomic<uint64_t> installed{1};
    const auto write = [&](uint64_t value) {
      std::vector<char> rows(kNumKeys * 32);
      for (uint64_t key = 0; key < kNumKeys; ++key) {
        std::memcpy(&rows[key * 32], &key, 8);
        std::memcpy(&rows[key * 32 + 16], &value, 8);
      }
      begun = value;
      HPS_CHECK(store->Append(0, rows.data(), kNumKeys).ok());
      installed = value;
    };
    write(1);
    std::atomic<uint64_t> num_fetched{0};
    std::atomic<bool> is_over{false};
    std::vector<std::thread> readers;
    for (uint64_t reader = 0; reader < 4; ++reader) {
      readers.emplace_back([&, reader] {
        std::mt19937_64 random(reader);
        std::vector<uint64_t> keys(300);
        std::vector<char> rows(keys.size() * 32);
        std::vector<uint8_t> found(keys.size());
        while (!is_over) {
          for (uint64_t& key : keys) key = random() % kNumKeys;
          const uint64_t lowest = installed;
          HPS_CHECK(
              store->table(0).Fetch(keys.data(), keys.size(), rows.data(), found.data()).ok());
          const uint64_t highest = begun;
          for (uint64_t i = 0; i < keys.size(); ++i) {
            uint64_t value = 0;
            std::memcpy(&value, &rows[i * 32 + 16], 8);
            HPS_CHECK(found[i] == 1 && RowKey(&rows[i * 32]) == keys[i]);
            HPS_CHECK(value >= lowest && value <= highest);
          }
          ++num_fetched;
        }
      });
    }
    for (uint64_t value = 2; value <= 25; ++value) {
      write(value);
      CheckpointSummary summary;
      if (value % 5 == 0) HPS_CHECK(store->MakeCheckpoint("", {}, &summary).ok());
      if (value % 4 == 0) lab.DropCache();
    }
    while (num_fetched < 20) std::this_thread::yield();
    is_over = true;
    for (std::thread& reader : readers) reader.join();
    std::printf("%s: %llu fetches beside a writer\n", path.name,
                static_cast<unsigned long long>(num_fetched));
  }
}

void TestSortByPlace() {
  std::mt19937_64 random(9);
  for (const uint64_t count : {0, 1, 511, 512, 513, 20000}) {
    for (const int record_bits : {0, 5, 13, 28}) {
      for (const int segment_bits : {0, 3, 20, 32}) {
        std::vector<WantedRecord> wanted(count);
        uint32_t row = 0;
        for (WantedRecord& next : wanted) {
          next = {random() & ((uint64_t{1} << record_bits) - 1),
                  static_cast<uint32_t>(random() & ((uint64_t{1} << segment_bits) - 1)), row++};
        }
        const std::vector<WantedRecord> before = wanted;
        SortByPlace(&wanted);
        std::vector<bool> seen(count);
        for (uint64_t i = 0; i < count; ++i) {
          const WantedRecord& old = before[wanted[i].row];
          HPS_CHECK(!seen[wanted[i].row]);
          seen[wanted[i].row] = true;
          HPS_CHECK(old.record == wanted[i].record && old.segment == wanted[i].segment);
          if (i == 0) continue;
          HPS_CHECK(wanted[i - 1].segment < wanted[i].segment ||
                    (wanted[i - 1].segment == wanted[i].segment &&
                     wanted[i - 1].record <= wanted[i].record));
        }
      }
    }
  }
}

}  // namespace
}  // namespace hps

int main() {
  const hps::Lab lab;
  hps::TestSortByPlace();
  hps::TestRandomBatchesOnEveryPath(lab);
  hps::TestAColdFetchGoesPastThePageCacheUntilItIsWarm(lab);
  hps::TestDamageIsFoundOnEveryPath(lab);
  hps::TestAFileShorterByOneByteOnEveryPath(lab);
  hps::TestManyThreadsBesideAWriter(lab);
  std::printf("ok\n");
  return 0;
}
