// BagsView, GradientView: how a batch's occurrences make up bags, and how a gradient of bags is
// read as one of occurrences.
//
// Above it: key_loops.h, pooling.h, the caches, csrc/sharding. Below it: nothing. Plain data, so
// that it may cross the border between instruction sets. A bag is what one feature of one example
// holds; bags are feature-major: bag f * num_examples + b is feature f of example b.
#pragma once

#include "common/portable.h"

namespace hps {

struct BagsView {
  const int64_t*
      offsets;           // [num_bags + 1] bag i holds occurrences offsets[i] to offsets[i + 1] - 1
  const float* weights;  // [L] of each occurrence in its bag's sum, or null: 1
  int64_t num_examples;
  int64_t num_features;
  bool is_mean;  // a bag's sum is divided by its number of occurrences

  int64_t num_bags() const { return num_examples * num_features; }
};

// The gradient of occurrence i is values[rows[i]] * weights[i], rounded once.
struct GradientView {
  const float* values;   // [rows, dim]
  const uint32_t* rows;  // [L] or null: row i is occurrence i's
  const float* weights;  // [L] or null: 1
};

}  // namespace hps
