// The host's order of summing gradients: front to back through the batch, each into its key's run.
//
// Above it: batch_verbs_body.h. Below it: updates.h, host_launcher.h. A device sums run by run, at
// random places of the gradients; a thread of the host would wait for each of them. Here a thread
// adds the gradients of its share of the batch as they come. The additions of a run are the same,
// in the same order; what is made of runs is the device's text.
#pragma once

#include <algorithm>
#include <cstring>

#include "gpu_cache/gpu_plan.h"
#include "gpu_cache/host_launcher.h"
#include "table/row_copy.h"

namespace hps {
inline namespace HPS_BUILD {

// What a device's library does between two kernels: inclusive prefix sum, in place.
inline void SumUp(int32_t* ranks, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) ranks[i] = sum += ranks[i];
}

// A thread's way through its share.
struct HostWalk {
  SumArgs args;
  float* const* first_runs;  // [num_unique] where a key's first run is summed; then its next ones
  uint32_t* counts;          // [num_unique] of the occurrences that it has seen

  void count(HostShares::List list) const {
    const uint32_t* const inverse = args.batch.inverse;
    for (int64_t j = 0; j < list.length; ++j) ++counts[inverse[list.positions[j]]];
  }

  template <class Lanes>
  void add(Lanes lanes, HostShares::List list) const {
    constexpr int64_t kAhead = Lanes::kWidth > 0 && Lanes::kWidth <= 16 ? 48 : 24;
    const int64_t last = list.length - 1;
    for (int64_t j = 0; j < list.length; ++j) {
      ask(lanes, list.positions[j + kAhead < last ? j + kAhead : last]);
      add_one(lanes, list.positions[j]);
    }
  }

 private:
  // Adds occurrence i to its run.
  template <class Lanes>
  void add_one(Lanes lanes, int64_t i) const {
    const int64_t id = args.batch.inverse[i];
    const uint32_t nth = counts[id]++;
    float* const sum = first_runs[id] + nth / kRunLength * lanes.size();
    AddToSum<Lanes::kWidth>(nth % kRunLength == 0, sum, args.gradients + i * lanes.size(),
                            lanes.dim);
  }

  // Gradients are read once, so they are asked for past the caches.
  template <class Lanes>
  void ask(Lanes lanes, int64_t i) const {
    const int64_t dim = lanes.size();
    const float* const gradient = args.gradients + i * dim;
    const float* const sum = first_runs[args.batch.inverse[i]];
    for (int64_t d = 0; d < dim; d += 16) AskForLine<true>(sum + d);
    for (int64_t d = 0; d < dim; d += 16) AskForLineOnce(gradient + d);
  }
};

// Sums every run; hot_ranks are summed up then. Returns how many runs of hot keys there are.
inline int64_t SumRuns(const HostLauncher& launcher, GpuPlan* plan, const SumArgs& args) {
  const HostShares& shares = *plan->shares();
  const int64_t num_unique = plan->num_unique();
  const int64_t dim = args.cache.dim;
  const int num_owners = shares.num_owners();
  uint32_t* const counts = plan->ReserveCounts(num_owners * num_unique);
  float** const first_runs = plan->ReserveFirstRuns();
  const auto walk_share = [&](int owner, auto work) {
    const HostWalk walk = {args, first_runs, counts + owner * num_unique};
    std::memset(walk.counts, 0, static_cast<size_t>(num_unique) * sizeof(uint32_t));
    for (int piece = 0; piece < num_owners; ++piece) work(walk, shares.list(piece, owner));
  };
  launcher.on_threads(num_owners, [&](int owner) {
    walk_share(owner, [](const HostWalk& walk, HostShares::List list) { walk.count(list); });
  });
  int64_t end = 0;
  for (int64_t id = 0; id < num_unique; ++id) {
    args.starts[id] = end;
    for (int owner = 0; owner < num_owners; ++owner) end += counts[owner * num_unique + id];
  }
  args.starts[num_unique] = end;
  launcher.one(num_unique, [args](auto group, int64_t i) { CountRunsOne(group, args, i); });
  SumUp(args.hot_ranks, num_unique);
  launcher.one(num_unique, [=](HostGroup, int64_t id) {
    const int64_t first = FirstHotRun(args, id), end = args.hot_ranks[id];
    first_runs[id] = (first == end ? args.sums + id * dim : args.run_sums + first * dim);
    std::fill(args.run_ids + first, args.run_ids + end, static_cast<uint32_t>(id));
  });
  WithDim(args.cache.dim, [&](auto lanes) {
    launcher.on_threads(num_owners, [&](int owner) {
      walk_share(owner, [=](HostWalk walk, HostShares::List list) { walk.add(lanes, list); });
    });
    launcher.one(num_unique, [=](HostGroup, int64_t id) {
      if (args.hot_ranks[id] != FirstHotRun(args, id)) return;
      // x - x is 0, or NaN if x is not finite.
      const float* const sum = args.sums + id * lanes.size();
      if (lanes.sum([](float x) { return x - x; }, sum) != 0.0f) NoteCulprit(args, id);
    });
  });
  return args.hot_ranks[num_unique - 1];
}

}  // namespace HPS_BUILD
}  // namespace hps
