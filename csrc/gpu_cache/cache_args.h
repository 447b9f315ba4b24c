// What every kernel of gpu_cache is given: the cache, and one batch's arrays; by value, as plain
// structs of pointers and numbers.
//
// Above it: the kernels' headers beside it (kernels.h lists them), the host build gpu_cache.cc, the
// CUDA launcher. Below it: csrc/table, csrc/optimizer. What a batch or a clock counts is in
// device memory, so that verbs follow each other without the host looking at anything.
#pragma once

#include "gpu_cache/ranked_flags.h"
#include "optimizer/initializer.h"
#include "optimizer/optimizer.h"
#include "table/life_rules.h"
#include "table/reserve.h"

namespace hps {

// Counts of a cache. There is one of each a stripe, so that a million threads do not queue for one
// address; a count is the sum over the stripes.
enum CacheCounter : int32_t {
  kCountRows,     // stored rows here: neither fresh nor pending
  kCountFresh,    // rows here that nobody stored yet
  kCountPending,  // slots reserved whose row has not arrived
  kCountDirty,    // rows newer than the tier below
  kCountPins,
  kCountHits,    // keys of batches that were here
  kCountMisses,  // and that were not
  kCountEvictions,
  kCountWriteBacks,    // of these, rows that had to be written below
  kCountRefusals,      // batches that could not be pinned
  kCountSecondBucket,  // rows taken into their second bucket
  kCountCreated,       // fresh rows that have become stored; never falls
  kCountSpared,        // wanted rows that would have given way by their age
};
inline constexpr int64_t kCountersAStripe = 16;
inline constexpr int64_t kCounterStripes = 64;
inline constexpr int64_t kNumCounterWords = kCountersAStripe * kCounterStripes;

inline constexpr uint8_t kExporting = 8;  // flag of a slot: its row, as it is, is on its way down

// The clock by which rows age: it ticks with use, once 1/kTicksPerTurn of the slots were used.
struct CacheClock {
  int64_t used_since_tick;
  int64_t sweep_bucket;   // where the sweep of the last tick began
  int64_t num_swept;      // buckets that the last use has to sweep; 0 if it did not tick
  uint32_t now;           // only its lowest byte counts
  uint32_t keeps_stamps;  // 0 while an eighth of the slots is free: no row has to give way
  uint32_t has_wants;     // rows have been marked as wanted
  uint32_t is_watched;    // a row is not tame (optimizer/trial.h): every update is tried
};
inline constexpr int64_t kTicksPerTurn = 64;

struct CacheArgs {
  TableView table;
  uint32_t* bucket_lists;  // [2 * num_buckets] heads of the bucket's lists; zero between verbs
  CacheClock* clock;
  int64_t* counters;  // [kNumCounterWords]
  InitializerSpec initializer;
  OptimizerNumbers numbers;
  OptimizerKind kind;
  int32_t dim;
  uint32_t period;   // in which updates count, in a table with statistics
  float more_shows;  // of an occurrence there without a click, see ShowsOf
  LifeRules rules;   // of such a table; its powers are memory of the host
};

// Rounds of a reserve, as reserve_kernels.h has them.
enum ReserveRound : int32_t { kFirst, kEmptier, kOther, kVictimFirst, kVictimSecond };
inline constexpr int kNumRounds = 5;
inline constexpr uint32_t kNoCulprit = ~uint32_t{0};

// The numbers of a batch that only the device knows. Zeroed once, when the plan's memory is made.
struct BatchNumbers {
  int64_t num_unique;
  int64_t window_first;
  int64_t window_size;
  int64_t num_missing;
  int64_t num_victims;
  uint32_t is_full;     // not 0: no slot was free when the window was looked up
  uint32_t refused;     // not 0: the last reserve took nothing
  uint32_t culprit;     // smallest id whose summed gradient, or what it would make of its row, is
                        // not finite, or kNoCulprit
  uint32_t largest;     // magnitude of the summed gradients as bits, kOrdinaryBits at least
  uint32_t is_wild;     // not 0: gradients are not all ordinary, see sums.h
  uint32_t num_placed;  // places that were given to terms of the sum under way
  uint32_t num_listed[kNumRounds];  // entries of the lists that a round wrote out
  uint32_t open[kNumRounds + 1];    // not 0: keys wait for that round, or, at the end, in vain
  uint32_t num_pinned_erased;       // keys that an erase found pinned
  uint32_t num_spared;  // wanted rows in whose place others gave way in the last reserve
};

// One batch. L is its number of keys, N of distinct ones (named by their index, "id", in order of
// first occurrence), M of missing ones in the window (named by their index, "entry"). Every array
// has room for L elements unless told; ranks come of flags by ranked_flags.h.
struct BatchArgs {
  int64_t num_occurrences;  // L, below 2^31
  BatchNumbers* numbers;
  // The next four are for kernels that deduplicate; the host build has them not.
  uint32_t* id_table;       // [id_mask + 1] positions; all ones (kNoPosition) before a batch
  uint64_t id_mask;         // a power of two less one; room for twice L at least
  RankedFlags first_flags;  // [L] of first occurrences
  uint64_t* first_ranks;    // [ceil(L / 32)] their number before 32 occurrences, then the 32 flags
  uint32_t* inverse;        // [L] id of each occurrence
  uint64_t* unique_keys;    // [N]
  int64_t* slots;           // [N] slot of each key, or kNoSlot; valid in the window
  uint8_t* pinned;          // [N] 1 where the reserve under way pinned a row that was here
  RankedFlags missing_flags;  // [window] of keys without a slot; none is set between verbs
  uint32_t* missing;          // [M] ids
  uint64_t* missing_keys;     // [M]
  Reservation* reservations;  // [M]; slot kNoSlot until taken
  uint8_t* emptier;           // [M] 1: of its buckets the second was emptier after the first round
  uint32_t* links;            // [M] the next entry of its bucket's list, plus 1; 0: it is the last
  uint32_t* other_links;      // [M] of the lists of every second round
  uint32_t* entries;          // [M] lists as a round writes them out
  RankedFlags victims;        // of entries whose slot's row goes down
  uint32_t* counts;           // [N] occurrences, in a device's sum; all zero between verbs
};

inline constexpr uint32_t kNoPosition = ~uint32_t{0};

inline namespace HPS_BUILD {

// Adds to a counter; `i` is the work item, by whose number a stripe is chosen.
HPS_HD void Count(const CacheArgs& cache, CacheCounter counter, int64_t i, int64_t amount) {
  const int64_t stripe = (i >> 5) % kCounterStripes;
  AtomicAdd(cache.counters + stripe * kCountersAStripe + counter, amount);
}

HPS_HD int64_t CountOf(const CacheArgs& cache, CacheCounter counter) {
  int64_t sum = 0;
  for (int64_t stripe = 0; stripe < kCounterStripes; ++stripe) {
    sum += cache.counters[stripe * kCountersAStripe + counter];
  }
  return sum;
}

HPS_HD uint8_t Now(const CacheArgs& cache) { return static_cast<uint8_t>(cache.clock->now); }

HPS_HD float* FloatsAt(const CacheArgs& cache, int64_t slot) { return FloatsAt(cache.table, slot); }

HPS_HD float* WeightsAt(const CacheArgs& cache, int64_t slot) {
  return FloatsAt(cache, slot) + kRowHeaderFloats;
}

HPS_HD KeyPlace PlaceOfKey(const CacheArgs& cache, uint64_t key) {
  return PlaceOfHash(cache.table.shape, MixKey(key));
}

// Where a key is looked for first in a batch's id table.
HPS_HD uint64_t EntryOfKey(uint64_t key, uint64_t id_mask) { return MixKey(key) >> 16 & id_mask; }

// The id of the window's i-th key.
HPS_HD int64_t WindowId(const BatchArgs& batch, int64_t i) {
  return batch.numbers->window_first + i;
}

HPS_HD bool IsInWindow(const BatchArgs& batch, int64_t i) { return i < batch.numbers->window_size; }

#if defined(__CUDACC__)
using MarkBits = uint16_t;
#else
using MarkBits = uint16_t __attribute__((may_alias));
#endif

// One use of a row, by any number of threads at once: they all come to the same mark.
HPS_HD void Touch(const CacheArgs& cache, int64_t slot) {
  static_assert(sizeof(SlotMark) == sizeof(MarkBits));
  auto* const ptr = reinterpret_cast<MarkBits*>(cache.table.marks + slot);
  const uint16_t before = AtomicLoad(ptr);
  const SlotMark mark =
      Touched({static_cast<uint8_t>(before & 255), static_cast<uint8_t>(before >> 8)}, Now(cache));
  const auto after = static_cast<uint16_t>(mark.stamp | mark.flags << 8);
  if (after != before) AtomicStore(ptr, MarkBits{after});
}

// Spill counts as many threads change them at once.
struct SharedCounts {
  HPS_HD_MEMBER bool increase(uint8_t* count) const {
    return AtomicChange(count, [](uint8_t value) {
             return static_cast<uint8_t>(value == kSpilledSticky ? value : value + 1);
           }) != kSpilledSticky;
  }
  HPS_HD_MEMBER bool decrease(uint8_t* count) const {
    return AtomicChange(count, [](uint8_t value) {
             return static_cast<uint8_t>(value == kSpilledSticky ? value : value - 1);
           }) != kSpilledSticky;
  }
};

}  // namespace HPS_BUILD
}  // namespace hps
