// Recipes K2, K3, K4 and P1: the store dies at every call of a checkpoint, of training, of an
// opening, and the power with it. docs/reliability.md says what each proves and which bug is
// planted in it. With the argument "full" many workloads are run instead of one or two.
//
// Above it: ctest, tests/torture/run.py. Below it: torture_lab.h, fault_sweeps.h.
#include "fault_sweeps.h"
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

// K2. False when the call was not reached.
bool CrashInCheckpoint(const Lab& lab, const Plan& plan, Recipe* recipe) {
  Life life;
  life.Start(lab, plan.seed);
  FaultFileSystem::Faults faults = CrashAt(plan);
  if (plan.lie == Lie::kDroppedWrite) {  // the planted bug takes the place of the crash
    faults.lie_at_call = plan.call;
    faults.fail_at_call = -1;
  }
  life.Arm(faults);
  (void)life.Checkpoint().ok();
  const bool is_reached = life.files.num_changes > plan.call;
  life.store.reset();
  recipe->runs += is_reached;
  recipe->Note(Reopen(lab, plan.seed, life.acknowledged, life.attempted), plan.seed, plan.call);
  return is_reached;
}

// What stands between two checkpoints, or holds some. An action that fails has changed nothing that
// can be read.
using Action = Status (*)(Life* life);

Status TrainAndEvict(Life* life) { return life->TakeSteps(6); }

Status Compact(Life* life) {
  const uint64_t before = life->store->Figures().compactions;
  HPS_RETURN_IF_ERROR(life->store->Compact(0, life->store->num_tables()));
  HPS_CHECK(life->store->Figures().compactions > before);
  return Status::Ok();
}

Status TwoRounds(Life* life) {
  HPS_RETURN_IF_ERROR(life->Round(2));
  return life->Round(2);
}

// K3: a crash during the action; or (once) one call that fails, after which the living store must
// still have every key in one place, and go on. False when the call was not reached.
bool CrashInAction(const Lab& lab, const Plan& plan, Action action, bool is_crash, Recipe* recipe) {
  Life life;
  life.Start(lab, plan.seed);
  life.cache->forgets_victims = plan.forgets_victims;
  FaultFileSystem::Faults faults = CrashAt(plan);
  faults.is_crash = is_crash;
  life.Arm(faults);
  (void)action(&life).ok();
  if (life.files.num_struck == 0) return false;
  ++recipe->runs;
  std::string wrong = life.CompareTiers(plan.seed);
  if (!is_crash && wrong.empty()) {
    life.Arm({});
    const Status went = life.Round(4);
    const bool has_stopped = went.message().find("the store stopped") != std::string::npos;
    if (!went.ok() && !has_stopped) wrong = "going on: " + went.message();
    if (wrong.empty()) wrong = life.CompareTiers(plan.seed);
  }
  life.store.reset();
  if (wrong.empty()) wrong = Reopen(lab, plan.seed, life.acknowledged, life.attempted);
  recipe->Note(wrong, plan.seed, plan.call);
  return true;
}

// K4: a checkpoint that dies at `torn_at`, then openings that die at the plan's call and the one
// behind it. What a reader finds never goes back. False when no opening was struck.
bool CrashInOpening(const Lab& lab, const Plan& plan, int64_t torn_at, Recipe* recipe) {
  int64_t acknowledged = 0;
  int64_t attempted = 0;
  {
    Life life;
    life.Start(lab, plan.seed);
    life.Arm(CrashAt({plan.seed, torn_at}));
    (void)life.Checkpoint().ok();
    acknowledged = life.acknowledged;
    attempted = life.attempted;
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
    wrong = opened.ok() ? FindCheckpoint(*reader, plan.seed, &steps) : opened.message();
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

// P1: an action, a crash at the call, and the power is gone. False when the call was not reached.
bool LosePowerInAction(const Lab& lab, const Plan& plan, Action action, uint64_t chance,
                       Recipe* recipe) {
  Life life;
  life.Start(lab, plan.seed);
  life.Arm(CrashAt(plan));
  (void)action(&life).ok();
  const bool is_reached = life.files.num_struck > 0;
  life.store.reset();
  std::mt19937_64 random(chance);
  life.files.LosePower(&random);
  ++recipe->runs;
  recipe->Note(Reopen(lab, plan.seed, life.acknowledged, life.attempted), plan.seed, plan.call);
  return is_reached;
}

// P1, of a store that is made: its first opening dies at the call, and the next one, which finds
// the folder, goes on. Once a checkpoint has returned the folder's own name must be durable, too.
bool LosePowerAfterTheFirstOpening(const Lab& lab, const Plan& plan, uint64_t chance,
                                   Recipe* recipe) {
  lab.Reset();
  Life life;
  life.Arm(CrashAt(plan));
  (void)life.Open(lab, plan.seed, 0).ok();
  const bool is_reached = life.files.num_struck > 0;
  life.cache.reset();
  life.store.reset();
  life.Arm({.lie = plan.lie});
  Status went = life.Open(lab, plan.seed, 0);
  if (went.ok()) went = life.Round(2);
  life.store.reset();
  std::mt19937_64 random(chance);
  life.files.LosePower(&random);
  recipe->runs += is_reached;
  std::string wrong = went.ok() ? "" : "the next opening: " + went.message();
  if (wrong.empty()) wrong = Reopen(lab, plan.seed, life.acknowledged, life.attempted);
  recipe->Note(wrong, plan.seed, plan.call);
  return is_reached;
}

// P1, in an opening: nothing is acknowledged there, and nothing may be lost.
bool LosePowerInOpening(const Lab& lab, const Plan& plan, uint64_t chance, Recipe* recipe) {
  int64_t acknowledged = 0;
  {
    Life life;
    life.Start(lab, plan.seed);
    acknowledged = life.acknowledged;
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
  const auto run = [&lab](uint64_t seeds, Lie lie, Recipe* recipe) {
    SweepCalls(seeds, [&](uint64_t seed, int64_t call) {
      return CrashInCheckpoint(lab, {seed, call, lie}, recipe);
    });
  };
  Recipe recipe;
  run(num_seeds, Lie::kNone, &recipe);
  account->Add("K2", recipe, 20, "crashes in a checkpoint");
  Recipe planted;
  run(1, Lie::kDroppedWrite, &planted);
  account->AddPlanted("K2", planted, "a write is reported and dropped");
}

struct NamedAction {
  const char* name;
  Action run;
};

void RunK3(const Lab& lab, uint64_t num_seeds, Account* account) {
  for (const NamedAction& action :
       {NamedAction{"evictions and appends", TrainAndEvict}, NamedAction{"compactions", Compact}}) {
    Recipe recipe;
    for (const bool is_crash : {true, false}) {
      SweepCalls(num_seeds, [&](uint64_t seed, int64_t call) {
        return CrashInAction(lab, {seed, call}, action.run, is_crash, &recipe);
      });
    }
    account->Add("K3", recipe, 20, std::string("crashes and failed calls in ") + action.name);
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
  account->Add("K4", recipe, 20, "chains of five openings that die");
  Recipe planted;
  run(1, Lie::kLongTruncate, 4, &planted);
  account->AddPlanted("K4", planted, "a file is truncated 12 bytes too far");
}

void RunP1(const Lab& lab, uint64_t num_seeds, Account* account) {
  for (const NamedAction& action :
       {NamedAction{"training and checkpoints", TwoRounds}, NamedAction{"compactions", Compact}}) {
    Recipe recipe;
    SweepCalls(num_seeds, [&](uint64_t seed, int64_t call) {
      return LosePowerInAction(lab, {seed, call}, action.run, seed, &recipe);
    });
    account->Add("P1", recipe, 20, std::string("losses of power in ") + action.name);
  }
  Recipe recipe;
  SweepCalls(num_seeds, [&](uint64_t seed, int64_t call) {
    return LosePowerInOpening(lab, {seed, call}, seed, &recipe);
  });
  account->Add("P1", recipe, 4, "losses of power in openings");
  Recipe first;
  for (uint64_t chance = 0; chance < 2; ++chance) {
    SweepCalls(num_seeds, [&](uint64_t seed, int64_t call) {
      return LosePowerAfterTheFirstOpening(lab, {seed, call}, 2 * seed + chance, &first);
    });
  }
  account->Add("P1", first, 20, "losses of power after a first opening that died");
  Recipe planted;
  for (uint64_t chance = 0; chance < 8; ++chance) {
    LosePowerInAction(lab, {1, 1000, Lie::kForgottenSync}, TwoRounds, chance, &planted);
  }
  account->AddPlanted("P1", planted, "syncs do nothing");
}

}  // namespace
}  // namespace hps

int main(int argc, char** argv) {
  const bool is_full = hps::IsFull(argc, argv);
  const hps::Lab lab;
  hps::Account account;
  hps::RunK2(lab, is_full ? 100 : 1, &account);
  hps::RunK3(lab, is_full ? 60 : 1, &account);
  hps::RunK4(lab, is_full ? 6 : 1, &account);
  hps::RunP1(lab, is_full ? 60 : 1, &account);
  return account.ExitCode();
}
