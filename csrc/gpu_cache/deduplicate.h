// Deduplicating a batch: its distinct keys in order of first occurrence, and the id of each
// occurrence, the same whatever order the threads come in.
//
// Above it: kernels.h. Below it: cache_args.h. The host build has loops of its own for it:
// host_batch.h says why. Every occurrence looks for its key in a table of
// positions; the smallest position of a key stays, and is its first occurrence.
#pragma once

#include "gpu_cache/cache_args.h"

namespace hps {

struct DeduplicateArgs {
  BatchArgs batch;
  uint64_t* keys = nullptr;         // [L] the batch's
  const uint64_t* given = nullptr;  // [L] that become the batch's keys; null: they are in place
  // The rank of the last occurrence of the tables before, with which first_ranks are summed up
  // together; null: there is none.
  const int32_t* rank_before = nullptr;
};

inline namespace HPS_BUILD {

// i: an entry of the id table, of which there are more than occurrences.
template <class Group>
HPS_HD void BeginPlanOne(Group, const DeduplicateArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  batch.id_table[i] = kNoPosition;
  if (args.given != nullptr && i < batch.num_occurrences) args.keys[i] = args.given[i];
  if (i == 0) *batch.numbers = {};
}

// i: an occurrence. Needs the id table empty.
template <class Group>
HPS_HD void PlaceKeyOne(Group, const DeduplicateArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const auto position = static_cast<uint32_t>(i);
  const uint64_t key = batch.keys[i];
  uint64_t entry = EntryOfKey(key, batch.id_mask);
  for (;; entry = (entry + 1) & batch.id_mask) {
    uint32_t* const ptr = batch.id_table + entry;
    uint32_t found = AtomicLoad(ptr);
    if (found == kNoPosition) {
      found = AtomicExchangeIf(ptr, kNoPosition, position);
      if (found == kNoPosition) break;
    }
    if (batch.keys[found] != key) continue;
    // Most occurrences of a hot key come later than its first and need not queue for its entry.
    if (found > position) AtomicMin(ptr, position);
    break;
  }
  batch.places[i] = static_cast<uint32_t>(entry);
}

// i: an occurrence. Then first_ranks are summed up.
template <class Group>
HPS_HD void FlagFirstOne(Group, const DeduplicateArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  batch.first_ranks[i] = batch.id_table[batch.places[i]] == static_cast<uint32_t>(i);
}

// i: an occurrence; there is one at least.
template <class Group>
HPS_HD void NumberKeyOne(Group, const DeduplicateArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const uint32_t first = batch.id_table[batch.places[i]];
  const int32_t before = args.rank_before == nullptr ? 0 : *args.rank_before;
  const auto id = static_cast<uint32_t>(batch.first_ranks[first] - before - 1);
  batch.inverse[i] = id;
  if (first == static_cast<uint32_t>(i)) batch.unique_keys[id] = batch.keys[i];
  if (i == batch.num_occurrences - 1) batch.numbers->num_unique = batch.first_ranks[i] - before;
}

}  // namespace HPS_BUILD
}  // namespace hps
