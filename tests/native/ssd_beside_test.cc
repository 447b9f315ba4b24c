// What goes on beside a clone and a restore of the same store: changes do not wait for the copying
// and take nothing from it, and a look-up sees the rows before the restore or those after it.
//
// Above it: ctest, also under the thread sanitizer. Below it: compaction_lab.h, csrc/ssd_store.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>

#include "compaction_lab.h"

namespace hps {
namespace {

constexpr uint64_t kKeys = 2000;
constexpr std::chrono::seconds kPatience{60};

// Everything that a writer may do, from another thread, which may not wait for the clone.
void ChangeEverything(SsdStore* store, State* state) {
  std::future<void> done = std::async(std::launch::async, [&] {
    HPS_CHECK(Put(store, Range(0, kKeys, 2), 2, state).ok());
    HPS_CHECK(Drop(store, Range(0, kKeys, 3), state).ok());
    HPS_CHECK(Save(store).ok());  // the checkpoint that is cloned is kept no longer
    HPS_CHECK(store->Compact(0, 1).ok());
    HPS_CHECK(Holds(*store, kKeys, *state) && !store->Checkpoints().empty());
  });
  HPS_CHECK(done.wait_for(kPatience) == std::future_status::ready);
}

// Calls `meddle` at the first segment that is copied; the clone must hold the state from before.
// `finish` waits for what `meddle` has begun, before the store is gone.
void CloneBeside(
    const CompactionLab& lab, const std::function<void(SsdStore*, State*)>& meddle,
    const std::function<void()>& finish = [] {}) {
  lab.Reset();
  ReadHooks files;
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(&files, lab.Options(), &store).ok());
  State state;
  HPS_CHECK(Put(store.get(), Range(0, kKeys), 1, &state).ok() && Save(store.get()).ok());
  const State before = state;
  StoreOptions options = lab.Options();
  options.path += "-clone";
  std::atomic<int> num_reads{0};
  files.on_read = [&](const std::string&) {
    if (num_reads++ == 0) meddle(store.get(), &state);
  };
  CloneSummary summary;
  const Status cloned = store->Clone(options.path, false, &summary);
  finish();
  HPS_CHECK(cloned.ok() && num_reads > 0 && summary.files_copied > 4);
  HPS_CHECK(store->CheckReadable().ok() ? Holds(*store, kKeys, state) : state == before);
  if (store->CheckReadable().ok()) {
    // The old checkpoint's files are gone.
    HPS_CHECK(lab.BytesOnDisk() == store->Figures().files_bytes);
  }
  HPS_CHECK(SsdStore::Open(PosixFileSystem(), options, &store).ok());
  HPS_CHECK(Holds(*store, kKeys, before));
}

void TestChangesGoOnBesideAClone(const CompactionLab& lab) { CloneBeside(lab, ChangeEverything); }

void TestAnotherCloneWaitsAndBothAreWhole(const CompactionLab& lab) {
  StoreOptions options = lab.Options();
  options.path += "-other";
  std::future<Status> other;
  const auto meddle = [&](SsdStore* store, State*) {
    other = std::async(std::launch::async, [&options, store] {
      CloneSummary summary;
      return store->Clone(options.path, false, &summary);
    });
    HPS_CHECK(other.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  };
  CloneBeside(lab, meddle, [&] { HPS_CHECK(other.get().ok()); });
}

void TestACloseWaitsForTheClone(const CompactionLab& lab) {
  std::future<uint64_t> closed;
  CloneBeside(lab, [&](SsdStore* store, State*) {
    closed = std::async(std::launch::async, [store] { return store->Close(); });
    HPS_CHECK(closed.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
    while (store->CheckReadable().ok()) std::this_thread::yield();
  });
  HPS_CHECK(closed.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
}

// A fetch of table 1 as the bindings make it.
struct Look {
  Status status;
  uint64_t num_found = 0;
};

Look LookUp(const SsdStore& store) {
  Look look;
  look.status = store.CheckReadable();
  if (!look.status.ok()) return look;
  const std::vector<uint64_t> keys = Range(0, kKeys);
  std::vector<char> rows(kKeys * kRowBytes);
  std::vector<uint8_t> found(kKeys);
  look.status = store.table(1).Fetch(keys.data(), kKeys, rows.data(), found.data());
  if (look.status.ok()) look.status = store.CheckReadable();
  for (const uint8_t is_found : found) look.num_found += is_found;
  return look;
}

// A store of two tables, at its checkpoint, beside a snapshot whose half for the second table is
// damaged: a restore takes the first from it, fails at the second, and begins again with the
// footers.
std::unique_ptr<SsdStore> OpenBesideADamagedSnapshot(const CompactionLab& lab, ReadHooks* files) {
  lab.Reset();
  StoreOptions options = lab.Options();
  options.snapshot_rows = 0;
  options.tables.push_back(options.tables[0]);
  options.tables[1].name = "users";
  std::unique_ptr<SsdStore> store;
  HPS_CHECK(SsdStore::Open(files, options, &store).ok());
  for (size_t table : {0, 1}) {
    HPS_CHECK(store->Append(table, RowsOf(Range(0, kKeys), 1).data(), kKeys).ok());
  }
  HPS_CHECK(Save(store.get()).ok() && store->Close() > 0);
  store.reset();
  HPS_CHECK(SsdStore::Open(files, options, &store).ok());
  HPS_CHECK(store->Figures().snapshot_bytes > 0);
  for (const auto& entry : std::filesystem::directory_iterator(options.path)) {
    if (entry.path().filename().string().rfind("index-", 0) != 0) continue;
    const auto quarter = static_cast<std::streamoff>(entry.file_size() / 4);
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-quarter, std::ios::end);
    file << std::string(quarter, '\0');  // as if many of its keys were in no segment
  }
  return store;
}

// Looks up in the midst of a restore: when a segment of the first table is read for the second time
// since the loading began, by its footer. `meddle` comes behind it.
void LookInTheMidst(SsdStore* store, ReadHooks* files, std::future<Look>* look,
                    const std::function<void()>& meddle) {
  const auto segment = "/" + FileName(kSegmentPrefix, store->table(0).Segments()[3]->info.number);
  const uint64_t loads_before = store->num_loads();
  files->on_read = [=, num_reads = 0](const std::string& path) mutable {
    const bool is_loading = store->num_loads() > loads_before;
    if (!is_loading || path.find(segment) == std::string::npos || ++num_reads != 2) return;
    *look = std::async(std::launch::async, [store] { return LookUp(*store); });
    (void)look->wait_for(std::chrono::milliseconds(100));  // time enough to go wrong
    if (meddle) meddle();
  };
}

void TestALookUpBesideARestoreSeesAWholeCheckpoint(const CompactionLab& lab) {
  ReadHooks files;
  const std::unique_ptr<SsdStore> store = OpenBesideADamagedSnapshot(lab, &files);
  HPS_CHECK(store->Append(1, RowsOf({kKeys}, 1).data(), 1).ok());
  std::future<Look> look;
  LookInTheMidst(store.get(), &files, &look, nullptr);
  HPS_CHECK(store->Restore({}).ok());
  HPS_CHECK(store->Figures().snapshot_bytes == 0 && look.valid());
  const Look seen = look.get();
  HPS_CHECK(seen.status.ok() && seen.num_found == kKeys);
  HPS_CHECK(store->table(1).num_rows() == kKeys);
}

// Where the checkpoint cannot be loaded: an error, never an absence.
void TestALookUpBesideARestoreThatFailsSaysSo(const CompactionLab& lab) {
  ReadHooks files;
  const std::unique_ptr<SsdStore> store = OpenBesideADamagedSnapshot(lab, &files);
  const std::string damaged = store->table(1).Segments().back()->path;
  std::future<Look> look;
  LookInTheMidst(store.get(), &files, &look, [&] { std::filesystem::resize_file(damaged, 70); });
  HPS_CHECK(!store->Restore({}).ok() && look.valid());
  const Look seen = look.get();
  HPS_CHECK(!seen.status.ok());
  HPS_CHECK(seen.status.message().find("could not be loaded") != std::string::npos);
}

}  // namespace
}  // namespace hps

int main() {
  const hps::CompactionLab lab;
  hps::TestChangesGoOnBesideAClone(lab);
  hps::TestAnotherCloneWaitsAndBothAreWhole(lab);
  hps::TestACloseWaitsForTheClone(lab);
  hps::TestALookUpBesideARestoreSeesAWholeCheckpoint(lab);
  hps::TestALookUpBesideARestoreThatFailsSaysSo(lab);
  std::printf("ok\n");
  return 0;
}
