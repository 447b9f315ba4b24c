// The batch verbs of GpuCache: from a batch's keys to pinned rows and back.
#include "gpu_cache/gpu_cache.h"

#include <cstring>

#include "common/check.h"
#include "gpu_cache/host_loops.h"

namespace hps {
namespace {

constexpr HostGroup kGroup;
constexpr int64_t kPage = 4096;

}  // namespace

GpuCache::GpuCache(const GpuCacheOptions& options, ThreadPool* pool)
    : options_(options), pool_(pool) {}

Status GpuCache::Open(const GpuCacheOptions& options, ThreadPool* pool,
                      std::unique_ptr<GpuCache>* cache) {
  std::unique_ptr<GpuCache> made(new GpuCache(options, pool));
  TableMemory memory;
  HPS_RETURN_IF_ERROR(
      TableMemory::Plan(options.capacity_bytes, options.layout.row_bytes(), &memory));
  HPS_CHECK(memory.bytes <= options.capacity_bytes);
  HPS_RETURN_IF_ERROR(made->memory_.Map(memory.bytes));
  memory.Bind(made->memory_.data(), &made->args_);
  made->args_.kind = options.layout.kind;
  made->args_.dim = static_cast<int32_t>(options.layout.dim);
  made->args_.numbers = options.numbers;
  made->args_.initializer = options.initializer;
  *cache = std::move(made);
  return Status::Ok();
}

void GpuCache::MakePlan(const uint64_t* keys, int64_t count, GpuPlan* plan) {
  Abandon(plan);
  plan->SetKeys(keys, count);
  const DeduplicateArgs args = {plan->batch()};
  ForItems(pool_, count, [&](int64_t i) { PlaceKeyOne(kGroup, args, i); });
  ForItems(pool_, count, [&](int64_t i) { FlagFirstOne(kGroup, args, i); });
  SumUp(args.batch.first_ranks, count);
  ForItems(pool_, count, [&](int64_t i) { NumberKeyOne(kGroup, args, i); });
}

int64_t GpuCache::Pull(const uint64_t* keys, int64_t count, GpuPlan* plan, float* out) {
  MakePlan(keys, count, plan);
  Find(plan, 0, -1);
  if (plan->num_missing() == 0) Gather(*plan, out);
  return plan->num_missing();
}

void GpuCache::Find(GpuPlan* plan, int64_t first, int64_t count) {
  HPS_CHECK(plan->state != GpuPlan::State::kReserved && plan->state != GpuPlan::State::kPinned);
  const int64_t size = count < 0 ? plan->num_unique() - first : count;
  HPS_CHECK(first >= 0 && size >= 0 && first + size <= plan->num_unique());
  plan->PrepareFind(size);
  const FindArgs args = {args_, plan->batch(), first, count, size};
  BeginFindOne(kGroup, args, 0);
  ForItems(pool_, size, [&](int64_t i) { FindSlotOne(kGroup, args, i); });
  SumUp(args.batch.missing_ranks, size);
  ForItems(pool_, size, [&](int64_t i) { ListMissingOne(kGroup, args, i); });
  TickOne(kGroup, args, 0);
  ForItems(pool_, args_.clock->num_swept, [&](int64_t i) { SweepOne(kGroup, args, i); });
  const bool is_whole = plan->num_missing() == 0 && size == plan->num_unique();
  plan->state = is_whole ? GpuPlan::State::kResolved : GpuPlan::State::kFound;
  plan->epoch = epoch_;
}

bool GpuCache::IsCurrent(const GpuPlan& plan) const {
  if (plan.state == GpuPlan::State::kPinned) return true;
  return plan.state == GpuPlan::State::kResolved && plan.epoch == epoch_;
}

// The host sees what every round left open; a device launches all and lets them return.
void GpuCache::RunRounds(ReserveArgs args) {
  constexpr int32_t kGroupingOfRound[] = {-1,        kByFirst, kByEmptier,    kByFirst,
                                          kBySecond, kByFirst, kBySecondAgain};
  const BatchNumbers& numbers = *args.batch.numbers;
  bool is_grouped_by_first = false;
  for (args.round = 1; args.round <= kNumRounds; ++args.round) {
    if (numbers.refused || !numbers.open[args.round - 1]) continue;
    args.grouping = kGroupingOfRound[args.round];
    if (args.grouping != kByFirst || !is_grouped_by_first) {
      ForItems(pool_, args.bound, [&](int64_t i) { CountInBucketOne(kGroup, args, i); });
      ForItems(pool_, args.bound, [&](int64_t i) { StartListOne(kGroup, args, i); });
      ForItems(pool_, args.bound, [&](int64_t i) { PutIntoListOne(kGroup, args, i); });
    }
    is_grouped_by_first |= args.grouping == kByFirst;
    ForItems(pool_, args.bound, [&](int64_t i) { PlaceBucketOne(kGroup, args, i); });
  }
}

bool GpuCache::Reserve(GpuPlan* plan) {
  const bool is_found =
      plan->state == GpuPlan::State::kFound || plan->state == GpuPlan::State::kResolved;
  HPS_CHECK(is_found && plan->epoch == epoch_);
  plan->PrepareReserve();
  const int64_t num_missing = plan->num_missing();
  ReserveArgs args = {args_, plan->batch(), num_missing, nullptr, 0, 0};
  BeginReserveOne(kGroup, args, 0);
  ForItems(pool_, plan->window_size(), [&](int64_t i) { PinOne(kGroup, args, i); });
  RunRounds(args);
  SettleReserveOne(kGroup, args, 0);
  if (plan->numbers().refused) {
    ForItems(pool_, plan->window_size(), [&](int64_t i) { UndoReserveOne(kGroup, args, i); });
    return false;
  }
  ForItems(pool_, num_missing, [&](int64_t i) { NoteVictimOne(kGroup, args, i); });
  if (num_missing > 0) ++epoch_;
  plan->epoch = epoch_;
  plan->state = GpuPlan::State::kReserved;
  // May find no memory for the victims; what was taken can be abandoned by now.
  SumUp(args.batch.victim_ranks, num_missing);
  const int64_t num_victims = num_missing == 0 ? 0 : args.batch.victim_ranks[num_missing - 1];
  args.victims = plan->ReserveVictims(num_victims * shape().row_bytes);
  ForItems(pool_, num_missing, [&](int64_t i) { CommitEntryOne(kGroup, args, i); });
  return true;
}

void GpuCache::Cancel(GpuPlan* plan) {
  HPS_CHECK(plan->state == GpuPlan::State::kReserved);
  const ReserveArgs args = {args_, plan->batch(), plan->window_size(), nullptr, 0, 0};
  ForItems(pool_, plan->window_size(), [&](int64_t i) { CancelOne(kGroup, args, i); });
  ++epoch_;
  plan->ForgetVictims();
  plan->state = GpuPlan::State::kKeys;
}

void GpuCache::Abandon(GpuPlan* plan) {
  if (plan->state == GpuPlan::State::kReserved) {
    Cancel(plan);
  } else if (plan->state == GpuPlan::State::kPinned) {
    Release(plan);
  }
}

void GpuCache::Fill(GpuPlan* plan, const uint8_t* rows, const uint8_t* found, float lr,
                    bool create) {
  HPS_CHECK(plan->state == GpuPlan::State::kReserved);
  const int64_t num_missing = plan->num_missing();
  const FillArgs args = {args_, plan->batch(), rows, found, num_missing, create, lr};
  WithDim(args_.dim, [&](auto lanes) {
    const HostRowGroup<decltype(lanes)::kWidth> group;
    ForItems(pool_, num_missing, [&](int64_t i) { FillRowOne(group, args, i); });
  });
  plan->state = GpuPlan::State::kPinned;
}

void GpuCache::Release(GpuPlan* plan) {
  HPS_CHECK(plan->state == GpuPlan::State::kPinned);
  const ReserveArgs args = {args_, plan->batch(), plan->window_size(), nullptr, 0, 0};
  ForItems(pool_, plan->window_size(), [&](int64_t i) { ReleaseOne(kGroup, args, i); });
  const bool is_whole = plan->window_size() == plan->num_unique();
  // Rows may have moved since the reserve if other batches reserved meanwhile; the epoch tells.
  plan->state = is_whole ? GpuPlan::State::kResolved : GpuPlan::State::kFound;
}

void GpuCache::Gather(const GpuPlan& plan, float* out) {
  HPS_CHECK(IsCurrent(plan));
  const GatherArgs args = {args_, plan.batch(), out};
  WithDim(args_.dim, [&](auto lanes) {
    const HostRowGroup<decltype(lanes)::kWidth> group;
    ForItems(pool_, plan.num_occurrences(), [&](int64_t i) { GatherOne(group, args, i); });
  });
}

void GpuCache::Pool(const GpuPlan& plan, const BagsView& bags, float* out) {
  HPS_CHECK(IsCurrent(plan) && plan.window_size() == plan.num_unique());
  const PoolArgs args = {args_, plan.batch(),      bags.offsets,      bags.weights,
                         out,   bags.num_examples, bags.num_features, bags.is_mean};
  ForItems(pool_, bags.num_examples * bags.num_features,
           [&](int64_t i) { PoolOne(kGroup, args, i); });
}

int64_t GpuCache::SumGradients(GpuPlan* plan, const float* gradients) {
  const int64_t num_unique = plan->num_unique();
  if (num_unique == 0) return -1;
  const SumArgs args = plan->PrepareSums(args_, gradients);
  SortPositions(*plan, args);
  ForItems(pool_, num_unique, [&](int64_t i) { CountRunsOne(kGroup, args, i); });
  SumUp(args.hot_ranks, num_unique);
  const int64_t num_hot_runs = args.hot_ranks[num_unique - 1];
  ForItems(pool_, num_unique + num_hot_runs, [&](int64_t i) { SumRunOne(kGroup, args, i); });
  if (num_hot_runs > 0) {
    ForItems(pool_, num_hot_runs, [&](int64_t i) { SumBlockOne(kGroup, args, i); });
    ForItems(pool_, num_unique, [&](int64_t i) { CombineRunsOne(kGroup, args, i); });
  }
  const uint32_t culprit = plan->numbers().culprit;
  return culprit == kNoCulprit ? -1 : static_cast<int64_t>(culprit);
}

// What a device's stable sort does: occurrences by id, in order within one.
void GpuCache::SortPositions(const GpuPlan& plan, const SumArgs& args) {
  const int64_t num_unique = plan.num_unique();
  const uint32_t* inverse = plan.batch().inverse;
  auto* positions = const_cast<int64_t*>(args.positions);
  std::memset(args.starts, 0, static_cast<size_t>(num_unique + 1) * sizeof(int64_t));
  for (int64_t i = 0; i < plan.num_occurrences(); ++i) ++args.starts[inverse[i]];
  int64_t end = 0;
  for (int64_t id = 0; id <= num_unique; ++id) {
    end += args.starts[id];
    args.starts[id] = end - args.starts[id];
  }
  for (int64_t i = 0; i < plan.num_occurrences(); ++i) positions[args.starts[inverse[i]]++] = i;
  for (int64_t id = num_unique; id > 0; --id) args.starts[id] = args.starts[id - 1];
  args.starts[0] = 0;
}

void GpuCache::Apply(GpuPlan* plan, float lr) {
  HPS_CHECK(IsCurrent(*plan));
  const ApplyArgs args = {args_, plan->batch(), plan->sums(), &failure_, plan->window_size(), lr};
  WithDim(args_.dim, [&](auto lanes) {
    const HostRowGroup<decltype(lanes)::kWidth> group;
    const auto apply = [&]<OptimizerKind kKind>() {
      ForItems(pool_, args.bound, [&](int64_t i) { ApplyOne<kKind>(group, args, i); });
    };
    switch (args_.kind) {
      case OptimizerKind::kSgd:
        return apply.template operator()<OptimizerKind::kSgd>();
      case OptimizerKind::kAdagrad:
        return apply.template operator()<OptimizerKind::kAdagrad>();
      case OptimizerKind::kRowWiseAdagrad:
        return apply.template operator()<OptimizerKind::kRowWiseAdagrad>();
      case OptimizerKind::kAdam:
        return apply.template operator()<OptimizerKind::kAdam>();
      case OptimizerKind::kFtrl:
        return apply.template operator()<OptimizerKind::kFtrl>();
    }
  });
}

}  // namespace hps
