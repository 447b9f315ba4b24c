// Bags as the bindings take them: arrays that Python has checked, checked again where memory
// depends on them.
//
// Above it: row_cache.h, shard_plan.cc beside it. Below it: cache_options.h, csrc/batch.
#pragma once

#include <optional>

#include "batch/bags.h"
#include "bindings/cache_options.h"

namespace hps {

using Offsets = Vector<const int64_t>;
using Weights = std::optional<Vector<const float>>;

// Bags of num_examples * num_features over so many occurrences.
inline BagsView ViewBags(const Offsets& offsets, const Weights& weights, bool is_mean,
                         size_t num_examples, size_t num_features, int64_t num_occurrences) {
  const size_t num_bags = num_examples * num_features;
  CheckShape(offsets.size() == num_bags + 1, "offsets [F * B + 1] are needed");
  CheckShape(!weights || weights->size() == static_cast<size_t>(num_occurrences),
             "weights [L] are needed");
  const int64_t* starts = offsets.data();
  bool is_rising = starts[0] == 0 && starts[num_bags] == num_occurrences;
  for (size_t bag = 0; bag < num_bags; ++bag) is_rising &= starts[bag] <= starts[bag + 1];
  CheckShape(is_rising, "offsets must rise from 0 to L");
  return {starts, weights ? weights->data() : nullptr, static_cast<int64_t>(num_examples),
          static_cast<int64_t>(num_features), is_mean};
}

// Bags of an output [examples, features * dim].
inline BagsView BagsOf(const Offsets& offsets, const Weights& weights, bool is_mean,
                       const Matrix<float>& out, size_t dim, int64_t num_occurrences) {
  CheckShape(out.shape(1) % dim == 0, "out [B, F * dim] is needed");
  return ViewBags(offsets, weights, is_mean, out.shape(0), out.shape(1) / dim, num_occurrences);
}

// Bags of gradients [bags, dim].
inline BagsView BagsOfGradients(const Offsets& offsets, const Weights& weights, bool is_mean,
                                const Matrix<const float>& gradients, size_t dim,
                                int64_t num_occurrences) {
  CheckShape(gradients.shape(1) == dim, "gradients [F * B, dim] are needed");
  CheckShape(gradients.size() >> 32 == 0, "fewer than 2^32 gradients are needed");
  return ViewBags(offsets, weights, is_mean, gradients.shape(0), 1, num_occurrences);
}

}  // namespace hps
