// The parts of a store, each without the store: who may use it, numbers and records, what is
// removed, a rewriting, a clone of nothing; and the assertion of a lock that is not held.
//
// Above it: ctest. Below it: csrc/ssd_store, scratch_store.h.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>

#include "common/check.h"
#include "scratch_store.h"
#include "ssd_store/cloner.h"
#include "ssd_store/commits.h"
#include "ssd_store/compactor.h"
#include "ssd_store/file_remover.h"
#include "ssd_store/store_state.h"
#include "ssd_store/store_tables.h"

namespace hps {
namespace {

constexpr uint32_t kRowBytes = 32;

// All below the store's verbs, over a new folder.
struct Parts {
  explicit Parts(const ScratchFolder& folder)
      : options(SmallStore(folder.path(), kRowBytes, 4000)),
        state(PosixFileSystem(), options),
        tables(PosixFileSystem(), options, &state),
        commits(options, tables.context(), &state),
        remover(options, &state, &commits, &tables),
        list(PosixFileSystem(), options, &state, &commits) {
    tables.context()->take_number = [this](uint64_t* number) { return commits.TakeNumber(number); };
    tables.context()->sync_later = [this](std::shared_ptr<File> file) {
      return commits.SyncLater(std::move(file));
    };
    std::filesystem::create_directory(options.path + "/" + kPinFolder);
  }

  StoreOptions options;
  StoreState state;
  StoreTables tables;
  Commits commits;
  FileRemover remover;
  CheckpointList list;
};

bool Aborts(const std::function<void()>& act) {
  const pid_t child = fork();
  if (child == 0) {
    (void)!freopen("/dev/null", "w", stderr);
    act();
    _exit(0);
  }
  int status = 0;
  HPS_CHECK(child > 0 && waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

void TestAStoreThatStoppedSaysWhyAndIsReadOn() {
  const ScratchFolder folder;
  Parts parts(folder);
  StoreState& state = parts.state;
  const std::lock_guard<OwnedMutex> lock(state.lock());
  HPS_CHECK(state.CheckWritable().ok() && !state.has_stopped());
  HPS_CHECK(state.SettleIfBegun(Status(StatusCode::kStore, "full", ENOSPC), false).os_error() ==
            ENOSPC);
  HPS_CHECK(!state.has_stopped());
  (void)state.Settle(Status(StatusCode::kStore, "the first error", EIO)).ok();
  (void)state.Settle(Status(StatusCode::kStore, "the second error", EIO)).ok();
  const Status refused = state.CheckWritable();
  HPS_CHECK(refused.message().find("the first error") != std::string::npos);
  HPS_CHECK(refused.message().find("open it again") != std::string::npos);
  HPS_CHECK(state.CheckReadable().ok());
  state.SetHalfLoaded(true);
  HPS_CHECK(state.CheckReadable().os_error() == EIO);
  state.SetHalfLoaded(false);
  state.Close();
  HPS_CHECK(state.CheckReadable().os_error() == EBADF);
}

void TestAPartWithoutItsLockEndsTheProcess() {
  const ScratchFolder folder;
  Parts parts(folder);
  uint64_t number = 0;
  HPS_CHECK(Aborts([&] { (void)parts.commits.TakeNumber(&number).ok(); }));
  HPS_CHECK(Aborts([&] { parts.remover.TryToRemove(); }));
  HPS_CHECK(Aborts([&] { (void)parts.state.CheckWritable().ok(); }));
  HPS_CHECK(Aborts([&] { parts.state.mutations().AssertHeld(); }));
  const std::lock_guard<OwnedMutex> lock(parts.state.lock());
  HPS_CHECK(!Aborts([&] { (void)parts.state.CheckWritable().ok(); }));
}

void TestNumbersAreTakenOnceAlsoBehindAReservationAndAReopening() {
  const ScratchFolder folder;
  uint64_t last = 0;
  {
    Parts parts(folder);
    const std::lock_guard<OwnedMutex> lock(parts.state.lock());
    HPS_CHECK(parts.commits.Create().ok());
    const uint64_t end = parts.commits.manifest().open.reserved_end;
    while (last <= end) {
      uint64_t number = 0;
      HPS_CHECK(parts.commits.TakeNumber(&number).ok() && number > last);
      last = number;
    }
    HPS_CHECK(parts.commits.manifest().open.reserved_end > last);
  }
  Parts parts(folder);
  const std::lock_guard<OwnedMutex> lock(parts.state.lock());
  HPS_CHECK(parts.commits.Continue().ok());
  uint64_t number = 0;
  HPS_CHECK(parts.commits.TakeNumber(&number).ok() && number > last);
}

void TestARemovalLeavesWhatARunningCallNeedsAndWhatIsNotTheStores() {
  const ScratchFolder folder;
  Parts parts(folder);
  const std::lock_guard<OwnedMutex> lock(parts.state.lock());
  HPS_CHECK(parts.commits.Create().ok());
  const auto path = [&](uint64_t number) {
    return folder.path() + "/" + FileName(kSegmentPrefix, number);
  };
  for (const uint64_t number : {101, 102, 103}) std::ofstream(path(number)) << "bytes";
  std::ofstream(folder.path() + "/notes") << "a user's";
  parts.remover.KeepOutput(101);
  parts.remover.KeepCloned({102});
  parts.remover.TryToRemove();
  HPS_CHECK(std::filesystem::exists(path(101)) && std::filesystem::exists(path(102)));
  HPS_CHECK(!std::filesystem::exists(path(103)));
  parts.remover.KeepOutput(0);
  parts.remover.KeepCloned({});
  parts.remover.TryToRemove();
  parts.remover.AwaitClosing();
  HPS_CHECK(!std::filesystem::exists(path(101)) && !std::filesystem::exists(path(102)));
  HPS_CHECK(std::filesystem::exists(folder.path() + "/notes"));
  HPS_CHECK(std::filesystem::exists(folder.path() + "/" + kCurrentName));
}

void TestACompactorRewritesWhatIsDeadAndCountsIt() {
  const ScratchFolder folder;
  Parts parts(folder);
  Compactor compactor(parts.options, &parts.state, &parts.commits, &parts.tables, &parts.remover);
  uint64_t below = 0;
  {
    const std::lock_guard<OwnedMutex> lock(parts.state.lock());
    HPS_CHECK(parts.commits.Create().ok());
    parts.tables.Make(parts.commits.manifest().open, nullptr);
    std::vector<char> rows(100 * kRowBytes);
    for (uint64_t key = 0; key < 100; ++key) std::memcpy(&rows[key * kRowBytes], &key, 8);
    for (int version = 0; version < 4; ++version) {  // half of the rows, again and again
      HPS_CHECK(parts.tables[0].Append(rows.data(), version == 0 ? 100 : 50).ok());
      HPS_CHECK(parts.tables[0].Seal().ok());
    }
    HPS_CHECK(compactor.SpaceOf(0, 1).freed_bytes > compactor.SpaceOf(0, 1).written_bytes);
    below = parts.commits.next_number();
  }
  const uint64_t bytes = parts.tables[0].Figures().segment_bytes;
  Status damage;
  HPS_CHECK(compactor.RewriteAll(0, 1, below, &damage).ok() && damage.ok());
  HPS_CHECK(parts.tables[0].Figures().segment_bytes < bytes && parts.tables[0].num_rows() == 100);
  const std::lock_guard<OwnedMutex> lock(parts.state.lock());
  StoreFigures figures;
  compactor.AddFigures(&figures);
  HPS_CHECK(figures.compactions > 0 && figures.compaction_failures == 0);
}

void TestAClonerRefusesAStoreWithoutCheckpoints() {
  const ScratchFolder folder;
  Parts parts(folder);
  {
    const std::lock_guard<OwnedMutex> lock(parts.state.lock());
    HPS_CHECK(parts.commits.Create().ok());
  }
  Cloner cloner(PosixFileSystem(), parts.options, &parts.state, &parts.commits, &parts.list,
                &parts.remover);
  CloneSummary summary;
  const std::string target = folder.path() + "/clone";
  const Status refused = cloner.Clone(target, true, &summary);
  HPS_CHECK(refused.code() == StatusCode::kConfig && !std::filesystem::exists(target));
}

}  // namespace
}  // namespace hps

int main() {
  hps::TestAStoreThatStoppedSaysWhyAndIsReadOn();
  hps::TestAPartWithoutItsLockEndsTheProcess();
  hps::TestNumbersAreTakenOnceAlsoBehindAReservationAndAReopening();
  hps::TestARemovalLeavesWhatARunningCallNeedsAndWhatIsNotTheStores();
  hps::TestACompactorRewritesWhatIsDeadAndCountsIt();
  hps::TestAClonerRefusesAStoreWithoutCheckpoints();
  std::printf("store_parts: ok\n");
  return 0;
}
