// RowOverlay: rows of some keys that are read in place of those that a table has.
//
// Above it: csrc/table_batch, the bindings. Below it: key_hash.h. A change of many rows is read
// from here from one moment on, while it is put into a table piece by piece. Immutable once made,
// so that any number of threads may read. Owns its memory: a row, its key and 16 to 32 bytes of
// index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/key_hash.h"

namespace hps {

class RowOverlay {
 public:
  // Copies rows [count, dim] of keys[count], fewer than 2^32; of equal keys the last one counts.
  RowOverlay(const uint64_t* keys, int64_t count, const float* rows, int32_t dim);
  RowOverlay(const RowOverlay&) = delete;
  RowOverlay& operator=(const RowOverlay&) = delete;

  // The row of a key, or null.
  const float* Find(uint64_t key) const {
    const uint64_t hash = MixKey(key);
    for (uint64_t place = hash & mask_;; place = (place + 1) & mask_) {
      const Entry entry = entries_[place];
      if (entry.number == 0) return nullptr;
      if (entry.tag != TagOf(hash) || keys_[entry.number - 1] != key) continue;
      return rows_.data() + static_cast<size_t>(entry.number - 1) * static_cast<size_t>(dim_);
    }
  }
  // Writes the rows of those of keys[count] that are here over theirs in rows [count, dim]; how
  // many these are.
  int64_t WriteOver(const uint64_t* keys, int64_t count, float* rows) const;

  int32_t dim() const { return dim_; }

 private:
  struct Entry {
    uint32_t tag;
    uint32_t number;  // of the row, from 1; 0: empty
  };

  static uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

  const int32_t dim_;
  std::vector<uint64_t> keys_;
  std::vector<float> rows_;
  std::vector<Entry> entries_;  // a power of two, at least twice as many as keys
  uint64_t mask_ = 0;
};

}  // namespace hps
