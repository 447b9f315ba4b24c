// BagsView, OutputRows, GradientView: how a batch's occurrences make up bags, where what is read
// goes, and how a gradient of bags is read as one of occurrences.
//
// Above it: key_loops.h, pooling.h, the caches, csrc/sharding. Below it: nothing. Plain data, so
// that it may cross the border between instruction sets. A bag is what one feature of one example
// holds; bags are feature-major: bag f * num_examples + b is feature f of example b.
#pragma once

#include "common/bfloat16.h"
#include "common/portable.h"

namespace hps {

// The values of an output: float32s, or Bfloat16s unless those are null.
struct OutputValues {
  float* wide;
  Bfloat16* narrow = nullptr;
};

// What is written for row i goes to values + i * stride, or to narrow + i * stride, as above.
struct OutputRows {
  float* values;
  int64_t stride;
  Bfloat16* narrow = nullptr;
};

// The gradients of an output: float32s, or Bfloat16s unless those are null.
struct GradientValues {
  const float* wide;
  const Bfloat16* narrow = nullptr;
};

struct BagsView {
  const int64_t*
      offsets;           // [num_bags + 1] bag i holds occurrences offsets[i] to offsets[i + 1] - 1
  const float* weights;  // [L] of each occurrence in its bag's sum, or null: 1
  int64_t num_examples;
  int64_t num_features;
  bool is_mean;             // a bag's sum is divided by its number of occurrences
  bool are_single = false;  // known to hold an occurrence each
  // Where the bags have their values, counted in values: feature f of example b at
  // b * stride + columns[f]. Without columns they are side by side: at (b * num_features + f) *
  // dim.
  int64_t stride = 0;
  const int64_t* columns = nullptr;  // [num_features]

  HPS_HD_MEMBER int64_t num_bags() const { return num_examples * num_features; }
  HPS_HD_MEMBER int64_t place(int64_t feature, int64_t example, int64_t dim) const {
    return columns == nullptr ? (example * num_features + feature) * dim
                              : example * stride + columns[feature];
  }
  // Pooling is a copy of row after row.
  HPS_HD_MEMBER bool are_rows() const {
    return are_single && num_features == 1 && weights == nullptr;
  }
  // Where those rows go in an output.
  HPS_HD_MEMBER OutputRows rows_in(OutputValues out, int64_t dim) const {
    const int64_t first = place(0, 0, dim), step = columns == nullptr ? dim : stride;
    if (out.narrow != nullptr) return {nullptr, step, out.narrow + first};
    return {out.wide + first, step};
  }
};

// Feature and example of a bag, and of those after it.
struct BagNumber {
  HPS_HD_MEMBER BagNumber(const BagsView& bags, int64_t bag) : num_examples(bags.num_examples) {
    if (num_examples == 0) return;
    feature = bag / num_examples;
    example = bag % num_examples;
  }
  HPS_HD_MEMBER void Next() {
    if (++example < num_examples) return;
    example = 0;
    ++feature;
  }

  const int64_t num_examples;
  int64_t feature = 0;
  int64_t example = 0;
};

// The gradient of occurrence i is at values + starts[i], or at narrow + starts[i], as above, times
// weights[i], rounded once.
struct GradientView {
  const float* values;
  const uint32_t* starts;  // [L] or null: i * stride
  const float* weights;    // [L] or null: 1
  int64_t stride;
  const Bfloat16* narrow = nullptr;
};

}  // namespace hps
