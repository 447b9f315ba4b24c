// Recipes F1, F2 and F3: a sync that fails once, a disk that is full after X bytes, reads and opens
// that fail, transfers that are interrupted or short. The store reports each as one typed error,
// keeps what was acknowledged, and goes on where it may. docs/reliability.md says what each proves
// and which bug is planted in it. With the argument "full" many workloads are run.
//
// Above it: ctest, tests/torture/run.py. Below it: torture_lab.h, fault_sweeps.h,
// disturbed_transfers.h.
#include "disturbed_transfers.h"
#include "fault_sweeps.h"
#include "torture_lab.h"

namespace hps {
namespace {

Status TwoRounds(Life* life) {
  HPS_RETURN_IF_ERROR(life->Round(2));
  return life->Round(2);
}

bool HasStopped(const Status& status) {
  return status.code() == StatusCode::kStore &&
         status.message().find("the store stopped") != std::string::npos;
}

// What must hold right after the call that met a failed sync.
std::string AfterFailedSync(Life* life, uint64_t seed, int error, const Status& status) {
  if (status.ok()) return "the failed sync was not reported";
  if (status.code() != StatusCode::kStore || status.os_error() != error) return status.message();
  const std::string compared = life->CompareTiers(seed);
  if (!compared.empty()) return compared;
  const Status next = life->Round(1);
  // Only the sync of a file that is then made anew (CURRENT.new) may be survived.
  const bool is_survivable = status.message().find("CURRENT.new") != std::string::npos;
  if (is_survivable) return next.ok() ? "" : "it does not go on: " + next.message();
  if (!HasStopped(status) || status.message().find("repeat the call") != std::string::npos) {
    return "the error does not say that the store stopped: " + status.message();
  }
  return HasStopped(next) ? "" : "the store goes on after a failed sync";
}

// F1. The pages of the failed sync are lost with the power. False when the call was not reached.
bool FailSync(const Lab& lab, uint64_t seed, int64_t call, int error, Lie lie, Recipe* recipe) {
  Life life;
  life.Start(lab, seed);
  FaultFileSystem::Faults faults;
  faults.counted = Call::kSync;
  faults.fail_at_call = call;
  faults.error = error;
  faults.lie = lie;
  life.Arm(faults);
  const Status status = TwoRounds(&life);
  if (life.files.num_struck == 0) return false;
  ++recipe->runs;
  std::string wrong;
  if (lie == Lie::kNone) wrong = AfterFailedSync(&life, seed, error, status);
  life.store.reset();
  std::mt19937_64 random(seed * 100 + static_cast<uint64_t>(call));
  life.files.LosePower(&random);
  if (wrong.empty()) wrong = Reopen(lab, seed, life.acknowledged, life.attempted);
  recipe->Note(wrong, static_cast<int64_t>(seed), call);
  return true;
}

// F2. False when the space was enough.
bool FillDisk(const Lab& lab, uint64_t seed, int64_t space, Lie lie, bool reserves,
              Recipe* recipe) {
  Life life;
  life.Start(lab, seed);
  FaultFileSystem::Faults faults;
  faults.space_left = space;
  faults.reserves = reserves;
  faults.lie = lie;
  life.Arm(faults);
  const Status status = TwoRounds(&life);
  if (status.ok() && lie == Lie::kNone) return false;
  ++recipe->runs;
  std::string wrong;
  if (lie == Lie::kNone && status.os_error() != ENOSPC) wrong = "not ENOSPC: " + status.message();
  if (wrong.empty()) wrong = life.CompareTiers(seed);
  life.Arm({});  // space returns
  if (wrong.empty()) {
    const Status went = life.Round(3);
    // Without reservation the manifest's own record may have met the full disk.
    const bool may_stop = !reserves && HasStopped(went);
    if (!went.ok() && !may_stop) wrong = "it does not go on: " + went.message();
  }
  life.store.reset();
  if (wrong.empty()) wrong = Reopen(lab, seed, life.acknowledged, life.attempted);
  recipe->Note(wrong, static_cast<int64_t>(seed), space);
  return true;
}

// F3, one read (or open) that fails in two rounds. False when the call was not reached.
bool FailOneRead(const Lab& lab, uint64_t seed, const FaultFileSystem::Faults& faults,
                 Recipe* recipe) {
  Life life;
  life.Start(lab, seed);
  life.Arm(faults);
  const Status status = TwoRounds(&life);
  if (life.files.num_struck == 0) return false;
  ++recipe->runs;
  std::string wrong;
  if (status.os_error() != faults.error || status.message().find("/store") == std::string::npos) {
    wrong = "no clear error: " + status.message();
  }
  life.Arm({});
  if (wrong.empty()) wrong = life.CompareTiers(seed);
  if (wrong.empty()) {
    const Status went = life.Round(2);
    if (!went.ok() && !HasStopped(went)) wrong = "it does not go on: " + went.message();
  }
  life.store.reset();
  if (wrong.empty()) wrong = Reopen(lab, seed, life.acknowledged, life.attempted);
  recipe->Note(wrong, static_cast<int64_t>(seed), faults.fail_at_call);
  return true;
}

// F3, one read (or open) that fails while a store is opened; what is there stays.
bool FailOneReadInOpening(const Lab& lab, uint64_t seed, const FaultFileSystem::Faults& faults,
                          Recipe* recipe) {
  int64_t acknowledged = 0;
  {
    Life life;
    life.Start(lab, seed);
    acknowledged = life.acknowledged;
  }
  Life life;
  life.Arm(faults);
  const Status opened = life.Open(lab, seed, 0);
  if (life.files.num_struck == 0) return false;
  ++recipe->runs;
  std::string wrong;
  if (opened.os_error() != faults.error || opened.message().find("/store") == std::string::npos) {
    wrong = "no clear error: " + opened.message();
  }
  life.store.reset();
  if (wrong.empty()) wrong = Reopen(lab, seed, acknowledged, acknowledged);
  recipe->Note(wrong, static_cast<int64_t>(seed), faults.fail_at_call);
  return true;
}

// F3, over transfers that are disturbed; what is wrong, or "".
std::string TrainOnce(const Lab& lab, uint64_t seed) {
  lab.Reset();
  std::unique_ptr<SsdStore> store;
  Status status = SsdStore::Open(PosixFileSystem(), lab.Options(), &store);
  if (!status.ok()) return status.message();
  SmallCache cache(store.get(), seed, 0);
  for (int step = 0; step < 9 && status.ok(); ++step) {
    status = cache.TakeStep();
    if (status.ok() && step % 3 == 2) status = cache.Checkpoint();
  }
  store.reset();
  return status.ok() ? Reopen(lab, seed, cache.steps(), cache.steps()) : status.message();
}

// Descriptors of this process that keep the space of extras which have no name any more.
int NumOpenExtras() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string path = std::filesystem::read_symlink(entry, gone);
    count += path.find("/extra-") != std::string::npos;
  }
  return count;
}

// A checkpoint that the disk cannot take, at its second extra or behind both, is tried again.
void TestARefusedCheckpointGivesItsSpaceBack(const Lab& lab) {
  const std::vector<NamedBlob> blobs = {{"one", std::string(6000, '1')},
                                        {"two", std::string(6000, '2')}};
  for (const int64_t space : {9000, 12010}) {
    Life life;
    life.Start(lab, 1);
    CheckpointSummary summary;
    for (int attempt = 0; attempt < 3; ++attempt) {
      FaultFileSystem::Faults faults;
      faults.space_left = space;
      life.Arm(faults);
      const Status refused = life.store->MakeCheckpoint("", blobs, &summary);
      HPS_CHECK(refused.os_error() == ENOSPC && life.files.faults.space_left < space - 6000 + 1);
      HPS_CHECK(NumOpenExtras() == 0 && lab.NumFiles("extra-") <= 1);
    }
    life.Arm({});
    HPS_CHECK(life.store->MakeCheckpoint("", blobs, &summary).ok());
    HPS_CHECK(lab.NumFiles("extra-") == 2);
  }
}

void RunF1(const Lab& lab, uint64_t num_seeds, Account* account) {
  Recipe recipe;
  for (const int error : {EIO, ENOSPC}) {  // of a disk that reserves space only when it syncs
    SweepCalls(num_seeds, [&](uint64_t seed, int64_t call) {
      return FailSync(lab, seed, call, error, Lie::kNone, &recipe);
    });
  }
  account->Add("F1", recipe, 10, "syncs that fail once, then a loss of power");
  Recipe planted;
  SweepCalls(1, [&](uint64_t seed, int64_t call) {
    return FailSync(lab, seed, call, EIO, Lie::kHiddenFailedSync, &planted);
  });
  account->AddPlanted("F1", planted, "a failed sync is taken for a success");
}

void RunF2(const Lab& lab, uint64_t num_seeds, int64_t stride, Account* account) {
  for (const bool reserves : {true, false}) {
    Recipe recipe;
    SweepSpace(num_seeds, stride, [&](uint64_t seed, int64_t space) {
      return FillDisk(lab, seed, space, Lie::kNone, reserves, &recipe);
    });
    account->Add("F2", recipe, 10,
                 std::string("disks full after X bytes, told by the ") +
                     (reserves ? "reservation" : "write"));
  }
  Recipe planted;
  for (int64_t space = 0; space < 6000; space += 997) {
    FillDisk(lab, 1, space, Lie::kSwallowedFullDisk, false, &planted);
  }
  account->AddPlanted("F2", planted, "what has no space is dropped without a word");
}

void RunF3(const Lab& lab, uint64_t num_seeds, Account* account) {
  for (const Call counted : {Call::kRead, Call::kOpen}) {
    Recipe recipe;
    for (const auto refuse : {FailOneRead, FailOneReadInOpening}) {
      SweepRefusals(num_seeds, counted, [&](uint64_t seed, const FaultFileSystem::Faults& faults) {
        return refuse(lab, seed, faults, &recipe);
      });
    }
    account->Add("F3", recipe, 20,
                 counted == Call::kOpen ? "opens refused with EACCES" : "reads failed with EIO");
  }
  Recipe recipe;
  DisturbTransfers(4 * num_seeds, [&](uint64_t seed) { return TrainOnce(lab, seed); }, &recipe);
  account->Add("F3", recipe, 4, "stores over interrupted and short transfers");
  Recipe planted;
  for (int64_t call = 0; call < 12; ++call) {
    Life life;
    life.Start(lab, 1);
    FaultFileSystem::Faults faults;
    faults.lie = Lie::kHalvedWrite;
    faults.lie_at_call = call;
    life.Arm(faults);
    (void)life.Round(2).ok();
    life.store.reset();
    planted.Note(Reopen(lab, 1, life.acknowledged, life.attempted), 1, call);
  }
  account->AddPlanted("F3", planted, "a short write is taken for a whole one");
}

}  // namespace
}  // namespace hps

int main(int argc, char** argv) {
  const bool is_full = hps::IsFull(argc, argv);
  const hps::Lab lab;
  hps::Account account;
  hps::TestARefusedCheckpointGivesItsSpaceBack(lab);
  hps::RunF1(lab, is_full ? 100 : 2, &account);
  hps::RunF2(lab, is_full ? 20 : 1, is_full ? 61 : 307, &account);
  hps::RunF3(lab, is_full ? 30 : 2, &account);
  return account.ExitCode();
}
