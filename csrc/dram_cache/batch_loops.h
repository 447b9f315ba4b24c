// The hot loops of dram_cache, one function table an instruction set, chosen at run time.
//
// Above it: dram_cache.cc, which calls each loop once a worker. Below it: batch_loops_body.h, the
// one text that batch_loops_{plain,avx2,avx512}.cc compile. Only plain data crosses this border, so
// that no inline function compiled for AVX-512 can be linked into code that must run anywhere.
#pragma once

#include "optimizer/initializer.h"
#include "optimizer/optimizer.h"
#include "table/reserve.h"

namespace hps {

// Occurrences of a key, and while they are counted the accumulator of its current run of 32; once
// all are, the index of its second run among the extra ones (valid from 32 occurrences on).
struct KeyRuns {
  uint64_t key;
  uint32_t count;
  uint32_t accumulator;
};

// What one worker owns of a batch: the keys of its parts, deduplicated. Memory is BatchPlan's.
//
// Unique keys stand in order of first occurrence and are named by their index here ("id"). A key's
// gradients are summed in runs of 32 occurrences; each run has an accumulator: the first run of a
// key has its id, later runs of hot keys have numbers from num_unique on, with an owner each.
struct WorkerBatch {
  uint64_t owned_parts;  // bit p: sub-part p of 64 (the hash's top six bits) is this worker's
  uint32_t* id_table;    // [id_mask + 1] open addressing: id + 1, 0 = empty
  uint64_t id_mask;
  uint64_t* keys;             // [num_unique]
  KeyRuns* runs;              // [num_unique]; has the key once more, beside what is counted
  uint32_t* extra_owners;     // [num_extra] id whose run accumulator num_unique + i is
  uint32_t* next_runs;        // [num_extra] the owner's following extra run, or kNoRun
  uint32_t* accumulators;     // [num_occurrences] of each own occurrence, in order
  uint32_t* scan_positions;   // [num_occurrences] where it stands in the batch
  int64_t* slots;             // [num_unique] slot of each key, or kNoSlot
  uint32_t* starts;           // [num_unique + 1] into positions; see SortPositions
  uint32_t* positions;        // [num_occurrences] grouped by id, in order
  uint32_t* missing;          // [num_missing] ids of the window without a slot
  uint8_t* second_round;      // [num_missing] scratch of reserve
  Reservation* reservations;  // [num_missing]; entry i belongs to missing[i]
  uint32_t* order;            // [num_missing] entry order[k] was the k-th reservation made
  float* values;              // [(num_unique + num_extra) * dim] embeddings, then gradient sums
  int64_t num_unique;
  int64_t num_extra;
  int64_t num_occurrences;
  int64_t num_missing;
  int64_t num_reserved;
  int64_t window_begin;  // ids of the current window
  int64_t window_end;
  int64_t result;       // what the worker's last loop returned
  int64_t num_dirtied;  // rows that its last Apply made dirty
};

inline constexpr int kRunLength = 32;  // occurrences of a key summed one after the other
inline constexpr int64_t kOccurrencePadding = 16;  // zeros, so that looking ahead needs no check
inline constexpr int kSumLevels = 34;              // of the binary counter that combines runs
inline constexpr uint32_t kNoRun = ~uint32_t{0};

// What every loop of a cache shares.
struct CacheView {
  TableView table;
  OptimizerKind kind;
  int32_t dim;
  uint8_t now;
  bool keeps_stamps;  // false while the table has room: nothing ages that need not give way
  OptimizerNumbers numbers;
  InitializerSpec initializer;
};

struct BatchLoops {
  const char* name;
  // Deduplicates the worker's share of keys[count]; false if its id table is too small.
  bool (*deduplicate)(WorkerBatch* worker, const uint64_t* keys, int64_t count);
  // Groups the occurrences by key (starts, positions): what single keys need.
  void (*sort_positions)(WorkerBatch* worker);
  // Looks up the window; fills slots and missing; stamps rows.
  void (*find)(const CacheView& cache, WorkerBatch* worker);
  // Looks up the whole batch, and copies every embedding to all its positions in out [L, dim] if
  // nothing is missing.
  void (*find_and_expand)(const CacheView& cache, WorkerBatch* worker, float* out);
  // Copies the window's embeddings to values.
  void (*collect)(const CacheView& cache, const WorkerBatch& worker);
  // Copies every key's embedding from values to all its positions in out [L, dim].
  void (*expand)(const WorkerBatch& worker, int32_t dim, float* out);
  // Takes slots for the missing keys, in rounds; false if one cannot be had (the caller undoes).
  bool (*reserve)(const CacheView& cache, WorkerBatch* worker);
  // Makes rows of missing keys [first, last): rows[i] where found[i], else the initial value.
  void (*fill)(const CacheView& cache, WorkerBatch* worker, const uint8_t* rows,
               const uint8_t* found, float lr);
  // Sums the gradients of each key; the smallest id with a non-finite sum, or -1.
  int64_t (*sum_gradients)(const CacheView& cache, WorkerBatch* worker, const float* gradients);
  // Applies the optimizer to the window's rows and sets num_dirtied; returns how many were fresh.
  int64_t (*apply)(const CacheView& cache, WorkerBatch* worker, float lr);
};

extern const BatchLoops kPlainLoops;
extern const BatchLoops kAvx2Loops;
extern const BatchLoops kAvx512Loops;

}  // namespace hps
