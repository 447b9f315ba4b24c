// Recipes K2, K4 and P1 of the update log: a crash at every call, of appends, cuts and openings; a
// loss of power at every call. What was acknowledged is found again, and what else is found comes
// before nothing that is missing. With the argument "full" many workloads are run.
//
// Above it: ctest, tests/torture/run.py. Below it: update_log_lab.h, recipe.h, fault_sweeps.h.
#include "fault_sweeps.h"
#include "recipe.h"
#include "update_log_lab.h"

namespace hps {
namespace {

constexpr int kSteps = 60;

Status LiveAndClose(LogLife* life) {
  HPS_RETURN_IF_ERROR(life->Open());
  HPS_RETURN_IF_ERROR(life->Steps(kSteps));
  HPS_RETURN_IF_ERROR(life->log->Close());
  life->logged = life->durable = life->log->appended();
  return Status::Ok();
}

FaultFileSystem::Faults CrashAt(int64_t call) {
  FaultFileSystem::Faults faults;
  faults.fail_at_call = call;
  faults.is_crash = true;
  return faults;
}

// Their premise: logs have died in a file that was used before.
struct Deaths {
  Recipe recipe;
  int64_t num_in_used_files = 0;
};

// K2, P1. False when the call was not reached.
bool CrashOnce(const LogLab& lab, uint64_t seed, int64_t call, bool loses_power, Lie lie,
               Deaths* deaths) {
  lab.Reset();
  LogLife life(lab, seed);
  life.steps_a_cut = 5;  // files are used again all the time
  life.files.faults = CrashAt(call);
  life.files.faults.lie = lie;
  const Status status = LiveAndClose(&life);
  life.Kill();
  if (life.files.num_struck == 0) return false;
  Recipe* const recipe = &deaths->recipe;
  ++recipe->runs;
  deaths->num_in_used_files += life.files.num_used_again > 0;
  std::string wrong = status.ok() ? "the crash was not reported" : "";
  if (loses_power) {
    std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(call));
    life.files.LosePower(&random);
  }
  if (wrong.empty()) wrong = ReopenLog(&life, loses_power ? life.durable : life.logged);
  recipe->Note(wrong, static_cast<int64_t>(seed), call);
  return true;
}

// Bytes that a process left behind when it died while it wrote them.
void TearEnd(const LogLab& lab) {
  std::string newest;
  for (const std::string& name : lab.Names()) {
    if (name.rfind(kLogFilePrefix, 0) == 0) newest = name;
  }
  std::unique_ptr<File> file;
  HPS_CHECK(PosixFileSystem()->Open(lab.Path(newest), OpenMode::kReadWrite, &file).ok());
  uint64_t size = 0;
  HPS_CHECK(file->Size(&size).ok() && file->Write(size, "torn bytes", 10).ok());
}

// K4: openings of a torn log that crash, each a call later than the last, until one is through.
bool CrashOpenings(const LogLab& lab, uint64_t seed, int64_t call, Lie lie, Recipe* recipe) {
  lab.Reset();
  LogLife life(lab, seed);
  HPS_CHECK(life.Open().ok() && life.Steps(kSteps).ok() && life.Append().ok());
  HPS_CHECK(life.Wait(false).ok());
  life.Kill();
  TearEnd(lab);
  bool was_struck = false;
  for (int depth = 0; depth < 5; ++depth) {
    life.Reset();
    life.files.faults = CrashAt(call);
    life.files.faults.lie = lie;
    (void)life.Open().ok();
    life.Kill();
    was_struck = was_struck || life.files.num_struck > 0;
  }
  if (!was_struck && lie == Lie::kNone) return false;
  ++recipe->runs;
  recipe->Note(ReopenLog(&life, life.logged), static_cast<int64_t>(seed), call);
  return was_struck;
}

void RunCrashes(const LogLab& lab, uint64_t num_seeds, bool loses_power, Account* account) {
  const char* id = loses_power ? "P1" : "K2";
  Deaths deaths;
  SweepCalls(num_seeds, [&](uint64_t seed, int64_t call) {
    return CrashOnce(lab, seed, call, loses_power, Lie::kNone, &deaths);
  });
  account->Add(id, deaths.recipe, 60,
               std::string(loses_power ? "losses of power at every call of an update log, "
                                       : "crashes at every call of an update log, ") +
                   std::to_string(deaths.num_in_used_files) + " behind files used again");
  HPS_CHECK(deaths.num_in_used_files > 20);
  if (loses_power) {
    Deaths forgetful;
    for (int64_t call = 10; call < 200; call += 9) {
      CrashOnce(lab, 1, call, true, Lie::kForgottenSync, &forgetful);
    }
    account->AddPlanted(id, forgetful.recipe, "the log's syncs do nothing");
    return;
  }
  Recipe planted;
  for (int64_t call = 10; call < 250; call += 3) {
    lab.Reset();
    LogLife life(lab, 1);
    life.files.faults.lie = Lie::kDroppedWrite;
    life.files.faults.lie_at_call = call;
    (void)LiveAndClose(&life).ok();
    life.Kill();
    planted.Note(ReopenLog(&life, life.logged), 1, call);
  }
  account->AddPlanted(id, planted, "a write of the log is reported and dropped");
}

void RunOpenings(const LogLab& lab, uint64_t num_seeds, Account* account) {
  Recipe recipe;
  SweepCalls(num_seeds, [&](uint64_t seed, int64_t call) {
    return CrashOpenings(lab, seed, call, Lie::kNone, &recipe);
  });
  account->Add("K4", recipe, 5, "update logs whose openings crash at every call, five deep");
  Recipe planted;
  SweepCalls(1, [&](uint64_t seed, int64_t call) {
    return CrashOpenings(lab, seed, call, Lie::kLongTruncate, &planted);
  });
  account->AddPlanted("K4", planted, "a torn end is cut 12 bytes too far");
}

}  // namespace
}  // namespace hps

int main(int argc, char** argv) {
  const bool is_full = hps::IsFull(argc, argv);
  const hps::LogLab lab;
  hps::Account account;
  hps::RunCrashes(lab, is_full ? 60 : 1, false, &account);
  hps::RunCrashes(lab, is_full ? 120 : 2, true, &account);
  hps::RunOpenings(lab, is_full ? 30 : 2, &account);
  return account.ExitCode();
}
