// ShardPlan: a call's keys, deduplicated and grouped by the server that owns them; sums of their
// gradients, and their rows back to every occurrence or bag.
//
// Above it: the bindings, for hps.RemoteParameterServer. Below it: the loops of csrc/batch,
// which the caches run, too, so that a gradient summed here has the bits of one summed in a cache.
// The distinct keys come server after server, of each in order of first occurrence. One thread
// works on a plan at a time: a client overlaps calls, each with a plan of its own. Not thread-safe;
// owns its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batch/key_plan.h"
#include "batch/pooling.h"
#include "common/array.h"
#include "common/status.h"

namespace hps {

class ShardPlan {
 public:
  // owners[v] is the server that owns virtual shard v; their number is a power of two.
  // kConfig: not so, or an instruction set that this processor lacks.
  static Status Open(std::vector<uint32_t> owners, const std::string& instruction_set,
                     std::unique_ptr<ShardPlan>* plan);

  // The virtual shard of a key: XXH64 of its eight little-endian bytes, modulo their number.
  static uint64_t VirtualShard(uint64_t key, uint64_t num_virtual);

  void Build(const uint64_t* keys, int64_t count);
  // True if keys[count] are those of the last Build, byte for byte.
  bool Matches(const uint64_t* keys, int64_t count) const;

  // True unless keys[count] probably repeat: by the last Build and by a sample of them. Leaves the
  // plan as it is.
  bool SeemDistinct(const uint64_t* keys, int64_t count) { return plan_.SeemDistinct(keys, count); }

  int64_t num_occurrences() const { return plan_.num_occurrences(); }
  int64_t num_unique() const { return plan_.num_unique(); }
  int num_shards() const { return static_cast<int>(starts_.size()) - 1; }
  // Of server s: distinct keys [starts()[s], starts()[s + 1]).
  const std::vector<int64_t>& starts() const { return starts_; }
  const uint64_t* unique_keys() const { return unique_keys_; }

  // Sums gradients of each key as a cache does: of occurrences [num_occurrences, dim], or of bags
  // [num_bags, dim] unless `bags` is null. The place of a distinct key with a sum that is not
  // finite, or -1.
  int64_t SumGradients(const float* gradients, int32_t dim, const BagsView* bags = nullptr);
  // What SumGradients left: [num_unique, dim], valid until the next call that is not const.
  const float* sums() const { return sums_; }

  // How often each distinct key occurs, shows[num_unique], and how often with label 1,
  // clicks[num_unique]; labels[num_occurrences] are 0 or 1, null: no clicks.
  void Count(const uint8_t* labels, uint32_t* shows, uint32_t* clicks);

  // Copies gradients [count, dim] to out, which need not be aligned. The first row that is not
  // finite, or -1; with one, out is written in part.
  int64_t CopyGradients(const float* gradients, int64_t count, int32_t dim, uint8_t* out) const;

  // Writes each occurrence's row to out [num_occurrences, dim]: parts[s] holds those of server s.
  void Scatter(const std::vector<const float*>& parts, int32_t dim, float* out);
  // Pools them into out [examples, features * dim].
  void Pool(const std::vector<const float*>& parts, const BagsView& bags, int32_t dim, float* out);

 private:
  ShardPlan(std::vector<uint32_t> owners, const KeyLoops* loops);

  void Group(const KeyShare& share);
  // The share with the rows of the parts as its values.
  KeyShare WithValues(const std::vector<const float*>& parts, int32_t dim);
  // The only server that owns keys of the plan, or -1 if several do.
  int OnlyShard() const;

  const std::vector<uint32_t> owners_;
  const KeyLoops* const loops_;
  KeyPlan plan_;
  Pooling pooling_;
  std::vector<int64_t> starts_;
  bool is_in_order_ = true;  // the groups are in order of first occurrence, as ids do
  Array<uint32_t> ids_;      // of the distinct keys in their groups; unless they are in order
  Array<uint32_t> shards_;   // of each id, while they are grouped
  Array<uint32_t> places_;   // of each id, while occurrences are counted
  Array<uint64_t> keys_;     // grouped
  Array<float> grouped_;     // sums
  const uint64_t* unique_keys_ = nullptr;
  const float* sums_ = nullptr;
};

}  // namespace hps
