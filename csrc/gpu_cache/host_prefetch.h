// What the host asks its memory for ahead of a kernel's work items; a device hides that wait behind
// other lanes.
//
// Above it: batch_verbs_body.h. Below it: the kernels' arguments.
#pragma once

#include "gpu_cache/admission_kernels.h"
#include "gpu_cache/kernels.h"
#include "table/host_group.h"

namespace hps {
inline namespace HPS_BUILD {

// Rows are aligned to 16, so a row's last 16 bytes share a line.
template <bool kWrites>
inline void AskForRow(const CacheArgs& cache, int64_t slot, int64_t bytes) {
  const uint8_t* row = RowAt(cache.table, slot);
  for (int64_t line = 0; line < bytes - 16; line += 64) AskForLine<kWrites>(row + line);
  AskForLine<kWrites>(row + bytes - 1);
}

inline void AskForBucket(const CacheArgs& cache, uint64_t key) {
  AskForLine(cache.table.digests + PlaceOfKey(cache, key).first * kBucketSlots);
}

inline void AskForBucket(const FindArgs& args, int64_t i) {
  if (i < args.bound) AskForBucket(args.cache, args.batch.unique_keys[args.first + i]);
}

inline void AskForCandidates(const CacheArgs& cache, uint64_t key) {
  const TableView& table = cache.table;
  const KeyPlace place = PlaceOfKey(cache, key);
  const uint8_t* digests = table.digests + place.first * kBucketSlots;
  const uint64_t candidates = HostGroup{}.match(digests, place.digest);
  // In one bucket of five some other key has the same digest, so all candidates count.
  for (uint64_t left = candidates; left != 0; left &= left - 1) {
    const int64_t slot = place.first * kBucketSlots + LowestBit(left);
    AskForLine(RowAt(table, slot));
    if (cache.clock->keeps_stamps) AskForLine<true>(table.marks + slot);
  }
}

inline void AskForCandidates(const FindArgs& args, int64_t i) {
  if (i < args.bound) AskForCandidates(args.cache, args.batch.unique_keys[args.first + i]);
}

inline void AskForMark(const CacheArgs& cache, const BatchArgs& batch, int64_t i) {
  AskForLine(cache.table.marks + batch.slots[WindowId(batch, i)]);
}

inline void AskForSlot(const GatherArgs& args, int64_t i) {
  AskForLine(args.batch.slots + args.batch.inverse[i]);
}

inline void AskForGathered(const GatherArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const int64_t id = batch.inverse[i];
  if (IsInWindow(batch, id - batch.numbers->window_first)) {
    const TableView& table = args.cache.table;
    const int64_t most = table.header_bytes() + 4 * args.cache.dim;  // narrow rows have less
    AskForRow<false>(args.cache, batch.slots[id],
                     most < table.shape.row_bytes ? most : table.shape.row_bytes);
  }
}

// Rows that will be written are asked for one at a time, not many together: a processor has room
// for fewer lines that it is to own.
inline constexpr int64_t kUpdatesAhead = 24;

inline void AskForUpdated(const ApplyArgs& args, int64_t i) {
  if (i >= args.bound) return;
  const BatchArgs& batch = args.batch;
  const int64_t slot = batch.slots[WindowId(batch, i)];
  AskForRow<true>(args.cache, slot, args.cache.table.shape.row_bytes);
  AskForLine<true>(args.cache.table.marks + slot);
}

// What a listed key waits by.
template <bool kWrites>
inline void AskForCounts(const AdmitArgs& args, int64_t i) {
  AskForRow<kWrites>(args.beside, args.fresh.beside[i], kStatisticsAt + kStatisticsBytes);
}

inline void AskForAdmitted(const ApplyAdmittedArgs& args, int64_t i) {
  if (i >= args.apply.bound || args.withheld[WindowId(args.apply.batch, i)]) return;
  AskForUpdated(args.apply, i);
}

}  // namespace HPS_BUILD
}  // namespace hps
