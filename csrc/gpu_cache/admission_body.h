// The text of GpuCache's verbs that decide which new keys come by a row.
//
// Above it: gpu_cache.cc, tests. Below it: admission_kernels.h.
#pragma once

#include "gpu_cache/batch_verbs_body.h"

namespace hps {

template <class Launcher>
int64_t GpuCacheOver<Launcher>::ListFresh(GpuPlan* plan, GpuCacheOver* beside) {
  const Launcher launcher = LauncherOf(*plan);
  HPS_CHECK(IsCurrent(*plan));
  plan->PrepareFresh();
  const ListFreshArgs args = {args_, plan->batch(), plan->fresh(), plan->window_size()};
  launcher.one(
      args.bound, [args](auto group, int64_t i) { FlagFreshOne(group, args, i); },
      [args](int64_t i) { AskForMark(args.cache, args.batch, i); });
  SumUp(args.fresh.ranks, args.bound);
  launcher.one(args.bound, [args](auto group, int64_t i) { ListFreshOne(group, args, i); });
  plan->NoteListed();
  if (beside == nullptr) return 0;
  uint32_t num_missing = 0;
  const FindBesideArgs find = {beside->args_, args.fresh, &num_missing, plan->num_listed()};
  launcher.any(
      find.count, [find](auto group, int64_t i) { FindBesideOne(group, find, i); },
      [find](int64_t i) { AskForCandidates(find.beside, find.fresh.keys[i]); },
      [find](int64_t i) { AskForBucket(find.beside, find.fresh.keys[i]); });
  return num_missing;
}

template <class Launcher>
AdmitArgs GpuCacheOver<Launcher>::AdmitArgsOf(GpuPlan* plan) const {
  HPS_CHECK(IsCurrent(*plan));
  AdmitArgs args = {};
  args.cache = args_;
  args.batch = plan->batch();
  args.fresh = plan->fresh();
  args.count = plan->num_listed();
  return args;
}

template <class Launcher>
void GpuCacheOver<Launcher>::AdmitCounted(GpuPlan* plan, GpuCacheOver* records, float least) {
  const CacheArgs& beside = records->args_;
  HPS_CHECK(args_.table.has_statistics() && beside.table.has_statistics());
  HPS_CHECK(beside.rules.powers != nullptr);
  AdmitArgs args = AdmitArgsOf(plan);
  args.beside = beside;
  args.shows = plan->shows();
  args.clicks = plan->clicks();
  args.least = least;
  LauncherOf(*plan).one(
      args.count, [args](auto group, int64_t i) { AdmitCountedOne(group, args, i); },
      [args](int64_t i) { AskForCounts<true>(args, i); });
}

template <class Launcher>
void GpuCacheOver<Launcher>::AdmitScored(GpuPlan* plan, const GpuCacheOver& scores, float least,
                                         const LifeRules& others) {
  const CacheArgs& beside = scores.args_;
  HPS_CHECK(beside.table.has_statistics());
  AdmitArgs args = AdmitArgsOf(plan);
  args.beside = beside;
  args.least = least;
  args.rules = beside.rules.powers == nullptr ? others : beside.rules;
  LauncherOf(*plan).one(
      args.count, [args](auto group, int64_t i) { AdmitScoredOne(group, args, i); },
      [args](int64_t i) { AskForCounts<false>(args, i); });
}

template <class Launcher>
void GpuCacheOver<Launcher>::AdmitDrawn(GpuPlan* plan, uint64_t number, double probability) {
  AdmitArgs args = AdmitArgsOf(plan);
  args.number = number;
  args.probability = probability;
  LauncherOf(*plan).one(args.count,
                        [args](auto group, int64_t i) { AdmitDrawnOne(group, args, i); });
}

}  // namespace hps
