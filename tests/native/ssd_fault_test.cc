// The SSD store under faults: a crash at every call of a checkpoint and of an opening, lost power,
// a sync that fails once, a disk that is full after X bytes. Each ends with a store that opens at a
// whole checkpoint and can go on; a planted bug (syncs that do nothing) must be noticed.
//
// Above it: ctest. Below it: fault_file_system.h, csrc/ssd_store.
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "common/check.h"
#include "fault_file_system.h"
#include "ssd_store/store.h"
#include "ssd_store/verify.h"

namespace hps {
namespace {

constexpr uint64_t kRowBytes = 32;
constexpr uint64_t kNumKeys = 200;

class Lab {
 public:
  Lab() {
    // In memory where that exists: the faults are made here, the disk's own syncs only take time.
    folder_ = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    folder_ += "/hps_fault_XXXXXX";
    HPS_CHECK(mkdtemp(folder_.data()) != nullptr);
  }
  ~Lab() { std::filesystem::remove_all(folder_); }

  StoreOptions Options() const {
    StoreOptions options;
    options.path = folder_ + "/store";
    options.segment_bytes = 3000;
    options.keep_last = 1;
    TableSchema schema;
    schema.name = "ads";
    schema.dim = 4;
    schema.initializer = "constant";
    schema.row_bytes = kRowBytes;
    options.tables = {schema};
    return options;
  }
  void Reset() const {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }

 private:
  std::string folder_;
};

std::vector<char> RowsOf(uint64_t value) {
  std::vector<char> rows(kNumKeys * kRowBytes);
  for (uint64_t key = 0; key < kNumKeys; ++key) {
    std::memcpy(&rows[key * kRowBytes], &key, 8);
    std::memcpy(&rows[key * kRowBytes + 16], &value, 8);
  }
  return rows;
}

// Writes all keys with one value and makes a checkpoint.
Status Step(SsdStore* store, uint64_t value) {
  const std::vector<char> rows = RowsOf(value);
  HPS_RETURN_IF_ERROR(store->Append(0, rows.data(), kNumKeys));
  CheckpointSummary summary;
  return store->MakeCheckpoint("", {{"dense", std::string(6000, 'd')}}, &summary);
}

// The one value that all keys have; 0 when the store is empty. -1 if it cannot be read or is torn.
int64_t ValueOf(const SsdStore& store) {
  if (store.table(0).num_rows() == 0) return 0;
  std::vector<uint64_t> keys(kNumKeys);
  for (uint64_t key = 0; key < kNumKeys; ++key) keys[key] = key;
  std::vector<char> rows(kNumKeys * kRowBytes);
  std::vector<uint8_t> found(kNumKeys);
  if (!store.table(0).Fetch(keys.data(), kNumKeys, rows.data(), found.data()).ok()) return -1;
  uint64_t value = 0;
  std::memcpy(&value, &rows[16], 8);
  std::vector<NamedBlob> extras;
  const bool is_whole = rows == RowsOf(value) && store.Extras({}, &extras).ok();
  return is_whole ? static_cast<int64_t>(value) : -1;
}

// Opens without faults and returns the value; -1 for any damage. Then shows that the store goes on.
int64_t Reopen(const Lab& lab) {
  std::unique_ptr<SsdStore> store;
  if (!SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok()) return -1;
  const int64_t value = ValueOf(*store);
  std::vector<Damage> damages;
  if (!VerifyStore(PosixFileSystem(), lab.Options().path, &damages).ok() || !damages.empty()) {
    return -1;
  }
  if (value >= 0) HPS_CHECK(Step(store.get(), 99).ok() && ValueOf(*store) == 99);
  return value;
}

// A crash at changing call `call` after the first checkpoint, in the steps or (later calls) in
// none. Returns false when the call was never reached.
bool CrashAt(const Lab& lab, int64_t call, bool loses_power, bool forgets_syncs,
             int64_t* violations) {
  lab.Reset();
  FaultFileSystem files;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
  HPS_CHECK(Step(store.get(), 1).ok());
  files.faults.forgets_syncs = forgets_syncs;
  files.faults.is_crash = true;
  files.faults.fail_at_call = files.num_calls + call;
  int64_t acknowledged = 1;
  for (uint64_t value = 2; value <= 3; ++value) {
    if (!Step(store.get(), value).ok()) break;
    acknowledged = static_cast<int64_t>(value);
  }
  const bool reached = acknowledged < 3;
  store.reset();
  std::mt19937_64 random(static_cast<uint64_t>(call));
  if (loses_power) files.LosePower(&random);
  const int64_t value = Reopen(lab);
  if (value < acknowledged || value > acknowledged + 1) ++*violations;
  return reached;
}

void TestCrashAtEveryCall(const Lab& lab) {
  for (const bool loses_power : {false, true}) {
    int64_t violations = 0;
    int64_t call = 0;
    while (CrashAt(lab, call, loses_power, false, &violations)) ++call;
    std::printf("crash%s: %lld calls\n", loses_power ? " and power loss" : "",
                static_cast<long long>(call));
    HPS_CHECK(call > 20 && violations == 0);
  }
}

void TestForgottenSyncsAreNoticed(const Lab& lab) {
  int64_t violations = 0;
  for (int64_t call = 1000; call < 1008; ++call) CrashAt(lab, call, true, true, &violations);
  HPS_CHECK(violations > 0);
}

void TestCrashWhileOpening(const Lab& lab) {
  int64_t call = 0;
  for (bool reached = true; reached; ++call) {
    lab.Reset();
    std::unique_ptr<SsdStore> store;
    HPS_CHECK(SsdStore::Open(PosixFileSystem(), lab.Options(), &store).ok());
    HPS_CHECK(Step(store.get(), 1).ok());
    HPS_CHECK(store->Append(0, RowsOf(2).data(), kNumKeys).ok());
    store.reset();
    reached = false;
    for (int depth = 0; depth < 3; ++depth) {
      FaultFileSystem files;
      files.faults.is_crash = true;
      files.faults.fail_at_call = call;
      reached = !SsdStore::Open(&files, lab.Options(), &store).ok() || reached;
      store.reset();
    }
    HPS_CHECK(Reopen(lab) == 1);
  }
  std::printf("crash while opening: %lld calls\n", static_cast<long long>(call - 1));
  HPS_CHECK(call > 5);
}

void TestFailedSyncStopsTheStore(const Lab& lab) {
  int num_failed = 0;
  for (int64_t call = 0; call < 12; ++call) {
    lab.Reset();
    FaultFileSystem files;
    std::unique_ptr<SsdStore> store;
    HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
    HPS_CHECK(Step(store.get(), 1).ok());
    files.num_calls = 0;
    files.faults.only_syncs = true;
    files.faults.fail_at_call = call;
    const Status status = Step(store.get(), 2);
    if (!status.ok() && Step(store.get(), 3).ok()) {
      // Only the sync of a file that was then thrown away (CURRENT.new) may be survived.
      HPS_CHECK(status.message().find("CURRENT.new") != std::string::npos);
      HPS_CHECK(ValueOf(*store) == 3);
      continue;
    }
    if (status.ok()) continue;
    ++num_failed;
    const Status refused = store->Append(0, RowsOf(3).data(), kNumKeys);
    HPS_CHECK(refused.code() == StatusCode::kStore);
    HPS_CHECK(refused.message().find("stopped") != std::string::npos);
    HPS_CHECK(ValueOf(*store) == 2);  // reads go on
    store.reset();
    const int64_t value = Reopen(lab);
    HPS_CHECK(value == 1 || value == 2);
  }
  HPS_CHECK(num_failed > 3);
}

void TestFullDiskAtEveryPoint(const Lab& lab) {
  int num_full = 0;
  for (int64_t space = 0; space < 60000; space += 700) {
    lab.Reset();
    FaultFileSystem files;
    std::unique_ptr<SsdStore> store;
    HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
    HPS_CHECK(Step(store.get(), 1).ok());
    files.faults.space_left = space;
    const Status status = Step(store.get(), 2);
    num_full += !status.ok();
    HPS_CHECK(status.ok() || status.os_error() == ENOSPC);
    files.faults.space_left = INT64_MAX;
    HPS_CHECK(Step(store.get(), 3).ok() && ValueOf(*store) == 3);
    store.reset();
    HPS_CHECK(Reopen(lab) == 3);
  }
  HPS_CHECK(num_full > 10);
}

}  // namespace
}  // namespace hps

int main() {
  const hps::Lab lab;
  hps::TestCrashAtEveryCall(lab);
  hps::TestForgottenSyncsAreNoticed(lab);
  hps::TestCrashWhileOpening(lab);
  hps::TestFailedSyncStopsTheStore(lab);
  hps::TestFullDiskAtEveryPoint(lab);
  std::printf("ok\n");
  return 0;
}
