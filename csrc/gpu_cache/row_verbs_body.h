// The text of GpuCache's verbs that set, copy, drop or walk over rows.
//
// Above it: gpu_cache.cc, tests. Below it: kernels.h.
#pragma once

#include "gpu_cache/batch_verbs_body.h"

namespace hps {

template <class Launcher>
void GpuCacheOver<Launcher>::ReadRows(const GpuPlan& plan, uint8_t* images) {
  HPS_CHECK(IsCurrent(plan));
  const ImagesArgs args = {args_, plan.batch(), images, plan.window_size()};
  launcher_.any(args.bound, [args](auto group, int64_t i) { ReadRowOne(group, args, i); });
}

template <class Launcher>
void GpuCacheOver<Launcher>::Assign(GpuPlan* plan, const float* rows, const float* state,
                                    const RowStatistics* statistics, float lr) {
  HPS_CHECK(IsCurrent(*plan));
  uint32_t* last = plan->ReserveLast();
  const auto bytes = static_cast<size_t>(plan->num_unique()) * sizeof(uint32_t);
  if (bytes != 0) std::memset(last, 0, bytes);
  const AssignArgs args = {args_, plan->batch(),       rows, state, statistics,
                           last,  plan->window_size(), lr};
  launcher_.one(plan->num_occurrences(),
                [args](auto group, int64_t i) { FindLastOne(group, args, i); });
  ForRows([&](auto wrap) {
    launcher_.rows(args_.dim, args.bound,
                   [=](auto group, int64_t i) { AssignOne(wrap(group), args, i); });
  });
}

template <class Launcher>
int64_t GpuCacheOver<Launcher>::Create(GpuPlan* plan, float lr) {
  HPS_CHECK(IsCurrent(*plan));
  const int64_t before = count(kCountCreated);
  const CreateArgs args = {args_, plan->batch(), plan->window_size(), lr};
  ForRows([&](auto wrap) {
    launcher_.rows(args_.dim, args.bound,
                   [=](auto group, int64_t i) { CreateOne(wrap(group), args, i); });
  });
  return count(kCountCreated) - before;
}

template <class Launcher>
void GpuCacheOver<Launcher>::InitialWeights(const uint64_t* keys, int64_t count, float* out) {
  const InitialWeightsArgs args = {args_, keys, out};
  ForRows([&](auto wrap) {
    launcher_.rows(args_.dim, count,
                   [=](auto group, int64_t i) { InitialWeightsOne(wrap(group), args, i); });
  });
}

template <class Launcher>
void GpuCacheOver<Launcher>::Contains(const uint64_t* keys, int64_t count, uint8_t* presence) {
  const KeysArgs args = {args_, keys, presence, nullptr, nullptr};
  launcher_.any(count, [args](auto group, int64_t i) { ContainsOne(group, args, i); });
}

template <class Launcher>
Status GpuCacheOver<Launcher>::Erase(const uint64_t* keys, int64_t count, uint8_t* presence) {
  uint32_t first_pinned = kNoPosition;
  const KeysArgs args = {args_, keys, presence, erase_slots_.Reserve(count), &first_pinned};
  launcher_.any(count, [args](auto group, int64_t i) { FindErasedOne(group, args, i); });
  if (first_pinned != kNoPosition) {
    return Status(StatusCode::kConfig,
                  "key " + std::to_string(keys[first_pinned]) +
                      " is in use by a batch of an open pipeline; erase it after that batch");
  }
  launcher_.one(count, [args](auto group, int64_t i) { EraseOne(group, args, i); });
  ++epoch_;
  return Status::Ok();
}

template <class Launcher>
int64_t GpuCacheOver<Launcher>::DropDead(uint32_t period) {
  HPS_CHECK(count(kCountPins) == 0);
  const int64_t before = count(kCountRows);
  const DropDeadArgs args = {args_, period};
  launcher_.one(shape().num_slots(),
                [args](auto group, int64_t i) { DropDeadOne(group, args, i); });
  const int64_t num_dropped = before - count(kCountRows);
  if (num_dropped > 0) ++epoch_;
  return num_dropped;
}

template <class Launcher>
int64_t GpuCacheOver<Launcher>::Scan(int64_t* cursor, bool dirty_only, int64_t most,
                                     uint8_t* rows) {
  const int64_t num_slots = shape().num_slots();
  int32_t* ranks = scan_ranks_.Reserve(kSlotsAScan);
  int64_t num_rows = 0;
  int64_t slot = *cursor;
  while (slot < num_slots && num_rows < most) {
    int64_t result[2] = {0, 0};
    const int64_t count = std::min(kSlotsAScan, num_slots - slot);
    const ScanArgs args = {
        args_, slot, count, most - num_rows, dirty_only, ranks, rows + num_rows * shape().row_bytes,
        result};
    launcher_.one(count, [args](auto group, int64_t i) { FlagScannedOne(group, args, i); });
    SumUp(ranks, count);
    launcher_.any(count, [args](auto group, int64_t i) { CopyScannedOne(group, args, i); });
    num_rows += result[0];
    slot = result[1];
  }
  *cursor = slot < num_slots ? slot : -1;
  return num_rows;
}

template <class Launcher>
void GpuCacheOver<Launcher>::MarkClean(int64_t first, int64_t last) {
  const int64_t end = last < 0 ? shape().num_slots() : last;
  HPS_CHECK(first >= 0 && end <= shape().num_slots());
  if (count(kCountDirty) == 0) return;
  ScanArgs args = {};
  args.cache = args_;
  args.first = first;
  launcher_.one(end - first, [args](auto group, int64_t i) { MarkCleanOne(group, args, i); });
}

template <class Launcher>
void GpuCacheOver<Launcher>::Clear() {
  HPS_CHECK(count(kCountPins) == 0);
  const TableView& table = args_.table;
  const auto num_slots = static_cast<size_t>(table.shape.num_slots());
  std::memset(table.digests, 0, num_slots);
  std::memset(static_cast<void*>(table.marks), 0, num_slots * sizeof(SlotMark));
  std::memset(table.spilled, 0, static_cast<size_t>(table.shape.num_buckets()));
  for (const CacheCounter counter : {kCountRows, kCountFresh, kCountDirty}) {
    Count(args_, counter, 0, -count(counter));
  }
  ++epoch_;
}

}  // namespace hps
