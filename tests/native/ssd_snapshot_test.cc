// A process killed, or power lost, at every call of a close that writes a snapshot of the index,
// and of a clone: the store opens at its checkpoint whatever was left, and a clone is whole or
// refused.
//
// Above it: ctest. Below it: fault_file_system.h, csrc/ssd_store.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "common/check.h"
#include "fault_file_system.h"
#include "scratch_store.h"
#include "ssd_store/verify.h"

namespace hps {
namespace {

constexpr uint64_t kRowBytes = 32;
constexpr uint64_t kNumKeys = 3000;  // shards of some entries, and some kilobytes of index

StoreOptions OptionsOf(const std::string& path) {
  StoreOptions options = SmallStore(path, kRowBytes, 40000);
  options.snapshot_rows = 0;
  return options;
}

// A store with all keys but every tenth, which a tombstone hides, and a checkpoint "kept".
std::unique_ptr<SsdStore> MakeStore(FileSystem* files, const std::string& path) {
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(files, OptionsOf(path), &store).ok());
  std::vector<char> rows(kNumKeys * kRowBytes);
  std::vector<uint64_t> erased;
  for (uint64_t key = 0; key < kNumKeys; ++key) {
    std::memcpy(&rows[key * kRowBytes], &key, 8);
    if (key % 10 == 0) erased.push_back(key);
  }
  HPS_CHECK(store->Append(0, rows.data(), kNumKeys).ok());
  std::vector<uint8_t> found(erased.size());
  HPS_CHECK(store->Erase(0, erased.data(), erased.size(), found.data()).ok());
  CheckpointSummary summary;
  HPS_CHECK(store->MakeCheckpoint("kept", {{"dense", std::string(6000, 'd')}}, &summary).ok());
  return store;
}

bool HoldsTheCheckpoint(const SsdStore& store) {
  std::vector<uint64_t> keys(kNumKeys);
  for (uint64_t key = 0; key < kNumKeys; ++key) keys[key] = key;
  std::vector<char> rows(kNumKeys * kRowBytes);
  std::vector<uint8_t> found(kNumKeys);
  if (!store.table(0).Fetch(keys.data(), kNumKeys, rows.data(), found.data()).ok()) return false;
  bool is_right = store.table(0).num_rows() == kNumKeys - kNumKeys / 10;
  for (uint64_t key = 0; key < kNumKeys; ++key) is_right &= found[key] == (key % 10 != 0);
  std::vector<NamedBlob> extras;
  return is_right && store.Extras({}, &extras).ok() && extras.size() == 1;
}

// Opens for reading, then for writing, without faults; whether each opening took the snapshot.
struct Opened {
  bool by_reader = false;
  bool by_writer = false;
};

Opened Reopen(const std::string& path) {
  Opened opened;
  std::unique_ptr<SsdStore> store;
  StoreOptions options = OptionsOf(path);
  options.read_only = true;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok() && HoldsTheCheckpoint(*store));
  opened.by_reader = store->Figures().snapshot_bytes > 0;
  options.read_only = false;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok() && HoldsTheCheckpoint(*store));
  opened.by_writer = store->Figures().snapshot_bytes > 0;
  std::vector<Damage> damages;
  HPS_CHECK(VerifyStore(PosixFileSystem(), path, &damages).ok() && damages.empty());
  return opened;
}

uint64_t NumSnapshots(const std::string& path) {
  uint64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    count += entry.path().filename().string().rfind("index-", 0) == 0;
  }
  return count;
}

// A crash at changing call `call` of Close; false when it was never reached.
bool CrashInClose(const std::string& folder, int64_t call, bool loses_power, int64_t* num_used) {
  const std::string path = folder + "/store";
  std::filesystem::remove_all(path);
  FaultFileSystem files;
  std::unique_ptr<SsdStore> store = MakeStore(&files, path);
  files.num_calls = 0;
  files.faults.is_crash = true;
  files.faults.fail_at_call = call;
  const bool is_written = store->Close() > 0;
  store.reset();
  std::mt19937_64 random(static_cast<uint64_t>(call));
  if (loses_power) files.LosePower(&random);
  std::vector<Damage> damages;  // as openings see it: what they would pass over is no damage
  HPS_CHECK(VerifyStore(PosixFileSystem(), path, &damages).ok() && damages.empty());
  const Opened opened = Reopen(path);
  HPS_CHECK(opened.by_reader == opened.by_writer);
  HPS_CHECK(NumSnapshots(path) <= 1);
  *num_used += opened.by_writer;
  if (!loses_power) HPS_CHECK(opened.by_writer == is_written);
  return files.num_calls > call;
}

void TestCrashAtEveryCallOfClose(const std::string& folder) {
  for (const bool loses_power : {false, true}) {
    int64_t call = 0;
    int64_t num_used = 0;
    // Most calls write a shard each: some of those stand for all.
    while (CrashInClose(folder, call, loses_power, &num_used)) call += call < 240 ? 16 : 1;
    std::printf("crash in close%s: %lld calls, %lld snapshots used\n",
                loses_power ? " and power loss" : "", static_cast<long long>(call),
                static_cast<long long>(num_used));
    HPS_CHECK(call > 200);  // one write a shard
  }
}

void TestFullDiskAtClose(const std::string& folder) {
  const std::string path = folder + "/store";
  std::filesystem::remove_all(path);
  FaultFileSystem files;
  std::unique_ptr<SsdStore> store = MakeStore(&files, path);
  files.faults.space_left = 1000;
  HPS_CHECK(store->Close() == 0);
  HPS_CHECK(NumSnapshots(path) == 0);
  store.reset();
  HPS_CHECK(!Reopen(path).by_writer);
}

// A crash at changing call `call` of a clone; false when it was never reached.
bool CrashInClone(const std::string& folder, int64_t call, int64_t* num_refused) {
  const std::string target = folder + "/clone";
  std::filesystem::remove_all(target);
  FaultFileSystem files;
  std::unique_ptr<SsdStore> source;
  StoreOptions options = OptionsOf(folder + "/store");
  options.read_only = true;
  options.has_rows = false;
  HPS_CHECK(SsdStore::Open(&files, options, &source).ok());
  files.num_calls = 0;
  files.faults.is_crash = true;
  files.faults.fail_at_call = call;
  CloneSummary summary;
  const bool is_made = source->Clone(target, false, &summary).ok();
  const bool is_reached = files.num_calls > call;
  HPS_CHECK(is_made != is_reached);
  const bool is_store = std::filesystem::exists(target + "/CURRENT");
  std::unique_ptr<SsdStore> store;
  options = OptionsOf(target);
  if (is_store) {
    Reopen(target);
  } else {
    options.read_only = true;
    HPS_CHECK(!SsdStore::Open(PosixFileSystem(), options, &store).ok());
    ++*num_refused;
  }
  HPS_CHECK(is_made <= is_store);
  return is_reached;
}

void TestCrashAtEveryCallOfClone(const std::string& folder) {
  const std::string path = folder + "/store";
  std::filesystem::remove_all(path);
  MakeStore(PosixFileSystem(), path).reset();
  int64_t call = 0;
  int64_t num_refused = 0;
  while (CrashInClone(folder, call, &num_refused)) ++call;
  std::printf("crash in clone: %lld calls, %lld folders refused\n", static_cast<long long>(call),
              static_cast<long long>(num_refused));
  HPS_CHECK(call > 20 && num_refused > 20);
  Reopen(path);  // the source is as it was
}

// Folders in folders that were not there; once a checkpoint, or a clone, has returned they stay.
void TestTheNamesOfNewFoldersAreDurable(const std::string& folder) {
  const std::string path = folder + "/new/deeper/store";
  const std::string target = folder + "/other/deeper/clone";
  for (uint64_t chance = 0; chance < 16; ++chance) {
    std::filesystem::remove_all(folder + "/new");
    std::filesystem::remove_all(folder + "/other");
    FaultFileSystem files;
    std::unique_ptr<SsdStore> store = MakeStore(&files, path);
    CloneSummary summary;
    HPS_CHECK(store->Clone(target, false, &summary).ok());
    store.reset();
    std::mt19937_64 random(chance);
    files.LosePower(&random);
    Reopen(path);
    Reopen(target);
  }
}

// Threads load footers and snapshots, write snapshots and sync checkpoints; the sanitizers look on.
void TestThreads(const std::string& folder) {
  constexpr uint64_t kMany = 80000;  // fewer rows are loaded by one thread
  const std::string path = folder + "/store";
  std::filesystem::remove_all(path);
  StoreOptions options = OptionsOf(path);
  options.segment_bytes = 500000;
  options.num_threads = 4;
  std::vector<char> rows(kMany * kRowBytes);
  std::vector<uint64_t> keys(kMany);
  for (uint64_t key = 0; key < kMany; ++key) {
    keys[key] = MixKey(key);
    std::memcpy(&rows[key * kRowBytes], &keys[key], 8);
  }
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
  HPS_CHECK(store->Append(0, rows.data(), kMany).ok());
  HPS_CHECK(store->Append(0, rows.data(), kMany / 4).ok());
  std::vector<uint8_t> found(kMany);
  HPS_CHECK(store->Erase(0, &keys[kMany - 5000], 5000, found.data()).ok());
  CheckpointSummary summary;
  HPS_CHECK(store->MakeCheckpoint("kept", {{"dense", std::string(6000, 'd')}}, &summary).ok());
  HPS_CHECK(store->Close() > 0);
  for (const bool has_snapshot : {true, false}) {
    store.reset();
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const bool is_snapshot = entry.path().filename().string().rfind("index-", 0) == 0;
      if (is_snapshot && !has_snapshot) std::filesystem::remove(entry.path());
    }
    HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
    HPS_CHECK((store->Figures().snapshot_bytes > 0) == has_snapshot);
    HPS_CHECK(store->table(0).num_rows() == kMany - 5000);
    store->table(0).Contains(keys.data(), kMany, found.data());
    for (uint64_t i = 0; i < kMany; ++i) HPS_CHECK(found[i] == (i < kMany - 5000));
  }
}

}  // namespace
}  // namespace hps

int main() {
  const hps::ScratchFolder folder;
  hps::TestCrashAtEveryCallOfClose(folder.path());
  hps::TestFullDiskAtClose(folder.path());
  hps::TestCrashAtEveryCallOfClone(folder.path());
  hps::TestTheNamesOfNewFoldersAreDurable(folder.path());
  hps::TestThreads(folder.path());
  std::printf("ok\n");
  return 0;
}
