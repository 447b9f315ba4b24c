// The hot loops of dram_cache, one function table an instruction set, chosen at run time.
//
// Above it: dram_cache.cc, which calls each loop once a worker. Below it: batch_loops_body.h, the
// one text that batch_loops_{plain,avx2,avx512}.cc compile. Only plain data crosses this border, so
// that no inline function compiled for AVX-512 can be linked into code that must run anywhere.
#pragma once

#include "optimizer/binary_counter.h"
#include "optimizer/initializer.h"
#include "optimizer/optimizer.h"
#include "table/reserve.h"

namespace hps {

// What one worker owns of a batch: the keys of its parts, deduplicated. Memory is BatchPlan's.
//
// Unique keys stand in order of first occurrence and are named by their index here ("id").
struct WorkerBatch {
  uint64_t owned_parts;  // bit p: sub-part p of 64 (the hash's top six bits) is this worker's
  uint32_t* id_table;    // [id_mask + 1] open addressing: id + 1, 0 = empty
  uint64_t id_mask;
  int64_t most_unique;        // keys that the id table has room for
  uint64_t* keys;             // [num_unique]
  uint32_t* ids;              // [num_occurrences] of each own occurrence's key, in order; with
                              // kFirstOfKey on a key's first
  uint32_t* scan_positions;   // [num_occurrences] where it stands in the batch
  int64_t* slots;             // [num_unique] slot of each key, or kNoSlot
  uint32_t* starts;           // [num_unique + 1] into positions; see SortPositions
  uint32_t* positions;        // [num_occurrences] grouped by id, in order
  uint32_t* missing;          // [num_missing] ids of the window without a slot
  uint8_t* second_round;      // [num_missing] scratch of reserve
  Reservation* reservations;  // [num_missing]; entry i belongs to missing[i]
  uint32_t* order;            // [num_missing] entry order[k] was the k-th reservation made
  float* values;              // [num_unique * dim] embeddings, then gradient sums; room for more
  uint32_t* counts;           // [num_unique] occurrences of a key, while and after they are summed
  uint32_t* hot_ids;          // [num_hot] ids with a full run
  uint32_t* youngest;         // [num_unique] a hot key's youngest run set aside, or kNoRun
  uint32_t* older;            // of a run set aside: the key's next older one
  int64_t num_unique;
  int64_t num_occurrences;
  int64_t num_hot;
  int64_t num_missing;
  int64_t num_reserved;
  int64_t window_begin;  // ids of the current window; positions for pull_each
  int64_t window_end;
  int64_t result;       // what the worker's last loop returned
  int64_t num_dirtied;  // rows that its last Apply made dirty
  int64_t num_spared;   // wanted rows in whose place others gave way in its last reserve
};

inline constexpr uint32_t kFirstOfKey = uint32_t{1} << 31;
inline constexpr int64_t kOccurrencePadding = 48;  // zeros, so that looking ahead needs no check
inline constexpr uint32_t kNoRun = ~uint32_t{0};

// What every loop of a cache shares.
struct CacheView {
  TableView table;
  OptimizerKind kind;
  int32_t dim;
  uint8_t now;
  bool keeps_stamps;  // false while the table has room: nothing ages that need not give way
  bool has_wants;     // rows have been marked as wanted
  OptimizerNumbers numbers;
  InitializerSpec initializer;
};

struct BatchLoops {
  const char* name;
  // Deduplicates the worker's share of keys[count]; false if its id table is too small.
  bool (*deduplicate)(WorkerBatch* worker, const uint64_t* keys, int64_t count);
  // Groups the occurrences by key (starts, positions): what single keys need.
  void (*sort_positions)(WorkerBatch* worker);
  // Deduplicates, looks up the whole batch, and copies every embedding to all its positions in out
  // [count, dim] if nothing is missing; false as above. Needs room for most_unique values.
  bool (*pull)(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys, int64_t count,
               float* out);
  // Copies the embedding of every occurrence that is the worker's in keys[window_begin, window_end)
  // to its position in out, key by key without deduplicating; stops once something is missing.
  // Leaves no plan.
  void (*pull_each)(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                    int64_t count, float* out);
  // Looks up the window; fills slots and missing; stamps rows.
  void (*find)(const CacheView& cache, WorkerBatch* worker);
  // Copies the window's embeddings to values.
  void (*collect)(const CacheView& cache, const WorkerBatch& worker);
  // Copies every key's embedding from values to all its positions in out [count, dim].
  void (*expand)(const WorkerBatch& worker, int32_t dim, int64_t count, float* out);
  // Takes slots for the missing keys, in rounds; false if one cannot be had (the caller undoes).
  bool (*reserve)(const CacheView& cache, WorkerBatch* worker);
  // Makes rows of the missing keys: rows[i] where found[i], else the initial value.
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
