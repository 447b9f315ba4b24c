// What the host does to a batch as a whole: numbering its keys, pooling its bags and summing its
// gradients, front to back, by the loops that dram_cache has, too.
//
// Above it: batch_verbs_body.h. Below it: csrc/batch, host_launcher.h. A device numbers keys
// occurrence by occurrence in a table that all lanes share (deduplicate.h), pools bag by bag
// (moves.h) and sums run by run (updates.h), at random places of memory; a thread of the host would
// wait for each of them, and for branches that cannot be foreseen. What comes out is the same: keys
// in order of first occurrence, and the same additions in the same order. Tests hold the device's
// text, on emulated lanes and under the CUDA cache's launcher, to these results.
#pragma once

#include <type_traits>

#include "gpu_cache/gpu_plan.h"
#include "gpu_cache/host_launcher.h"

namespace hps {
inline namespace HPS_BUILD {

// What a device's library does between two kernels: inclusive prefix sum, in place.
inline void SumUp(int32_t* ranks, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) ranks[i] = sum += ranks[i];
}

// Adds up the flags of `num_items` items, where the host does that.
inline void RankFlags(const RankedFlags& flags, int64_t num_items) {
  if (flags.ranks == nullptr) return;
  uint32_t rank = 0;
  const int64_t num_words = NumFlagWords(num_items);
  for (int64_t word = 0; word < num_words; ++word) {
    flags.ranks[word] = rank;
    rank += static_cast<uint32_t>(CountBits(flags.words[word]));
  }
  flags.ranks[num_words] = rank;
}

// The distinct keys of keys[count], in order of first occurrence, and the id of each occurrence.
inline void NumberKeys(const HostLauncher& launcher, const uint64_t* keys, int64_t count,
                       GpuPlan* plan) {
  const KeyLoops& loops = launcher.key_loops();
  plan->Begin(count, launcher.num_threads());
  KeyShares* shares = plan->shares();
  shares->ChooseOwners(keys);
  JointIds joint = plan->PrepareJoin();
  launcher.on_threads(joint.num_shares, [&](int owner) {
    KeyShare* share = plan->share(owner);
    shares->CopyKeys(owner, keys);
    shares->Prepare(owner, share);
    shares->Number(owner, share, [&] { return loops.deduplicate(share, keys, count); });
    shares->PrepareJoin(owner, share);
    loops.mark_firsts(share, joint, owner);
  });
  plan->SetNumUnique(loops.rank_firsts(joint));
  joint.unique_keys = plan->batch().unique_keys;
  launcher.on_threads(joint.num_shares, [&](int owner) { loops.join(plan->share(owner), joint); });
  int64_t most = 0;
  for (int owner = 0; owner < joint.num_shares; ++owner) {
    KeyShare* share = plan->share(owner);
    share->num_ids = plan->num_unique();
    most = std::max(most, share->num_occurrences);
  }
  shares->NoteNumbered(plan->num_unique(), most);
}

// Sums or means of bags of rows that lie in their slots, to their places in out.
// Narrow weights are widened first, once a key.
template <class Wrap>
void PoolBags(const HostLauncher& launcher, const CacheArgs& cache, const BagsView& bags,
              OutputValues out, GpuPlan* plan, Wrap wrap) {
  const BatchArgs& batch = plan->batch();
  const float** rows = plan->pooling()->PrepareRows(batch.num_occurrences);
  constexpr bool kIsNarrow = !std::is_same_v<decltype(wrap(HostGroup{})), HostGroup>;
  if constexpr (kIsNarrow) {
    const int64_t dim = cache.dim;
    float* const wide = plan->ReserveWide(dim);
    launcher.rows(cache.dim, plan->num_unique(), [=](auto group, int64_t id) {
      CopyFloats(group, wide + id * dim, WeightsOf(wrap(group), cache, batch.slots[id]), dim);
    });
    launcher.one(batch.num_occurrences,
                 [&](auto, int64_t i) { rows[i] = wide + batch.inverse[i] * dim; });
  } else {
    launcher.one(batch.num_occurrences, [&](auto, int64_t i) {
      rows[i] = WeightsAt(cache, batch.slots[batch.inverse[i]]);
    });
  }
  plan->pooling()->Pool(launcher.key_loops(), bags, cache.dim, launcher.pool(), out);
}

// What a share has counted of its keys, where the kernels read it: by their ids in the batch.
inline void GiveCounts(const KeyShare& share, GpuPlan* plan) {
  uint32_t* const shows = plan->shows();
  uint32_t* const clicks = plan->clicks();
  for (int64_t i = 0; i < share.num_unique; ++i) {
    const uint32_t id = share.joint_ids[i];
    shows[id] = share.counts[id];
    if (clicks != nullptr) clicks[id] = share.clicks[id];
  }
}

// Sums the gradients of every key, those of bags unless `bags` is null. The first key with a sum
// that is not finite, or -1. In a table with statistics it also counts: labels [L], or null.
inline int64_t SumByKey(const HostLauncher& launcher, const CacheArgs& cache,
                        GradientValues gradients, const BagsView* bags, const uint8_t* labels,
                        GpuPlan* plan) {
  const KeyLoops& loops = launcher.key_loops();
  GradientView view = {gradients.wide, nullptr, nullptr, cache.dim, gradients.narrow};
  if (bags != nullptr) {
    view = plan->pooling()->Spread(*bags, gradients, cache.dim, launcher.pool());
  }
  const int64_t num_unique = plan->num_unique();
  const int32_t dim = cache.dim;
  float* const sums = plan->ReserveSums(dim);
  const int num_owners = plan->shares()->num_owners();
  const bool counts = cache.table.has_statistics();
  if (counts) plan->PrepareCounts(labels != nullptr);
  launcher.on_threads(num_owners, [&](int owner) {
    KeyShare* share = plan->share(owner);
    plan->shares()->PrepareSums(owner, dim, share);
    share->values = sums;
    loops.sum_gradients(share, dim, view);
    if (!counts) return;
    plan->shares()->CountClicks(owner, labels, share);
    GiveCounts(*share, plan);
  });
  uint32_t culprit = kNoCulprit;
  uint32_t most = kOrdinaryBits;
  launcher.on_threads(num_owners, [&](int piece) {
    const int64_t first = num_unique * piece / num_owners;
    const int64_t end = num_unique * (piece + 1) / num_owners;
    const uint32_t largest = loops.find_largest(sums + first * dim, (end - first) * dim);
    AtomicMax(&most, largest);
    if (largest < kInfinityBits) return;
    const int64_t found = loops.find_not_finite(sums + first * dim, end - first, dim);
    AtomicMin(&culprit, static_cast<uint32_t>(first + found));
  });
  plan->SetCulprit(culprit);
  plan->SetLargest(most);
  return culprit == kNoCulprit ? -1 : static_cast<int64_t>(culprit);
}

}  // namespace HPS_BUILD
}  // namespace hps
