// The loops over a batch's keys and gradients, one function table an instruction set, chosen at run
// time.
//
// Above it: dram_cache, the host build of gpu_cache, csrc/sharding, which call each loop once a
// thread. Below it: the texts that key_loops_{plain,avx2,avx512}.cc compile: numbering_body.h,
// joint_ids_body.h, gradient_sums_body.h, expand_body.h, pooling_body.h. Only plain data crosses
// this border, so that no inline function compiled for AVX-512 can be linked into code that must
// run anywhere.
#pragma once

#include <string>

#include "batch/bags.h"
#include "batch/key_share.h"

namespace hps {

// How the keys of several shares come to be numbered together, in order of first occurrence.
struct JointIds {
  uint64_t* firsts;      // [num_shares][num_words] bit i: a key of the share occurs first at i
  uint64_t* all_firsts;  // [num_words] of all shares
  uint32_t* ranks;       // [num_words] distinct keys before each word
  int64_t num_words;     // of 64 positions
  int num_shares;
  uint32_t* inverse;      // [occurrences of the batch] id of each
  uint64_t* unique_keys;  // [distinct keys of the batch]
};

// Rows to be pooled.
struct RowsToPool {
  const float* const*
      rows;  // [L] where each occurrence's value is; kOccurrencePadding more of them
  BagsView bags;
  int32_t dim;
  OutputValues out;  // where the bags have their places
};

// Where the values of a share's keys lie.
struct ValuePlaces {
  const float* first;
  int64_t stride;        // in floats
  const int64_t* slots;  // [num_ids] the number of a key's value; null: its id
};

struct KeyLoops {
  const char* name;
  // Deduplicates the thread's share of keys[count]; false if its id table is too small.
  bool (*deduplicate)(KeyShare* share, const uint64_t* keys, int64_t count);
  // Marks the first occurrences of the share's keys, the joint.firsts of its number.
  void (*mark_firsts)(KeyShare* share, const JointIds& joint, int number);
  // Ranks what all shares have marked; returns how many distinct keys there are.
  int64_t (*rank_firsts)(const JointIds& joint);
  // Gives the share's keys their ids in the whole batch: in ids, inverse and unique_keys.
  void (*join)(KeyShare* share, const JointIds& joint);
  // Sums the gradients of each key into values.
  void (*sum_gradients)(KeyShare* share, int32_t dim, const GradientView& gradients);
  // The largest magnitude of values[count], as bits without the sign: above those of infinity if
  // one is NaN. 0 of none.
  uint32_t (*find_largest)(const float* values, int64_t count);
  // The first of values[count][dim] that is not finite, or -1.
  int64_t (*find_not_finite)(const float* values, int64_t count, int32_t dim);
  // Copies every key's `dim` values to all its positions in out, of `count` rows.
  void (*expand)(const KeyShare& share, int32_t dim, int64_t count, OutputRows out);
  // Notes in rows [L] where the value of each occurrence of the share is, which is the one with
  // that number of all that do so together.
  void (*point)(const KeyShare& share, const ValuePlaces& places, int number, int num_shares,
                const float** rows);
  // Sums or means of bags [first, end), in the order of their occurrences.
  void (*pool)(const RowsToPool& args, int64_t first_bag, int64_t end_bag);
};

// The loops for 'plain', 'avx2' or 'avx512', or 'auto' for the best that the processor has; null if
// it lacks that instruction set or there is none of that name.
const KeyLoops* ChooseKeyLoops(const std::string& name);

extern const KeyLoops kPlainKeyLoops;
extern const KeyLoops kAvx2KeyLoops;
extern const KeyLoops kAvx512KeyLoops;

}  // namespace hps
