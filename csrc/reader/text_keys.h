// Keys of a column of text as Arrow lays it out: bytes one after the other, where each value ends,
// and a bit for each that says whether it is there; of a column of whole numbers, as if each were
// its decimal text. And bags of keys put one after the other.
//
// Above it: csrc/bindings/records.cc (hps/reader/columns.py). Below it: decimal_lanes.h,
// common/hash.h. Thread-safe: nothing here has state. Nothing is read outside of what a view says
// it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hps {

// Which values have no key.
enum class MissingRule {
  kNull,         // those that are null
  kNullOrEmpty,  // and those that are empty
  kNone,         // none: null is the empty text
};

// What is asked of a column of any kind.
struct HashedColumn {
  size_t num_rows = 0;
  const uint8_t* validity = nullptr;  // bit first_bit + r is that of value r; null: all are there
  size_t first_bit = 0;
  uint64_t seed = 0;  // of the hash
  MissingRule rule = MissingRule::kNull;
};

// Value r is data[offsets[r], offsets[r + 1]). Offset is int32_t or int64_t.
template <typename Offset>
struct TextValues : HashedColumn {
  const char* data = nullptr;
  const Offset* offsets = nullptr;  // [num_rows + 1]
};

// Value r is the decimal text of numbers[r]. Number is int64_t or uint64_t.
template <typename Number>
struct NumberValues : HashedColumn {
  const Number* numbers = nullptr;  // [num_rows]
};

// True if the offsets rise, from 0 on, and not beyond `data_size`.
template <typename Offset>
bool AreOffsets(const Offset* offsets, size_t num_rows, size_t data_size);

// True if some value has no key. Values, here and below, is TextValues or NumberValues.
template <typename Values>
bool AnyWithoutKey(const Values& values);

// Writes the key of each value to `keys` [num_rows]; every value has one.
template <typename Values>
void HashEach(const Values& values, uint64_t* keys);

// Writes the keys of those that have one to `keys` [at most num_rows], and to `offsets`
// [num_rows + 1] how many there are before each value. Returns how many there are. Not by
// MissingRule::kNone, by which each value has a key.
template <typename Values>
size_t HashPresent(const Values& values, uint64_t* keys, int64_t* offsets);

// Bags of keys: bag b is keys[offsets[b], offsets[b + 1]); offsets[0] may be anything.
struct BagRun {
  const uint64_t* keys = nullptr;
  const int64_t* offsets = nullptr;  // [num_bags + 1]
  size_t num_bags = 0;
};

// Copies the bags of all runs one after the other; `offsets` [all bags + 1] begins at 0.
void JoinBags(const std::vector<BagRun>& runs, uint64_t* keys, int64_t* offsets);

}  // namespace hps
