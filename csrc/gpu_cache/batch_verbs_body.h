// The text of GpuCache's batch verbs: from a batch's keys to pinned rows and back.
//
// Above it: gpu_cache.cc, which compiles it for host threads; tests, for emulated lanes. Below it:
// kernels.h. Where the host looks at a number to know how far to loop, a device launches for an
// upper bound and lets the rest return.
#pragma once

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "gpu_cache/gpu_cache.h"
#include "gpu_cache/host_batch.h"
#include "gpu_cache/host_prefetch.h"
#include "optimizer/safe_gradient.h"

namespace hps {

// Calls body with the optimizer as a constant.
template <class Body>
inline void WithKind(OptimizerKind kind, const Body& body) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return body.template operator()<OptimizerKind::kSgd>();
    case OptimizerKind::kAdagrad:
      return body.template operator()<OptimizerKind::kAdagrad>();
    case OptimizerKind::kRowWiseAdagrad:
      return body.template operator()<OptimizerKind::kRowWiseAdagrad>();
    case OptimizerKind::kAdam:
      return body.template operator()<OptimizerKind::kAdam>();
    case OptimizerKind::kFtrl:
      return body.template operator()<OptimizerKind::kFtrl>();
  }
}

template <class Launcher>
template <class Work>
void GpuCacheOver<Launcher>::ForRows(Work work) const {
  if (!options_.layout.is_narrow) return work([](auto group) { return group; });
  const Rounding rounding = options_.rounding;
  work([rounding](auto group) { return NarrowGroup<decltype(group)>(group, rounding); });
}

template <class Launcher>
GpuCacheOver<Launcher>::GpuCacheOver(const GpuCacheOptions& options, Launcher launcher)
    : options_(options), launcher_(launcher) {}

template <class Launcher>
Status GpuCacheOver<Launcher>::Open(const GpuCacheOptions& options, Launcher launcher,
                                    std::unique_ptr<GpuCacheOver>* cache) {
  std::unique_ptr<GpuCacheOver> made(new GpuCacheOver(options, launcher));
  TableMemory memory;
  HPS_RETURN_IF_ERROR(
      TableMemory::Plan(options.capacity_bytes, options.layout.row_bytes(), &memory));
  HPS_CHECK(memory.bytes <= options.capacity_bytes);
  HPS_RETURN_IF_ERROR(made->memory_.Map(memory.bytes));
  made->memory_.PreferHugePages(0, memory.bytes);
  memory.Bind(made->memory_.data(), options.layout.header_bytes(), &made->args_);
  made->args_.kind = options.layout.kind;
  made->args_.dim = static_cast<int32_t>(options.layout.dim);
  made->args_.numbers = options.numbers;
  made->args_.initializer = options.initializer;
  made->args_.more_shows = options.more_shows;
  *cache = std::move(made);
  return Status::Ok();
}

template <class Launcher>
void GpuCacheOver<Launcher>::MakePlan(const uint64_t* keys, int64_t count, GpuPlan* plan) {
  const Launcher launcher = LauncherOf(*plan);
  Abandon(plan);
  NumberKeys(launcher, keys, count, plan);
}

template <class Launcher>
int64_t GpuCacheOver<Launcher>::Pull(const uint64_t* keys, int64_t count, GpuPlan* plan,
                                     float* out) {
  MakePlan(keys, count, plan);
  const int64_t num_missing = Find(plan, 0, -1);
  if (num_missing == 0) Gather(*plan, out);
  return num_missing;
}

template <class Launcher>
int64_t GpuCacheOver<Launcher>::PullPooled(const uint64_t* keys, int64_t count,
                                           const BagsView& bags, GpuPlan* plan, OutputValues out) {
  MakePlan(keys, count, plan);
  const int64_t num_missing = Find(plan, 0, -1);
  if (num_missing == 0) Pool(plan, bags, out);
  return num_missing;
}

template <class Launcher>
int64_t GpuCacheOver<Launcher>::Find(GpuPlan* plan, int64_t first, int64_t count) {
  const Launcher launcher = LauncherOf(*plan);
  HPS_CHECK(plan->state != GpuPlan::State::kReserved && plan->state != GpuPlan::State::kPinned);
  const int64_t size = count < 0 ? plan->num_unique() - first : count;
  HPS_CHECK(first >= 0 && size >= 0 && first + size <= plan->num_unique());
  plan->PrepareFind(size, Launcher::kRanksWords);
  const FindArgs args = {args_, plan->batch(), first, count, size};
  const int64_t num_words = NumFlagWords(size);
  launcher.any(
      std::max<int64_t>(1, size), [args](auto group, int64_t i) { FindSlotOne(group, args, i); },
      [args](int64_t i) { AskForCandidates(args, i); },
      [args](int64_t i) { AskForBucket(args, i); });
  RankFlags(args.batch.missing_flags, size);
  launcher.any(std::max<int64_t>(1, num_words),
               [args](auto group, int64_t i) { ListMissingOne(group, args, i); });
  launcher.any(std::max(num_words, args_.clock->num_swept),
               [args](auto group, int64_t i) { EndFindOne(group, args, i); });
  const bool is_whole = plan->num_missing() == 0 && size == plan->num_unique();
  plan->state = is_whole ? GpuPlan::State::kResolved : GpuPlan::State::kFound;
  plan->epoch = epoch_;
  return plan->num_missing();
}

template <class Launcher>
void GpuCacheOver<Launcher>::Want(GpuPlan* plan) {
  const FindArgs args = {args_, plan->batch(), 0, -1, plan->num_unique()};
  launcher_.any(args.bound, [args](auto group, int64_t i) { WantOne(group, args, i); });
}

template <class Launcher>
bool GpuCacheOver<Launcher>::IsCurrent(const GpuPlan& plan) const {
  if (plan.state == GpuPlan::State::kPinned) return true;
  return plan.state == GpuPlan::State::kResolved && plan.epoch == epoch_;
}

// The host sees what every round left open; a device launches all and lets them return.
template <class Launcher>
void GpuCacheOver<Launcher>::RunRounds(const Launcher& launcher, const ReserveArgs& args) {
  const BatchNumbers& numbers = *args.batch.numbers;
  const auto place = [&]<ReserveRound kRound>() {
    if (!numbers.open[kRound]) return;
    launcher.any(numbers.num_missing,
                 [args](auto group, int64_t i) { PlaceOne<kRound>(group, args, i); });
  };
  place.template operator()<kFirst>();
  if (numbers.open[kEmptier]) {
    launcher.any(numbers.num_missing,
                 [args](auto group, int64_t i) { GroupByEmptierOne(group, args, i); });
  }
  place.template operator()<kEmptier>();
  place.template operator()<kOther>();
  place.template operator()<kVictimFirst>();
  place.template operator()<kVictimSecond>();
}

template <class Launcher>
bool GpuCacheOver<Launcher>::Reserve(GpuPlan* plan) {
  const Launcher launcher = LauncherOf(*plan);
  const bool is_found =
      plan->state == GpuPlan::State::kFound || plan->state == GpuPlan::State::kResolved;
  HPS_CHECK(is_found && plan->epoch == epoch_);
  plan->PrepareReserve(Launcher::kRanksWords);
  const int64_t num_missing = plan->num_missing();
  const int64_t num_items = std::max<int64_t>(1, num_missing);
  ReserveArgs args = {args_, plan->batch(), num_items, nullptr, nullptr, nullptr};
  launcher.one(plan->window_size(), [args](auto group, int64_t i) { PinOne(group, args, i); });
  RunRounds(launcher, args);
  // Refused or not: where a device works, the host does not know yet.
  if (num_missing > 0) ++epoch_;
  plan->epoch = epoch_;
  plan->state = GpuPlan::State::kKeys;  // what is refused is looked up again
  const bool is_refused = IsRefused(plan->numbers());
  RankFlags(args.batch.victims, num_missing);
  if (!is_refused) {
    const int64_t num_victims = CountFlags(HostGroup{}, args.batch.victims, num_missing);
    try {
      args.victims = plan->ReserveVictims(num_victims * shape().row_bytes);
    } catch (...) {  // there is no memory
      launcher.one(num_items, [args](auto group, int64_t i) { TakeBackOne(group, args, i); });
      throw;
    }
  }
  launcher.any(num_items, [args](auto group, int64_t i) { CommitEntryOne(group, args, i); });
  if (!is_refused) plan->state = GpuPlan::State::kReserved;
  return !is_refused;
}

template <class Launcher>
void GpuCacheOver<Launcher>::Cancel(GpuPlan* plan) {
  const Launcher launcher = LauncherOf(*plan);
  HPS_CHECK(plan->state == GpuPlan::State::kReserved);
  const ReserveArgs args = {args_, plan->batch(), plan->window_size(), nullptr, nullptr, nullptr};
  launcher.one(plan->window_size(), [args](auto group, int64_t i) { CancelOne(group, args, i); });
  ++epoch_;
  plan->ForgetVictims();
  plan->state = GpuPlan::State::kKeys;
}

template <class Launcher>
void GpuCacheOver<Launcher>::Abandon(GpuPlan* plan) {
  if (plan->state == GpuPlan::State::kReserved) {
    Cancel(plan);
  } else if (plan->state == GpuPlan::State::kPinned) {
    Release(plan);
  }
}

template <class Launcher>
void GpuCacheOver<Launcher>::Fill(GpuPlan* plan, const uint8_t* rows, const uint8_t* found,
                                  float lr, bool create) {
  const Launcher launcher = LauncherOf(*plan);
  HPS_CHECK(plan->state == GpuPlan::State::kReserved);
  const int64_t num_missing = plan->num_missing();
  const FillArgs args = {args_, plan->batch(), rows, found, num_missing, create, lr};
  ForRows([&](auto wrap) {
    launcher.rows(args_.dim, num_missing,
                  [=](auto group, int64_t i) { FillRowOne(wrap(group), args, i); });
  });
  plan->state = GpuPlan::State::kPinned;
}

template <class Launcher>
void GpuCacheOver<Launcher>::Release(GpuPlan* plan) {
  const Launcher launcher = LauncherOf(*plan);
  HPS_CHECK(plan->state == GpuPlan::State::kPinned);
  const ReserveArgs args = {args_, plan->batch(), plan->window_size(), nullptr, nullptr, nullptr};
  launcher.one(plan->window_size(), [args](auto group, int64_t i) { ReleaseOne(group, args, i); });
  const bool is_whole = plan->window_size() == plan->num_unique();
  // Rows may have moved since the reserve if other batches reserved meanwhile; the epoch tells.
  plan->state = is_whole ? GpuPlan::State::kResolved : GpuPlan::State::kFound;
}

template <class Launcher>
void GpuCacheOver<Launcher>::Gather(const GpuPlan& plan, float* out) {
  const Launcher launcher = LauncherOf(plan);
  HPS_CHECK(IsCurrent(plan));
  const GatherArgs args = {args_, plan.batch(), out};
  ForRows([&](auto wrap) {
    launcher.rows_out(
        args_.dim, plan.num_occurrences(), out,
        [=](auto group, int64_t i) { GatherOne(wrap(group), args, i); },
        [args](int64_t i) { AskForGathered(args, i); }, [args](int64_t i) { AskForSlot(args, i); });
  });
}

template <class Launcher>
void GpuCacheOver<Launcher>::Pool(GpuPlan* plan, const BagsView& bags, OutputValues out) {
  HPS_CHECK(IsCurrent(*plan) && plan->window_size() == plan->num_unique());
  ForRows([&](auto wrap) { PoolBags(LauncherOf(*plan), args_, bags, out, plan, wrap); });
}

template <class Launcher>
int64_t GpuCacheOver<Launcher>::SumHere(const uint64_t* keys, int64_t count, const float* gradients,
                                        float lr, GpuPlan* plan, int64_t* worst) {
  MakePlan(keys, count, plan);
  const int64_t num_missing = Find(plan, 0, -1);
  *worst = num_missing == 0 ? SumGradients(plan, gradients) : -1;
  if (num_missing == 0 && *worst < 0) *worst = FindOverflow(plan, lr);
  return num_missing;
}

template <class Launcher>
int64_t GpuCacheOver<Launcher>::SumGradients(GpuPlan* plan, GradientValues gradients,
                                             const BagsView* bags, const uint8_t* labels) {
  if (plan->num_unique() == 0) return -1;
  return SumByKey(LauncherOf(*plan), args_, gradients, bags, labels, plan);
}

template <class Launcher>
bool GpuCacheOver<Launcher>::MayOverflow(const GpuPlan& plan, float lr) const {
  if (args_.clock->is_watched) return true;
  return plan.numbers().largest >
         SafeGradientBits(args_.kind, args_.numbers, args_.initializer, lr);
}

template <class Launcher>
int64_t GpuCacheOver<Launcher>::FindOverflow(GpuPlan* plan, float lr) {
  const Launcher launcher = LauncherOf(*plan);
  if (plan->num_unique() == 0 || !MayOverflow(*plan, lr)) return -1;
  HPS_CHECK(IsCurrent(*plan));
  plan->SetCulprit(kNoCulprit);
  const uint32_t safe = SafeGradientBits(args_.kind, args_.numbers, args_.initializer, lr);
  const TryArgs args = {args_, plan->batch(), plan->sums(), safe, plan->window_size(), lr, 0};
  const auto attempt = [&]<OptimizerKind kKind>() {
    ForRows([&](auto wrap) {
      launcher.rows(args_.dim, args.bound,
                    [=](auto group, int64_t i) { TryOne<kKind>(wrap(group), args, i); });
    });
  };
  WithKind(args_.kind, attempt);
  const uint32_t culprit = plan->numbers().culprit;
  return culprit == kNoCulprit ? -1 : static_cast<int64_t>(culprit);
}

template <class Launcher>
void GpuCacheOver<Launcher>::Apply(GpuPlan* plan, float lr) {
  const Launcher launcher = LauncherOf(*plan);
  HPS_CHECK(IsCurrent(*plan));
  const ApplyArgs args = {args_, plan->batch(), plan->sums(), &failure_, plan->window_size(), lr};
  const ApplyAdmittedArgs admitted = {args, plan->withheld()};
  const auto apply = [&]<OptimizerKind kKind>() {
    ForRows([&](auto wrap) {
      if (admitted.withheld != nullptr) {
        return launcher.rows(args_.dim, args.bound, [=](auto group, int64_t i) {
          AskForAdmitted(admitted, i + kUpdatesAhead);
          ApplyAdmittedOne<kKind>(wrap(group), admitted, i);
        });
      }
      launcher.rows(args_.dim, args.bound, [=](auto group, int64_t i) {
        AskForUpdated(args, i + kUpdatesAhead);
        ApplyOne<kKind>(wrap(group), args, i);
      });
    });
  };
  WithKind(args_.kind, apply);
  plan->ReleaseWithheld();
  if (!args_.table.has_statistics()) return;
  const CountUpdateArgs counts = {
      args_,          plan->batch(),     &failure_,          plan->shows(),
      plan->clicks(), admitted.withheld, plan->window_size()};
  launcher.one(counts.bound, [counts](auto group, int64_t i) { CountUpdateOne(group, counts, i); });
}

}  // namespace hps
