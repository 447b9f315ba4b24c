// What the fault recipes of the store share: a store to torture, and the check of what a fault has
// left.
//
// Above it: ssd_crash_test.cc, ssd_disk_test.cc. Below it: torture_workload.h, fault_file_system.h,
// recipe.h.
#pragma once

#include <malloc.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "fault_file_system.h"
#include "recipe.h"
#include "scratch_store.h"
#include "ssd_store/verify.h"
#include "torture_workload.h"

namespace hps {

// A folder for one store after the other.
class Lab {
 public:
  Lab() {
    // Small stores read and write through large buffers, which malloc would give back every time.
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
  }

  StoreOptions Options(bool read_only = false) const {
    StoreOptions options = SmallStore(folder_.path() + "/store", kRowBytes, 1500);  // 41 records
    options.tables[0].dim = kNumClients + 1;
    options.keep_last = 1;
    options.read_only = read_only;
    return options;
  }
  void Reset() const { folder_.Reset(); }
  uint64_t NumFiles(const std::string& prefix) const {
    uint64_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/store")) {
      count += entry.path().filename().string().rfind(prefix, 0) == 0;
    }
    return count;
  }

 private:
  ScratchFolder folder_;
};

// A life of a store under faults: opened, trained, dropped.
struct Life {
  FaultFileSystem files;
  std::unique_ptr<SsdStore> store;
  std::unique_ptr<SmallCache> cache;
  int64_t acknowledged = 0;  // the newest checkpoint whose call has returned
  int64_t attempted = 0;     // the newest whose call has begun

  Status Open(const Lab& lab, uint64_t seed, int64_t steps) {
    HPS_RETURN_IF_ERROR(SsdStore::Open(&files, lab.Options(), &store));
    cache = std::make_unique<SmallCache>(store.get(), seed, steps);
    return Status::Ok();
  }
  Status TakeSteps(int count) {
    for (int i = 0; i < count; ++i) HPS_RETURN_IF_ERROR(cache->TakeStep());
    return Status::Ok();
  }
  Status Checkpoint() {
    attempted = cache->steps();
    HPS_RETURN_IF_ERROR(cache->Checkpoint());
    acknowledged = attempted;
    return Status::Ok();
  }
  // `count` steps, then a checkpoint.
  Status Round(int count) {
    HPS_RETURN_IF_ERROR(TakeSteps(count));
    return Checkpoint();
  }
  // A new store with some checkpoints behind it and steps since the last; nothing fails yet.
  void Start(const Lab& lab, uint64_t seed) {
    lab.Reset();
    HPS_CHECK(Open(lab, seed, 0).ok());
    for (int round = 0; round < 3; ++round) HPS_CHECK(Round(3).ok());
    HPS_CHECK(TakeSteps(2).ok());
    HPS_CHECK(cache->num_evicted > 0 && cache->num_fetched > 0);
  }
  // Whether the two tiers together have every key as the last step left it: what is wrong, or "".
  std::string CompareTiers(uint64_t seed) {
    Rows rows;
    const Status read = cache->ReadAll(&rows);
    if (!read.ok()) return "reads do not go on: " + read.message();
    const bool is_right = rows == RowsAfter(seed, cache->steps());
    return is_right ? "" : "a key is not read as its newest update left it";
  }
  // The faults count from here.
  void Arm(FaultFileSystem::Faults faults) {
    files.num_calls = files.num_changes = files.num_struck = 0;
    files.faults = faults;
  }
};

// Which checkpoint a store is at, by its position; the rows must be those of that many steps, and
// both the rows and the count of them must be readable. What is wrong, or "".
inline std::string FindCheckpoint(const SsdStore& store, uint64_t seed, int64_t* steps) {
  std::vector<NamedBlob> extras;
  const Status read = store.Extras({}, &extras);
  if (!read.ok()) return read.message();
  *steps = 0;
  for (const NamedBlob& blob : extras) {
    if (blob.name == "position") *steps = std::stoll(blob.bytes);
  }
  const Rows expected = RowsAfter(seed, *steps);
  const auto num_stored = static_cast<uint64_t>(std::count_if(
      expected.begin(), expected.end(), [](const Weights& row) { return row != Weights{}; }));
  if (store.table(0).num_rows() != num_stored) {
    return "the store has " + std::to_string(store.table(0).num_rows()) + " rows, " +
           std::to_string(num_stored) + " expected after step " + std::to_string(*steps);
  }
  SmallCache empty(const_cast<SsdStore*>(&store), seed, *steps);
  Rows rows;
  const Status fetched = empty.ReadAll(&rows);
  if (!fetched.ok()) return fetched.message();
  for (uint64_t key = 0; key < kNumKeys; ++key) {
    if (rows[key] == expected[key]) continue;
    return "key " + std::to_string(key) + " has not its row of step " + std::to_string(*steps);
  }
  return "";
}

// Opens what a fault has left, as a reader and as a writer: each must be at a checkpoint from
// `acknowledged` to `attempted`, and nobody's files may lie about. Then the store must go on.
inline std::string Reopen(const Lab& lab, uint64_t seed, int64_t acknowledged, int64_t attempted) {
  const auto is_allowed = [&](int64_t steps) {
    return steps == acknowledged || steps == attempted;
  };
  int64_t steps = 0;
  std::unique_ptr<SsdStore> reader;
  Status opened = SsdStore::Open(PosixFileSystem(), lab.Options(true), &reader);
  std::string wrong = opened.ok() ? FindCheckpoint(*reader, seed, &steps) : opened.message();
  if (!wrong.empty()) return "reader: " + wrong;
  if (!is_allowed(steps)) return "a reader finds step " + std::to_string(steps);
  reader.reset();
  FaultFileSystem files;  // without faults, and quicker than the system's own
  std::unique_ptr<SsdStore> store;
  opened = SsdStore::Open(&files, lab.Options(), &store);
  wrong = opened.ok() ? FindCheckpoint(*store, seed, &steps) : opened.message();
  if (!wrong.empty()) return "writer: " + wrong;
  if (!is_allowed(steps)) return "a writer finds step " + std::to_string(steps);
  if (lab.NumFiles("segment-") != store->table(0).Figures().num_segments ||
      lab.NumFiles("MANIFEST-") != 1 || lab.NumFiles("extra-") > 1) {
    return "leftovers were not removed";
  }
  std::vector<Damage> damages;
  if (!VerifyStore(PosixFileSystem(), lab.Options().path, &damages).ok()) return "no verify";
  if (!damages.empty()) return "verify finds damage in " + damages[0].file;
  SmallCache cache(store.get(), seed, steps);
  for (int i = 0; i < 4; ++i) {
    if (const Status went = cache.TakeStep(); !went.ok()) return "going on: " + went.message();
  }
  if (const Status went = cache.Checkpoint(); !went.ok()) return "going on: " + went.message();
  wrong = FindCheckpoint(*store, seed, &steps);
  return wrong.empty() && steps != cache.steps() ? "its next checkpoint is not there" : wrong;
}

}  // namespace hps
