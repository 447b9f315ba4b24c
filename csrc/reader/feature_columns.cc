// Hashes of tuples of keys, and (x - mean) * factor. Above it: csrc/bindings/records.cc. Below it:
// common/hash.h.
#include "reader/feature_columns.h"

#include <bit>

#include "common/hash.h"

namespace hps {
namespace {

static_assert(std::endian::native == std::endian::little, "keys are hashed as they lie in memory");

}  // namespace

void HashTuples(const std::vector<const uint64_t*>& columns, size_t num_rows, uint64_t seed,
                uint64_t* out) {
  if (columns.size() == 2) {  // most crosses; a size that is known takes half the time
    for (size_t row = 0; row < num_rows; ++row) {
      const uint64_t pair[2] = {columns[0][row], columns[1][row]};
      out[row] = Xxh64(pair, sizeof(pair), seed);
    }
    return;
  }
  std::vector<uint64_t> keys(columns.size());
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t i = 0; i < columns.size(); ++i) keys[i] = columns[i][row];
    out[row] = Xxh64(keys.data(), keys.size() * sizeof(uint64_t), seed);
  }
}

void ScaleRows(const float* src, size_t num_rows, size_t num_columns, const float* means,
               const float* factors, float* dst) {
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t i = 0; i < num_columns; ++i) dst[i] = (src[i] - means[i]) * factors[i];
    src += num_columns;
    dst += num_columns;
  }
}

}  // namespace hps
