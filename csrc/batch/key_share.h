// KeyShare: what one thread of the host has of a batch: the keys of its parts, deduplicated, and
// their gradient sums.
//
// Above it: key_loops.h, key_shares.h. Below it: nothing. Plain data, so
// that it may cross the border between instruction sets. Memory is KeyShares'.
#pragma once

#include "common/portable.h"

namespace hps {

// Unique keys are in order of first occurrence and are named by their index ("id").
struct KeyShare {
  uint64_t owned_parts;  // bit p: sub-part p of 64 (the hash's top six bits) is this thread's
  uint32_t* id_table;    // [id_mask + 1] open addressing: id + 1, 0 = empty
  uint64_t id_mask;
  int64_t most_unique;       // keys that the id table has room for
  uint64_t* keys;            // [num_unique]
  uint32_t* ids;             // [num_occurrences] of each own occurrence's key, in order; with
                             // kFirstOfKey on a key's first
  uint32_t* scan_positions;  // [num_occurrences] where it is in the batch
  uint32_t* joint_ids;       // [num_unique] ids in the whole batch; scratch of join
  int64_t num_unique;
  int64_t num_occurrences;
  float* values;       // [num_ids * dim] sums (of dram_cache: embeddings, then sums)
  float* aside;        // [2 * runs * dim] sums of runs that are set aside
  uint32_t* counts;    // [num_ids] occurrences of a key, while and after they are summed
  uint32_t* clicks;    // [num_ids] of these, with label 1; null where there are no labels
  uint32_t* hot_ids;   // [num_hot] ids with a full run
  uint32_t* youngest;  // [num_ids] a hot key's youngest run set aside, or kNoRun
  uint32_t* older;     // [2 * runs] of a run set aside: the key's next older one
  int64_t num_ids;     // what `ids` are below: num_unique, or after join, the whole batch's
  int64_t num_hot;
  uint32_t largest;  // magnitude of the sums, as FindLargest has it
};

inline constexpr uint32_t kFirstOfKey = uint32_t{1} << 31;
inline constexpr int64_t kOccurrencePadding = 48;  // zeros, so that looking ahead needs no check
inline constexpr uint32_t kNoRun = ~uint32_t{0};

}  // namespace hps
