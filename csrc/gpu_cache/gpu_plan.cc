// GpuPlan's memory.
#include "gpu_cache/gpu_plan.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace hps {
namespace {

constexpr uint64_t kMinIdTable = 64;

}  // namespace

BucketLists GpuPlan::Lists::Reserve(int64_t count) {
  return {arrivals.Reserve(count), starts.Reserve(count), lengths.Reserve(count),
          entries.Reserve(count)};
}

uint64_t* GpuPlan::SetSize(int64_t count) {
  HPS_CHECK(count >= 0 && count < (int64_t{1} << 31));
  HPS_CHECK(state != State::kReserved && state != State::kPinned);
  // Empty until it is made: there may be no memory for it.
  state = State::kKeys;
  numbers_ = {};
  batch_ = {};
  batch_.numbers = &numbers_;
  uint64_t* own_keys = keys_.Reserve(count);
  uint64_t entries = kMinIdTable;
  while (entries < 2 * static_cast<uint64_t>(count)) entries *= 2;
  batch_.id_table = id_table_.Reserve(static_cast<int64_t>(entries));
  batch_.id_mask = entries - 1;
  batch_.places = places_.Reserve(count);
  batch_.first_ranks = first_ranks_.Reserve(count);
  batch_.inverse = inverse_.Reserve(count);
  batch_.unique_keys = unique_keys_.Reserve(count);
  batch_.slots = slots_.Reserve(count);
  batch_.keys = own_keys;
  batch_.num_occurrences = count;
  return own_keys;
}

void GpuPlan::PrepareFind(int64_t count) {
  batch_.missing_ranks = missing_ranks_.Reserve(count);
  batch_.missing = missing_.Reserve(count);
  batch_.missing_keys = missing_keys_.Reserve(count);
}

void GpuPlan::PrepareReserve() {
  const int64_t count = num_missing();
  batch_.pinned = pinned_.Reserve(num_unique());
  batch_.reservations = reservations_.Reserve(count);
  batch_.emptier = emptier_.Reserve(count);
  batch_.victim_ranks = victim_ranks_.Reserve(count);
  batch_.first_lists = first_lists_.Reserve(count);
  batch_.other_lists = other_lists_.Reserve(count);
}

SumArgs GpuPlan::PrepareSums(const CacheArgs& cache, const float* gradients) {
  const int64_t dim = cache.dim;
  const int64_t most_hot_runs = num_occurrences() / (kRunLength / 2) + 1;
  SumArgs args = {};
  args.cache = cache;
  args.batch = batch_;
  args.gradients = gradients;
  args.starts = starts_.Reserve(num_unique() + 1);
  args.hot_ranks = hot_ranks_.Reserve(num_unique());
  args.run_sums = run_sums_.Reserve(most_hot_runs * dim);
  args.run_ids = run_ids_.Reserve(most_hot_runs);
  args.sums = sums_.Reserve(num_unique() * dim);
  args.bound = num_unique();
  args.most_hot_runs = most_hot_runs;
  return args;
}

bool GpuPlan::Matches(const uint64_t* keys, int64_t count) const {
  if (count != num_occurrences()) return false;
  return count == 0 ||
         std::memcmp(keys, keys_.data(), static_cast<size_t>(count) * sizeof(uint64_t)) == 0;
}

}  // namespace hps
