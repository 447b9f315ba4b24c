// A table of open addressing over rows in the order in which they were given.
#include "batch/row_overlay.h"

#include <cstring>

#include "common/check.h"

namespace hps {

RowOverlay::RowOverlay(const uint64_t* keys, int64_t count, const float* rows, int32_t dim)
    : dim_(dim), keys_(keys, keys + count), rows_(rows, rows + count * dim) {
  HPS_CHECK(count >= 0 && count < int64_t{1} << 32);
  uint64_t size = 16;
  while (size < 2 * static_cast<uint64_t>(count)) size *= 2;
  entries_.resize(size);
  mask_ = size - 1;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t hash = MixKey(keys[i]);
    uint64_t place = hash & mask_;
    while (entries_[place].number != 0 && keys_[entries_[place].number - 1] != keys[i]) {
      place = (place + 1) & mask_;
    }
    entries_[place] = {TagOf(hash), static_cast<uint32_t>(i + 1)};
  }
}

int64_t RowOverlay::WriteOver(const uint64_t* keys, int64_t count, float* rows) const {
  int64_t num_found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float* const row = Find(keys[i]);
    if (row == nullptr) continue;
    std::memcpy(rows + i * dim_, row, static_cast<size_t>(dim_) * sizeof(float));
    ++num_found;
  }
  return num_found;
}

}  // namespace hps
