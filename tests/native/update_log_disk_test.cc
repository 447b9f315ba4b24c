// Recipes F1, F2 and F3 of the update log: a sync that fails, a disk that is full after X bytes,
// reads and opens that fail, transfers that are interrupted or short. The log reports each as one
// typed error, keeps what was acknowledged, acknowledges nothing after a failed sync, and goes on
// when space returns. With the argument "full" many workloads are run.
//
// Above it: ctest, tests/torture/run.py. Below it: update_log_lab.h, recipe.h, fault_sweeps.h,
// disturbed_transfers.h.
#include "disturbed_transfers.h"
#include "fault_sweeps.h"
#include "recipe.h"
#include "update_log_lab.h"

namespace hps {
namespace {

constexpr int kSteps = 24;

Status Live(LogLife* life) {
  HPS_RETURN_IF_ERROR(life->Open());
  return life->Steps(kSteps);
}

// Whatever the error was: with that of a full disk a caller would think that a later try may do.
bool HasStopped(const Status& status) {
  return status.code() == StatusCode::kStore && status.os_error() == EIO &&
         status.message().find("the update log stopped") != std::string::npos &&
         status.message().find("repeat the call") == std::string::npos;
}

// No call of a log that has failed succeeds, but for those that only look.
std::string AfterFailure(LogLife* life) {
  UpdateLog* log = life->log.get();
  bool is_covered = false;
  uint64_t number = 0;
  if (!HasStopped(log->Wait(0, false, kPatience, &is_covered))) return "Wait goes on";
  if (!HasStopped(log->Wait(1, true, kPatience, &is_covered))) return "Wait goes on";
  if (!HasStopped(AppendPayload(log, "more", &number))) return "Append goes on";
  if (!HasStopped(log->TakeBack(log->appended()))) return "TakeBack goes on";
  return HasStopped(log->Close()) ? "" : "Close reports a success";
}

// F1. False when the call was not reached.
bool FailSync(const LogLab& lab, uint64_t seed, int64_t call, bool loses_power, Lie lie,
              Recipe* recipe) {
  lab.Reset();
  LogLife life(lab, seed);
  life.files.faults.counted = Call::kSync;
  life.files.faults.fail_at_call = call;
  life.files.faults.error = seed % 2 == 0 ? EIO : ENOSPC;
  life.files.faults.lie = lie;
  const int error = life.files.faults.error;  // of an opening
  Status status = Live(&life);
  if (status.ok()) status = life.Wait(true);
  std::string wrong;
  if (life.log != nullptr && lie == Lie::kNone && !status.ok()) wrong = AfterFailure(&life);
  life.Kill();
  if (life.files.num_struck == 0) return false;
  ++recipe->runs;
  if (lie == Lie::kNone && status.os_error() != error && !HasStopped(status))
    wrong = "no clear error: " + status.message();
  if (loses_power) {
    std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(call));
    life.files.LosePower(&random);
  }
  if (wrong.empty()) wrong = ReopenLog(&life, loses_power ? life.durable : life.logged);
  recipe->Note(wrong, static_cast<int64_t>(seed), call);
  return true;
}

// A record that was refused for want of space has left no trace, and all before it goes on.
std::string AfterRefusal(LogLife* life, const Status& status, uint64_t appended) {
  if (status.os_error() != ENOSPC || status.code() != StatusCode::kStore) return status.message();
  if (status.message().find("repeat the call") == std::string::npos) return "no advice";
  if (life->log->appended() != appended) return "a refused record counts";
  const Status synced = life->Wait(true);
  return synced.ok() ? "" : "what came before is not synced: " + synced.message();
}

// F2 where space is reserved: only appends fail. False when the space was enough.
bool FillDisk(const LogLab& lab, uint64_t seed, int64_t space, Recipe* recipe) {
  lab.Reset();
  LogLife life(lab, seed);
  life.files.faults.space_left = space;
  std::string wrong;
  bool was_refused = false;
  const Status opened = life.Open();
  if (!opened.ok()) {
    was_refused = true;
    if (opened.os_error() != ENOSPC) wrong = opened.message();
    life.files.SetSpace(INT64_MAX);
    if (!life.Open().ok()) wrong = "it does not open when space returns";
  }
  for (int step = 0; step < kSteps && wrong.empty(); ++step) {
    const uint64_t before = life.log->appended();
    const Status status = life.Step();
    if (status.ok()) continue;
    if (was_refused)
      return recipe->Note("it is refused with space: " + status.message(), 0, space), true;
    was_refused = true;
    wrong = AfterRefusal(&life, status, before);
    life.files.SetSpace(INT64_MAX);
  }
  if (!was_refused) return false;
  ++recipe->runs;
  if (wrong.empty() && !life.log->Close().ok()) wrong = "it does not close";
  if (wrong.empty()) wrong = ReopenLog(&life, life.log->appended());
  recipe->Note(wrong, static_cast<int64_t>(seed), space);
  return true;
}

// F2 where nothing is reserved: a write meets the full disk, and the log stops.
bool FillDiskAtWrite(const LogLab& lab, uint64_t seed, int64_t space, Lie lie, Recipe* recipe) {
  lab.Reset();
  LogLife life(lab, seed);
  life.files.faults.space_left = space;
  life.files.faults.reserves = false;
  life.files.faults.lie = lie;
  const Status status = Live(&life);
  if (status.ok() && lie == Lie::kNone) return false;
  ++recipe->runs;
  std::string wrong;
  if (lie == Lie::kNone && status.os_error() != ENOSPC && !HasStopped(status)) {
    wrong = "no clear error: " + status.message();
  }
  if (lie == Lie::kNone && wrong.empty() && life.log != nullptr) wrong = AfterFailure(&life);
  life.Kill();
  if (wrong.empty()) wrong = ReopenLog(&life, life.logged);
  recipe->Note(wrong, static_cast<int64_t>(seed), space);
  return true;
}

// F3: one read or open fails, in the second opening or in what follows it.
bool FailOne(const LogLab& lab, uint64_t seed, const FaultFileSystem::Faults& faults,
             Recipe* recipe) {
  lab.Reset();
  LogLife life(lab, seed);
  HPS_CHECK(Live(&life).ok() && life.Wait(false).ok());
  life.Kill();
  life.Reset();
  life.files.faults = faults;
  std::vector<LogRecord> records;
  Status status = life.Open();
  if (status.ok()) status = ReadAll(life.log.get(), &records);
  if (status.ok()) status = life.Steps(kSteps);
  life.Kill();
  if (life.files.num_struck == 0) return false;
  ++recipe->runs;
  std::string wrong;
  // A file that was to be ready ahead of time is asked for again, and nobody need know.
  const bool is_hidden = status.ok() && faults.counted == Call::kOpen;
  const bool names_file = status.message().find(lab.Options().folder) != std::string::npos;
  const bool is_clear = status.os_error() == faults.error || HasStopped(status);
  if (!is_hidden && !(is_clear && names_file)) {
    wrong = "no clear error: " + status.message();
  }
  if (wrong.empty()) wrong = ReopenLog(&life, life.logged);
  recipe->Note(wrong, static_cast<int64_t>(seed), faults.fail_at_call);
  return true;
}

// F3, over transfers that are disturbed; what is wrong, or "".
std::string LiveOnce(const LogLab& lab, uint64_t seed) {
  lab.Reset();
  LogLife life(lab, seed);
  Status status = Live(&life);
  if (status.ok()) status = life.log->Close();
  return status.ok() ? ReopenLog(&life, life.log->appended()) : status.message();
}

void RunF1(const LogLab& lab, uint64_t num_seeds, Account* account) {
  for (const bool loses_power : {true, false}) {
    Recipe recipe;
    SweepCalls(num_seeds, [&](uint64_t seed, int64_t call) {
      return FailSync(lab, seed, call, loses_power, Lie::kNone, &recipe);
    });
    account->Add("F1", recipe, 10,
                 std::string("syncs of an update log that fail once, then ") +
                     (loses_power ? "a loss of power" : "a kill"));
  }
  Recipe planted;
  SweepCalls(4, [&](uint64_t seed, int64_t call) {
    return FailSync(lab, seed, call, true, Lie::kHiddenFailedSync, &planted);
  });
  account->AddPlanted("F1", planted, "a failed sync of the log is taken for a success");
}

void RunF2(const LogLab& lab, uint64_t num_seeds, int64_t stride, Account* account) {
  Recipe reserved;
  SweepSpace(num_seeds, stride,
             [&](uint64_t seed, int64_t space) { return FillDisk(lab, seed, space, &reserved); });
  account->Add("F2", reserved, 20, "disks full after X bytes of an update log, then space");
  Recipe written;
  SweepSpace(num_seeds, stride, [&](uint64_t seed, int64_t space) {
    return FillDiskAtWrite(lab, seed, space, Lie::kNone, &written);
  });
  account->Add("F2", written, 10, "the same where nothing can be reserved, told by the write");
  Recipe planted;
  for (int64_t space = 1100; space < 6000; space += 397) {
    FillDiskAtWrite(lab, 1, space, Lie::kSwallowedFullDisk, &planted);
  }
  account->AddPlanted("F2", planted, "what has no space in the log is dropped without a word");
}

void RunF3(const LogLab& lab, uint64_t num_seeds, Account* account) {
  for (const Call counted : {Call::kRead, Call::kOpen}) {
    Recipe recipe;
    SweepRefusals(num_seeds, counted, [&](uint64_t seed, const FaultFileSystem::Faults& faults) {
      return FailOne(lab, seed, faults, &recipe);
    });
    account->Add("F3", recipe, 10,
                 counted == Call::kOpen ? "opens of an update log refused with EACCES"
                                        : "reads of an update log failed with EIO");
  }
  Recipe recipe;
  DisturbTransfers(4 * num_seeds, [&](uint64_t seed) { return LiveOnce(lab, seed); }, &recipe);
  account->Add("F3", recipe, 4, "update logs over interrupted and short transfers");
  Recipe planted;
  for (int64_t call = 10; call < 60; ++call) {
    lab.Reset();
    LogLife life(lab, 1);
    life.files.faults.lie = Lie::kHalvedWrite;
    life.files.faults.lie_at_call = call;
    (void)Live(&life).ok();
    life.Kill();
    planted.Note(ReopenLog(&life, life.logged), 1, call);
  }
  account->AddPlanted("F3", planted, "a short write of the log is taken for a whole one");
}

}  // namespace
}  // namespace hps

int main(int argc, char** argv) {
  const bool is_full = hps::IsFull(argc, argv);
  const hps::LogLab lab;
  hps::Account account;
  hps::RunF1(lab, is_full ? 200 : 2, &account);
  hps::RunF2(lab, is_full ? 20 : 1, is_full ? 61 : 307, &account);
  hps::RunF3(lab, is_full ? 30 : 2, &account);
  return account.ExitCode();
}
