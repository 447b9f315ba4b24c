// Recipes K2, K3, K4 and P1: the store dies at every call of a checkpoint, of training, of an
// opening, and the power with it. docs/reliability.md says what each proves and which bug is
// planted in it. With the argument "full" many workloads are run instead of one or two.
//
// Above it: ctest, tests/torture/run.py. Below it: torture_lab.h.
#include <cstring>

#include "torture_lab.h"

namespace hps {
namespace {

constexpr int kDeepest = 5;  // openings that die one after the other

// What a run may vary.
struct Plan {
  uint64_t seed = 1;
  int64_t call = 0;  // at which the store dies
  Lie lie = Lie::kNone;
  bool forgets_victims = false;
};

FaultFileSystem::Faults CrashAt(const Plan& plan) {
  FaultFileSystem::Faults faults;
  faults.is_crash = true;
  faults.fail_at_call = plan.call;
  faults.lie = plan.lie;
  return faults;
}

// A store with some checkpoints behind it and steps since the last; nothing fails yet.
void Start(const Lab& lab, uint64_t seed, Life* life) {
  lab.Reset();
  HPS_CHECK(life->Open(lab, seed, 0).ok());
  for (int round = 0; round < 3; ++round) HPS_CHECK(life->Round(3).ok());
  for (int step = 0; step < 2; ++step) HPS_CHECK(life->cache->TakeStep().ok());
  HPS_CHECK(life->cache->num_evicted > 0 && life->cache->num_fetched > 0);
}

// K2. False when the call was not reached.
bool CrashInCheckpoint(const Lab& lab, const Plan& plan, Recipe* recipe) {
  Life life;
  Start(lab, plan.seed, &life);
  const int64_t before = life.cache->steps() - 2;
  FaultFileSystem::Faults faults = CrashAt(plan);
  if (plan.lie == Lie::kDroppedWrite) {  // the planted bug takes the place of the crash
    faults.lie_at_call = plan.call;
    faults.fail_at_call = -1;
  }
  life.Arm(faults);
  const bool is_acknowledged = life.cache->Checkpoint().ok();
  const int64_t attempted = life.cache->steps();
  const bool is_reached = life.files.num_changes > plan.call;
  life.store.reset();
  recipe->runs += is_reached;
  const int64_t acknowledged = is_acknowledged ? attempted : before;
  recipe->Note(Reopen(lab, plan.seed, acknowledged, attempted), plan.seed, plan.call);
  return is_reached;
}

// What K3 puts between two checkpoints. An action that fails has changed nothing that can be read.
using Action = Status (*)(Life* life);

Status TrainAndEvict(Life* life) {
  for (int step = 0; step < 6; ++step) HPS_RETURN_IF_ERROR(life->cache->TakeStep());
  return Status::Ok();
}

std::string CompareTiers(Life* life, uint64_t seed) {
  Rows rows;
  const Status read = life->cache->ReadAll(&rows);
  if (!read.ok()) return read.message();
  const bool is_right = rows == RowsAfter(seed, life->cache->steps());
  return is_right ? "" : "a key is not read as its newest update left it";
}

// K3: a crash during the action; or (once) one call that fails, after which the living store must
// still have every key in one place, and go on. False when the call was not reached.
bool CrashInAction(const Lab& lab, const Plan& plan, Action action, bool is_crash, Recipe* recipe) {
  Life life;
  Start(lab, plan.seed, &life);
  const int64_t acknowledged = life.cache->steps() - 2;
  life.cache->forgets_victims = plan.forgets_victims;
  FaultFileSystem::Faults faults = CrashAt(plan);
  faults.is_crash = is_crash;
  life.Arm(faults);
  const Status done = action(&life);
  if (life.files.num_struck == 0) return false;
  ++recipe->runs;
  std::string wrong = CompareTiers(&life, plan.seed);
  int64_t attempted = acknowledged;
  if (!is_crash && wrong.empty()) {
    life.Arm({});
    const Status went = life.Round(4);
    if (went.ok()) attempted = life.cache->steps();
    const bool has_stopped = went.message().find("the store stopped") != std::string::npos;
    if (!went.ok() && !has_stopped) wrong = "going on: " + went.message();
    if (wrong.empty()) wrong = CompareTiers(&life, plan.seed);
  }
  life.store.reset();
  if (wrong.empty()) {
    wrong = Reopen(lab, plan.seed, is_crash ? acknowledged : attempted, attempted);
  }
  recipe->Note(wrong, plan.seed, plan.call);
  return true;
}

// K4: a checkpoint that dies at `torn_at`, then openings that die at the plan's call and those
// behind it. What a reader finds never goes back. False when no opening was struck.
bool CrashInOpening(const Lab& lab, const Plan& plan, int64_t torn_at, Recipe* recipe) {
  int64_t acknowledged = 0;
  int64_t attempted = 0;
  {
    Life life;
    Start(lab, plan.seed, &life);
    acknowledged = life.cache->steps() - 2;
    life.Arm(CrashAt({plan.seed, torn_at}));
    attempted = life.cache->steps();
    if (life.cache->Checkpoint().ok()) acknowledged = attempted;
  }
  bool is_reached = false;
  std::string wrong;
  for (int depth = 0; depth < kDeepest && wrong.empty(); ++depth) {
    Life life;
    Plan deeper = plan;
    deeper.call = plan.call + depth % 2;
    life.Arm(CrashAt(deeper));
    (void)life.Open(lab, plan.seed, 0).ok();
    is_reached = is_reached || life.files.num_struck > 0;
    life.store.reset();
    std::unique_ptr<SsdStore> reader;
    const Status opened = SsdStore::Open(PosixFileSystem(), lab.Options(true), &reader);
    int64_t steps = 0;
    wrong = opened.ok() ? FindCut(*reader, plan.seed, &steps) : opened.message();
    if (wrong.empty() && steps != acknowledged && steps != attempted) {
      wrong = "a reader finds step " + std::to_string(steps);
    }
    if (steps == attempted) acknowledged = attempted;  // from here on there is no way back
  }
  recipe->runs += is_reached;
  if (wrong.empty()) wrong = Reopen(lab, plan.seed, acknowledged, attempted);
  recipe->Note(wrong, plan.seed, plan.call);
  return is_reached;
}

// P1: two rounds, a crash at the call, and the power is gone. False when the call was not reached.
bool LosePowerInRounds(const Lab& lab, const Plan& plan, uint64_t chance, Recipe* recipe) {
  Life life;
  Start(lab, plan.seed, &life);
  int64_t acknowledged = life.cache->steps() - 2;
  life.Arm(CrashAt(plan));
  for (int round = 0; round < 2; ++round) {
    if (!life.Round(2).ok()) break;
    acknowledged = life.cache->steps();
  }
  const int64_t attempted = life.cache->steps();
  const bool is_reached = life.files.num_struck > 0;
  life.store.reset();
  std::mt19937_64 random(chance);
  life.files.LosePower(&random);
  ++recipe->runs;
  recipe->Note(Reopen(lab, plan.seed, acknowledged, attempted), plan.seed, plan.call);
  return is_reached;
}

// P1, in an opening: nothing is acknowledged there, and nothing may be lost.
bool LosePowerInOpening(const Lab& lab, const Plan& plan, uint64_t chance, Recipe* recipe) {
  int64_t acknowledged = 0;
  {
    Life life;
    Start(lab, plan.seed, &life);
    acknowledged = life.cache->steps() - 2;
  }
  Life life;
  life.Arm(CrashAt(plan));
  (void)life.Open(lab, plan.seed, 0).ok();
  const bool is_reached = life.files.num_struck > 0;
  life.store.reset();
  std::mt19937_64 random(chance);
  life.files.LosePower(&random);
  recipe->runs += is_reached;
  recipe->Note(Reopen(lab, plan.seed, acknowledged, acknowledged), plan.seed, plan.call);
  return is_reached;
}

void RunK2(const Lab& lab, uint64_t num_seeds, Account* account) {
  Recipe recipe;
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    for (Plan plan{seed}; CrashInCheckpoint(lab, plan, &recipe);) ++plan.call;
  }
  account->Add("K2", recipe, 20, "crashes, one at every call of a checkpoint");
  Recipe planted;
  for (Plan plan{1, 0, Lie::kDroppedWrite}; CrashInCheckpoint(lab, plan, &planted);) ++plan.call;
  account->AddPlanted("K2", planted, "a write is reported and dropped");
}

void RunK3(const Lab& lab, uint64_t num_seeds, Account* account) {
  const std::vector<std::pair<const char*, Action>> actions = {
      {"evictions and appends", TrainAndEvict},
  };
  for (const auto& [name, action] : actions) {
    Recipe recipe;
    for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
      for (const bool is_crash : {true, false}) {
        for (Plan plan{seed}; CrashInAction(lab, plan, action, is_crash, &recipe);) ++plan.call;
      }
    }
    account->Add("K3", recipe, 20, std::string("crashes and failed calls, in ") + name);
  }
  Recipe planted;
  Plan plan;
  plan.forgets_victims = true;
  while (CrashInAction(lab, plan, TrainAndEvict, false, &planted)) ++plan.call;
  account->AddPlanted("K3", planted, "the cache forgets its victims before the store has them");
}

void RunK4(const Lab& lab, uint64_t num_seeds, Account* account) {
  const auto run = [&lab](uint64_t seed, Lie lie, int64_t stride, Recipe* recipe) {
    for (int64_t torn_at = 0; torn_at < 24; torn_at += stride) {
      for (Plan plan{seed, 0, lie}; CrashInOpening(lab, plan, torn_at, recipe);) ++plan.call;
    }
  };
  Recipe recipe;
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    run(seed, Lie::kNone, num_seeds > 1 ? 1 : 4, &recipe);
  }
  account->Add("K4", recipe, 20, "chains of five openings, dying at every call");
  Recipe planted;
  run(1, Lie::kLongTruncate, 4, &planted);
  account->AddPlanted("K4", planted, "a file is truncated 12 bytes too far");
}

void RunP1(const Lab& lab, uint64_t num_seeds, Account* account) {
  Recipe recipe;
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    for (Plan plan{seed}; LosePowerInRounds(lab, plan, seed, &recipe);) ++plan.call;
    for (Plan plan{seed}; LosePowerInOpening(lab, plan, seed, &recipe);) ++plan.call;
  }
  account->Add("P1", recipe, 60, "losses of power, one at every call of two rounds and an opening");
  Recipe planted;
  for (uint64_t chance = 0; chance < 8; ++chance) {
    LosePowerInRounds(lab, {1, 1000, Lie::kForgottenSync}, chance, &planted);
  }
  account->AddPlanted("P1", planted, "syncs do nothing");
}

}  // namespace
}  // namespace hps

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool is_full = argc > 1 && std::strcmp(argv[1], "full") == 0;
  const hps::Lab lab;
  hps::Account account;
  hps::RunK2(lab, is_full ? 100 : 1, &account);
  hps::RunK3(lab, is_full ? 60 : 1, &account);
  hps::RunK4(lab, is_full ? 6 : 1, &account);
  hps::RunP1(lab, is_full ? 60 : 1, &account);
  return account.ExitCode();
}
