// The hot loops of dram_cache, one function table an instruction set, chosen at run time.
//
// Above it: dram_cache.cc, which calls each loop once a worker. Below it: batch_loops_body.h, the
// one text that batch_loops_{plain,avx2,avx512}.cc compile. Only plain data crosses this border, so
// that no inline function compiled for AVX-512 can be linked into code that must run anywhere.
// (Deduplication alone, gradient sums, and values to their positions: csrc/batch/key_loops.h.)
#pragma once

#include "batch/bags.h"
#include "batch/key_share.h"
#include "optimizer/initializer.h"
#include "optimizer/narrow_lanes.h"
#include "optimizer/optimizer.h"
#include "table/life_rules.h"
#include "table/reserve.h"
#include "table/row_packing.h"

namespace hps {

// What one worker owns of a batch: the keys of its parts, deduplicated, and their slots. Memory is
// BatchPlan's and its KeyShares'. `values` are embeddings first, then gradient sums.
struct WorkerBatch : KeyShare {
  int64_t* slots;             // [num_unique] slot of each key, or kNoSlot
  uint32_t* starts;           // [num_unique + 1] into positions; see SortPositions
  uint32_t* positions;        // [num_occurrences] grouped by id, in order
  uint32_t* missing;          // [num_missing] ids of the window without a slot
  uint8_t* second_round;      // [num_missing] scratch of reserve
  Reservation* reservations;  // [num_missing]; entry i belongs to missing[i]
  uint32_t* order;            // [num_missing] entry order[k] was the k-th reservation made
  const float* gradients;     // [batch, dim] of a batch that was found key by key, else null: then
                              // a key's sum is its one gradient, and values have room for one
  int64_t num_missing;
  int64_t num_repeats;  // keys that find_each met again
  int64_t num_reserved;
  int64_t window_begin;  // ids of the current window; positions for pull_each
  int64_t window_end;
  int64_t result;        // what the worker's last loop returned
  int64_t num_dirtied;   // rows that its last Apply made dirty
  bool is_wild;          // a row that its last Apply made is not tame (optimizer/trial.h)
  int64_t num_spared;    // wanted rows in whose place others gave way in its last reserve
  uint32_t* fresh;       // [num_listed] ids of the window's fresh rows, once listed
  uint64_t* fresh_keys;  // [num_listed] their keys
  int64_t* beside;       // [num_listed] slots of these keys in another table
  uint8_t* withheld;     // [num_unique] 1: Apply leaves the row, which is fresh, as it is; null: it
                         // leaves none
  int64_t num_listed;
};

// What every loop of a cache shares.
struct CacheView {
  TableView table;
  RowPacking packing;  // of its slots
  OptimizerKind kind;
  int32_t dim;
  uint8_t now;
  bool keeps_stamps;  // false while the table has room: nothing ages that need not give way
  bool has_wants;     // rows have been marked as wanted
  OptimizerNumbers numbers;
  InitializerSpec initializer;
  uint32_t period;   // in which updates count, in a table with statistics
  float more_shows;  // of an occurrence there without a click, see ShowsOf
  LifeRules rules;   // of such a table
  bool is_narrow;    // weights are Bfloat16, and these are rounded by updates so
  Rounding rounding;

  // Of what the address of each row is a multiple.
  HPS_HD_MEMBER int64_t alignment() const { return packing.is_packed() ? kPackedAlignment : 16; }
};

struct BatchLoops {
  const char* name;
  // Groups the occurrences by key (starts, positions): what single keys need.
  void (*sort_positions)(WorkerBatch* worker);
  // Deduplicates, looks up the whole batch, and copies every embedding to all its positions in out,
  // of `count` rows, if nothing is missing; false if the id table is too small. Needs room for
  // most_unique values.
  bool (*pull)(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys, int64_t count,
               OutputRows out);
  // Deduplicates and looks up the whole batch, and copies its embeddings to values; false if the id
  // table is too small. Needs room for most_unique values.
  bool (*pull_values)(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                      int64_t count);
  // Deduplicates and looks up the whole batch; false if the id table is too small.
  bool (*pull_slots)(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                     int64_t count);
  // Copies the embedding of every occurrence that is the worker's in keys[window_begin, window_end)
  // to its position in out, key by key without deduplicating; stops once something is missing.
  // Leaves no plan.
  void (*pull_each)(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                    int64_t count, OutputRows out);
  // Looks up the window; fills slots and missing; stamps rows.
  void (*find)(const CacheView& cache, WorkerBatch* worker);
  // Looks up every occurrence of keys[count] that is the worker's by itself, without deduplicating;
  // fills slots, missing and num_repeats, and marks the rows found as taken. Stops early where a
  // key is missing or repeats. Stamps rows.
  void (*find_each)(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                    int64_t count);
  // Copies the window's embeddings to values.
  void (*collect)(const CacheView& cache, const WorkerBatch& worker);
  // Takes slots for the missing keys, in rounds; false if one cannot be had (the caller undoes).
  bool (*reserve)(const CacheView& cache, WorkerBatch* worker);
  // Makes rows of the missing keys: rows[i] where found[i], else the initial value.
  void (*fill)(const CacheView& cache, WorkerBatch* worker, const uint8_t* rows,
               const uint8_t* found, float lr);
  // The first key of the window whose update would not leave its row finite, or -1; changes none.
  int64_t (*find_overflow)(const CacheView& cache, WorkerBatch* worker, float lr);
  // Applies the optimizer to the window's rows and sets num_dirtied and is_wild; returns how many
  // were fresh.
  int64_t (*apply)(const CacheView& cache, WorkerBatch* worker, float lr);
};

extern const BatchLoops kPlainLoops;
extern const BatchLoops kAvx2Loops;
extern const BatchLoops kAvx512Loops;

}  // namespace hps
