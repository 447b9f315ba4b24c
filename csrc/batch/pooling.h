// Pooling: a batch's values a key to sums or means of its bags, and gradients of bags to gradients
// of occurrences, over the threads of the host.
//
// Above it: dram_cache, the host build of gpu_cache, csrc/sharding. Below it: bags.h, key_loops.h.
// Memory is kept for the next batch: eight bytes an occurrence to pool, four for its gradient, and
// of means a gradient a bag. Not thread-safe.
#pragma once

#include "batch/bags.h"
#include "batch/key_loops.h"
#include "common/array.h"
#include "common/thread_pool.h"

namespace hps {

class Pooling {
 public:
  Pooling() = default;
  Pooling(const Pooling&) = delete;
  Pooling& operator=(const Pooling&) = delete;

  // Makes room to note where the value of each of `count` occurrences is.
  const float** PrepareRows(int64_t count);
  // Pools the rows that were noted to the bags' places in out; `pool` may be null.
  void Pool(const KeyLoops& loops, const BagsView& bags, int32_t dim, ThreadPool* pool,
            OutputValues out);

  // Gradients of bags, at their places, as those of occurrences; good until the next call. `pool`
  // may be null.
  GradientView Spread(const BagsView& bags, GradientValues gradients, int32_t dim,
                      ThreadPool* pool);

 private:
  Array<const float*> rows_;
  Array<uint32_t> starts_;  // of each occurrence: where its bag's gradient is
  Array<float> divided_;    // gradients of means
};

// Labels of examples [num_examples] as those of the bags' occurrences, out [L].
void SpreadLabels(const BagsView& bags, const uint8_t* labels, uint8_t* out);

// Copies gradients of pooled rows [num_examples, num_features * dim] to those of the bags
// [num_features * num_examples, dim].
void CopyByBag(const float* gradients, int64_t num_examples, int64_t num_features, int64_t dim,
               ThreadPool* pool, float* out);

}  // namespace hps
