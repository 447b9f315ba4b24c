// Compaction in its own thread: every fetched row is the newest one while appends, compactions and
// checkpoints run; appends that wait end, whatever becomes of the store; the bound holds.
//
// Above it: ctest, also under the thread sanitizer. Below it: compaction_lab.h, csrc/ssd_store.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "compaction_lab.h"

namespace hps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kKeys = 4000;
constexpr uint64_t kBlock = 200;  // keys that are written together
constexpr std::chrono::milliseconds kDuration{1500};

StoreOptions ThreadedOptions(const CompactionLab& lab) {
  StoreOptions options = lab.Options();
  options.segment_bytes = uint64_t{1} << 16;
  options.compacts_in_background = true;
  return options;
}

// Values of a block grow. A reader notes what was acknowledged before its fetch and what had begun
// after it; every row must lie between.
struct Progress {
  std::atomic<uint64_t> begun[kKeys / kBlock] = {};
  std::atomic<uint64_t> acknowledged[kKeys / kBlock] = {};
};

void WriteBlocks(SsdStore* store, Progress* progress, const std::atomic<bool>& stop) {
  std::mt19937_64 random(5);
  State ignored;
  for (uint64_t value = 1; !stop; ++value) {
    const uint64_t block = std::min(random(), random()) % (kKeys / kBlock);
    const std::vector<uint64_t> keys = Range(block * kBlock, (block + 1) * kBlock);
    progress->begun[block] = value;
    HPS_CHECK(Put(store, keys, value, &ignored).ok());
    progress->acknowledged[block] = value;
  }
}

void ReadBlocks(const SsdStore& store, const Progress& progress, const std::atomic<bool>& stop,
                std::atomic<uint64_t>* num_fetches) {
  for (; !stop; ++*num_fetches) {
    uint64_t least[kKeys / kBlock];
    for (uint64_t i = 0; i < kKeys / kBlock; ++i) least[i] = progress.acknowledged[i];
    State state;
    HPS_CHECK(Read(store, kKeys, &state));
    for (const auto& [key, value] : state) {
      HPS_CHECK(value >= least[key / kBlock] && value <= progress.begun[key / kBlock]);
    }
  }
}

void TestReadersSeeTheNewestRows(const CompactionLab& lab) {
  lab.Reset();
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), ThreadedOptions(lab), &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, kKeys), 0, &state).ok());
  Progress progress;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> num_fetches{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] { WriteBlocks(store.get(), &progress, stop); });
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] { ReadBlocks(*store, progress, stop, &num_fetches); });
  }
  int num_checkpoints = 0;
  const auto start = Clock::now();
  const auto goes_on = [&] {  // long enough, and until something has happened
    if (Clock::now() - start < kDuration) return true;
    const bool is_idle = num_fetches <= 10 || store->Figures().compactions <= 5;
    return (is_idle || num_checkpoints <= 5) && Clock::now() - start < std::chrono::seconds(120);
  };
  while (goes_on()) {
    HPS_CHECK(Save(store.get()).ok());
    ++num_checkpoints;
    if (num_checkpoints % 3 == 0) HPS_CHECK(store->Compact(0, 1).ok());
    const TableFigures figures = store->table(0).Figures();
    HPS_CHECK(figures.segment_bytes <=
              2 * figures.live_bytes + 4 * store->table(0).FullSegmentBytes());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  const StoreFigures figures = store->Figures();
  std::printf("%llu fetches, %llu compactions, %llu waits, %d checkpoints\n",
              static_cast<unsigned long long>(num_fetches.load()),
              static_cast<unsigned long long>(figures.compactions),
              static_cast<unsigned long long>(figures.append_waits), num_checkpoints);
  HPS_CHECK(num_fetches > 10 && figures.compactions > 5 && num_checkpoints > 5);
  HPS_CHECK(figures.compaction_failures == 0);
  HPS_CHECK(Read(*store, kKeys, &state) && Save(store.get()).ok());
  store.reset();
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
  HPS_CHECK(Holds(*store, kKeys, state) && IsWhole(lab));
}

void TestTheThreadGivesSpaceBackByItself(const CompactionLab& lab) {
  lab.Reset();
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), ThreadedOptions(lab), &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, 40000), 1, &state).ok() && Save(store.get()).ok());
  const uint64_t before = lab.BytesOnDisk();
  std::vector<uint64_t> erased;
  for (uint64_t key = 0; key < 40000; ++key) {
    if (key % 10 != 3) erased.push_back(key);
  }
  HPS_CHECK(Drop(store.get(), erased, &state).ok() && Save(store.get()).ok());
  const auto end = Clock::now() + std::chrono::seconds(60);
  TableFigures figures;
  const auto has_come_back = [&] {
    figures = store->table(0).Figures();
    return figures.segment_bytes < 2 * figures.live_bytes + store->table(0).FullSegmentBytes();
  };
  while (!has_come_back() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  HPS_CHECK(has_come_back());  // its own tombstones included: they took half a megabyte
  HPS_CHECK(Save(store.get()).ok());
  std::printf("mass erase: %llu bytes before, %llu after\n",
              static_cast<unsigned long long>(before),
              static_cast<unsigned long long>(lab.BytesOnDisk()));
  HPS_CHECK(lab.BytesOnDisk() < before / 4 && Holds(*store, 40000, state));
}

// Segments less than half dead and a table under its bound: only the tombstones, which take more
// than a quarter of the live rows' bytes, ask for the older segments.
void TestTombstonesAskForOlderSegments(const CompactionLab& lab) {
  lab.Reset();
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), ThreadedOptions(lab), &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, 40000), 1, &state).ok() && Save(store.get()).ok());
  std::vector<uint64_t> erased = Range(0, 40000);
  std::erase_if(erased, [](uint64_t key) { return key % 20 >= 9; });
  HPS_CHECK(Drop(store.get(), erased, &state).ok() && Save(store.get()).ok());
  const auto end = Clock::now() + std::chrono::seconds(60);
  TableFigures figures;
  const auto has_come_back = [&] {
    figures = store->table(0).Figures();
    return figures.segment_bytes < figures.live_bytes + store->table(0).FullSegmentBytes();
  };
  while (!has_come_back() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  HPS_CHECK(has_come_back() && store->Figures().compactions > 5);
  HPS_CHECK(Save(store.get()).ok());
  store.reset();
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
  HPS_CHECK(Holds(*store, 40000, state));
}

// A segment that is mostly dead is rewritten alone; its tombstones still hide rows of an older one.
void TestTombstonesOutliveTheirSegment(const CompactionLab& lab) {
  lab.Reset();
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), ThreadedOptions(lab), &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, 1000), 1, &state).ok() && Save(store.get()).ok());
  HPS_CHECK(Drop(store.get(), Range(0, 1000, 10), &state).ok());
  HPS_CHECK(Put(store.get(), Range(2000, 2600), 1, &state).ok() && Save(store.get()).ok());
  HPS_CHECK(Put(store.get(), Range(2000, 2500), 2, &state).ok() && Save(store.get()).ok());
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (store->Figures().compactions == 0 && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  HPS_CHECK(Save(store.get()).ok());
  const TableFigures figures = store->table(0).Figures();
  HPS_CHECK(store->Figures().compactions == 1 && figures.num_segments == 3);
  HPS_CHECK(figures.segment_bytes > figures.live_bytes + 100 * store->table(0).RowSpace());
  store.reset();
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
  HPS_CHECK(Holds(*store, 3000, state));
  HPS_CHECK(store->Compact(0, 1).ok() && Holds(*store, 3000, state));
  store.reset();
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
  HPS_CHECK(Holds(*store, 3000, state));
}

// A pace that would take a day makes an append wait for the thread, which has to hurry.
void TestAnAppendThatWaitsIsServedFlatOut(const CompactionLab& lab) {
  lab.Reset();
  StoreOptions options = ThreadedOptions(lab);
  options.compaction_bytes_per_second = 1;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
  State state;
  const auto start = Clock::now();
  std::mt19937_64 random(3);
  for (uint64_t value = 1; value < 80; ++value) {
    std::vector<uint64_t> keys = Range(0, kKeys);
    std::erase_if(keys, [&](uint64_t) { return random() % 3 != 0; });
    HPS_CHECK(Put(store.get(), keys, value, &state).ok());
  }
  HPS_CHECK(store->Figures().append_waits > 0);
  HPS_CHECK(Clock::now() - start < std::chrono::seconds(60));
  HPS_CHECK(Holds(*store, kKeys, state));
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (!store->table(0).IsCompacting() && Clock::now() < end) std::this_thread::yield();
  HPS_CHECK(store->table(0).IsCompacting());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto before_close = Clock::now();
  store.reset();  // in the middle of a compaction that pauses for hours
  HPS_CHECK(Clock::now() - before_close < std::chrono::seconds(60));
}

// The bound gives way when compaction cannot work: what the disk takes is neither refused nor late.
void TestAppendsGoOnWhenCompactionFails(const CompactionLab& lab) {
  lab.Reset();
  ReadHooks files;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(&files, ThreadedOptions(lab), &store).ok());
  State state;
  files.is_full = true;
  const auto start = Clock::now();
  std::mt19937_64 random(4);
  for (uint64_t value = 1; value < 80; ++value) {
    std::vector<uint64_t> keys = Range(0, kKeys);
    std::erase_if(keys, [&](uint64_t) { return random() % 3 != 0; });
    HPS_CHECK(Put(store.get(), keys, value, &state).ok());
  }
  const auto is_within = [&] {
    const TableFigures figures = store->table(0).Figures();
    return figures.segment_bytes <= 2 * figures.live_bytes + 4 * store->table(0).FullSegmentBytes();
  };
  HPS_CHECK(!is_within() && store->Figures().compaction_failures > 0);
  HPS_CHECK(Clock::now() - start < std::chrono::seconds(60));
  files.is_full = false;
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (!is_within() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  HPS_CHECK(is_within() && Holds(*store, kKeys, state));
}

// In the thread of the store, where an exception would end the process.
void TestRefusedMemoryIsAFailureOfTheThread(const CompactionLab& lab) {
  lab.Reset();
  ReadHooks files;
  std::atomic<bool> is_refusing{true};
  files.on_read = [&](const std::string&) {
    if (is_refusing && std::this_thread::get_id() != files.favoured) throw std::bad_alloc();
  };
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(&files, ThreadedOptions(lab), &store).ok());
  State state;
  std::mt19937_64 random(6);
  for (uint64_t value = 1; value < 40; ++value) {
    std::vector<uint64_t> keys = Range(0, kKeys);
    std::erase_if(keys, [&](uint64_t) { return random() % 3 != 0; });
    HPS_CHECK(Put(store.get(), keys, value, &state).ok());
  }
  const auto end = Clock::now() + std::chrono::seconds(60);
  while (store->Figures().compaction_failures == 0 && Clock::now() < end) std::this_thread::yield();
  HPS_CHECK(store->Figures().compaction_failures > 0 && store->Figures().compactions == 0);
  is_refusing = false;
  while (store->Figures().compactions == 0 && Clock::now() < end) std::this_thread::yield();
  HPS_CHECK(store->Figures().compactions > 0 && Holds(*store, kKeys, state));
}

// Appends from one thread, close from another: each append ends, well or as refused.
void TestCloseEndsAnAppendThatWaits(const CompactionLab& lab) {
  for (int round = 0; round < 5; ++round) {
    lab.Reset();
    std::unique_ptr<SsdStore> store;
    HPS_CHECK(SsdStore::Open(PosixFileSystem(), ThreadedOptions(lab), &store).ok());
    std::thread writer([&] {
      State state;
      Status status;
      for (uint64_t value = 1; status.ok(); ++value) {
        status = Put(store.get(), Range(value % 3, kKeys, 3), value, &state);
      }
      HPS_CHECK(status.message().find("closed") != std::string::npos);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + round * 11));
    store->Close();
    writer.join();
  }
}

}  // namespace
}  // namespace hps

int main() {
  const hps::CompactionLab lab;
  hps::TestReadersSeeTheNewestRows(lab);
  hps::TestTheThreadGivesSpaceBackByItself(lab);
  hps::TestTombstonesAskForOlderSegments(lab);
  hps::TestTombstonesOutliveTheirSegment(lab);
  hps::TestAnAppendThatWaitsIsServedFlatOut(lab);
  hps::TestAppendsGoOnWhenCompactionFails(lab);
  hps::TestRefusedMemoryIsAFailureOfTheThread(lab);
  hps::TestCloseEndsAnAppendThatWaits(lab);
  std::printf("ok\n");
  return 0;
}
