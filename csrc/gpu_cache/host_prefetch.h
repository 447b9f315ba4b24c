// What the host asks its memory for ahead of a kernel's work items; a device hides that wait behind
// other lanes.
//
// Above it: batch_verbs_body.h. Below it: the kernels' arguments.
#pragma once

#include "gpu_cache/kernels.h"
#include "table/host_group.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int64_t kBucketsAhead = 64;  // work items between asking for a line and its use
inline constexpr int64_t kItemsAhead = 32;

// Rows are aligned to 16, so a row's last 16 bytes share a line.
template <bool kWrites>
inline void AskForRow(const CacheArgs& cache, int64_t slot, int64_t bytes) {
  const uint8_t* row = RowAt(cache.table, slot);
  for (int64_t line = 0; line < bytes - 16; line += 64) __builtin_prefetch(row + line, kWrites);
  __builtin_prefetch(row + bytes - 1, kWrites);
}

inline void AskForBucket(const FindArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const TableView& table = args.cache.table;
  const int64_t last = batch.numbers->window_size - 1;
  const int64_t far = i + kBucketsAhead < last ? i + kBucketsAhead : last;
  const int64_t near = i + kItemsAhead < last ? i + kItemsAhead : last;
  const int64_t bucket = PlaceOfKey(args.cache, batch.unique_keys[WindowId(batch, far)]).first;
  __builtin_prefetch(table.digests + bucket * kBucketSlots);
  __builtin_prefetch(table.spilled + bucket);
  const KeyPlace place = PlaceOfKey(args.cache, batch.unique_keys[WindowId(batch, near)]);
  const uint8_t* digests = table.digests + place.first * kBucketSlots;
  const uint64_t candidates = HostGroup{}.match(digests, place.digest);
  // In one bucket of five some other key has the same digest, so all candidates count.
  for (uint64_t left = candidates; left != 0; left &= left - 1) {
    const int64_t slot = place.first * kBucketSlots + LowestBit(left);
    __builtin_prefetch(RowAt(table, slot));
    if (args.cache.clock->keeps_stamps) __builtin_prefetch(table.marks + slot, 1);
  }
}

inline void AskForGathered(const GatherArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const int64_t last = batch.num_occurrences - 1;
  const int64_t id = batch.inverse[i + kItemsAhead < last ? i + kItemsAhead : last];
  const BatchNumbers& numbers = *batch.numbers;
  if (id - numbers.window_first < numbers.window_size && id >= numbers.window_first) {
    AskForRow<false>(args.cache, batch.slots[id], kRowHeaderBytes + 4 * args.cache.dim);
  }
}

inline void AskForUpdated(const ApplyArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const int64_t last = batch.numbers->window_size - 1;
  const int64_t slot =
      batch.slots[WindowId(batch, i + kItemsAhead < last ? i + kItemsAhead : last)];
  AskForRow<true>(args.cache, slot, args.cache.table.shape.row_bytes);
  __builtin_prefetch(args.cache.table.marks + slot, 1);
}

}  // namespace HPS_BUILD
}  // namespace hps
