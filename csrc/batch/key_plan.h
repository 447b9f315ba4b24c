// KeyPlan: a batch's keys, deduplicated by one thread and named in order of first occurrence, with
// room for a value a key.
//
// Above it: csrc/sharding. Below it: key_shares.h. The caches' plans (dram_cache/batch_plan.h,
// gpu_cache/gpu_plan.h) do the same over several threads and keep slots besides. Memory is kept for
// the next batch. Not thread-safe.
#pragma once

#include "batch/key_loops.h"
#include "batch/key_shares.h"
#include "common/array.h"

namespace hps {

class KeyPlan {
 public:
  explicit KeyPlan(const KeyLoops* loops) : loops_(loops) {}
  KeyPlan(const KeyPlan&) = delete;
  KeyPlan& operator=(const KeyPlan&) = delete;

  // Copies keys[count] and deduplicates them.
  void Build(const uint64_t* keys, int64_t count);
  // True if keys[count] are this plan's, byte for byte.
  bool Matches(const uint64_t* keys, int64_t count) const { return shares_.Matches(keys, count); }
  // True unless keys[count] probably repeat: by the last batch and by a sample of this one.
  bool SeemDistinct(const uint64_t* keys, int64_t count) {
    return shares_.SeemDistinct(keys, count);
  }

  int64_t num_occurrences() const { return shares_.num_occurrences(); }
  int64_t num_unique() const { return share_.num_unique; }

  // Makes room for a value of `dim` floats a key.
  void PrepareValues(int32_t dim);
  // The same for a sum a key, and for what summing needs besides.
  void PrepareSums(int32_t dim);
  KeyShare* share() { return &share_; }

 private:
  const KeyLoops* const loops_;
  KeyShares shares_;
  KeyShare share_ = {};
  Array<float> values_;
};

}  // namespace hps
