// What a features file makes of whole columns of a batch: crosses of keys, dense values to scale.
//
// Above it: csrc/bindings/records.cc (hps/features/keys.py, dense.py). Below it: common/hash.h.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hps {

// Writes to `out` [num_rows] XXH64, with the seed, of the keys of each row as little-endian bytes,
// one column's after the other's. Each column is [num_rows]; there is one at least.
void HashTuples(const std::vector<const uint64_t*>& columns, size_t num_rows, uint64_t seed,
                uint64_t* out);

// dst = (src - means) * factors, in float32; src and dst are [num_rows, num_columns], row after
// row, and may be the same; means and factors are [num_columns].
void ScaleRows(const float* src, size_t num_rows, size_t num_columns, const float* means,
               const float* factors, float* dst);

}  // namespace hps
