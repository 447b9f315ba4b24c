// Hashes of Arrow's columns of text, and runs of bags joined. Above it: csrc/bindings/records.cc.
// Below it: common/hash.h, decimal_hash.h, decimal_lanes.h.
#include "reader/text_keys.h"

#include <cstring>

#include "common/check.h"
#include "common/hash.h"
#include "reader/decimal_hash.h"
#include "reader/decimal_lanes.h"

namespace hps {
namespace {

inline bool IsNull(const HashedColumn& values, size_t row) {
  const size_t bit = values.first_bit + row;
  return values.validity != nullptr && (values.validity[bit / 8] >> (bit % 8) & 1) == 0;
}

template <typename Offset>
inline size_t SizeOf(const TextValues<Offset>& values, size_t row) {
  return static_cast<size_t>(values.offsets[row + 1] - values.offsets[row]);
}

template <typename Offset>
inline bool IsEmpty(const TextValues<Offset>& values, size_t row) {
  return SizeOf(values, row) == 0;
}

template <typename Number>
inline bool IsEmpty(const NumberValues<Number>& /*values*/, size_t /*row*/) {
  return false;
}

template <typename Offset>
inline uint64_t HashValue(const TextValues<Offset>& values, size_t row) {
  return Xxh64(values.data + values.offsets[row], SizeOf(values, row), values.seed);
}

template <typename Number>
inline uint64_t HashValue(const NumberValues<Number>& values, size_t row) {
  return HashDecimal(values.numbers[row], values.seed);
}

// Where each value has a key. What a null is laid out as says nothing.
inline uint64_t HashOfNull(const HashedColumn& values) { return Xxh64(nullptr, 0, values.seed); }

template <typename Values>
inline bool HasKey(const Values& values, size_t row) {
  if (IsNull(values, row)) return false;
  return values.rule == MissingRule::kNull || !IsEmpty(values, row);
}

template <typename Offset>
void HashValues(const TextValues<Offset>& values, uint64_t* keys) {
  for (size_t row = 0; row < values.num_rows; ++row) keys[row] = HashValue(values, row);
}

template <typename Number>
void HashValues(const NumberValues<Number>& values, uint64_t* keys) {
  HashDecimals(values.numbers, values.num_rows, values.seed, keys);
}

}  // namespace

template <typename Offset>
bool AreOffsets(const Offset* offsets, size_t num_rows, size_t data_size) {
  bool are_rising = true;
  for (size_t row = 0; row < num_rows; ++row) are_rising &= offsets[row] <= offsets[row + 1];
  return are_rising && offsets[0] >= 0 && static_cast<uint64_t>(offsets[num_rows]) <= data_size;
}

template <typename Values>
bool AnyWithoutKey(const Values& values) {
  if (values.rule == MissingRule::kNone) return false;
  bool any = false;
  if (values.rule == MissingRule::kNullOrEmpty) {
    for (size_t row = 0; row < values.num_rows; ++row) any |= IsEmpty(values, row);
  }
  for (size_t row = 0; !any && values.validity != nullptr && row < values.num_rows; ++row) {
    any = IsNull(values, row);
  }
  return any;
}

template <typename Values>
void HashEach(const Values& values, uint64_t* keys) {
  HashValues(values, keys);
  if (values.rule != MissingRule::kNone || values.validity == nullptr) return;
  for (size_t row = 0; row < values.num_rows; ++row) {
    if (IsNull(values, row)) keys[row] = HashOfNull(values);
  }
}

template <typename Values>
size_t HashPresent(const Values& values, uint64_t* keys, int64_t* offsets) {
  HPS_CHECK(values.rule != MissingRule::kNone);
  size_t count = 0;
  offsets[0] = 0;
  for (size_t row = 0; row < values.num_rows; ++row) {
    if (HasKey(values, row)) keys[count++] = HashValue(values, row);
    offsets[row + 1] = static_cast<int64_t>(count);
  }
  return count;
}

void JoinBags(const std::vector<BagRun>& runs, uint64_t* keys, int64_t* offsets) {
  int64_t total = 0;
  *offsets++ = 0;
  for (const BagRun& run : runs) {
    const int64_t first = run.offsets[0];
    const int64_t count = run.offsets[run.num_bags] - first;
    if (count > 0) std::memcpy(keys + total, run.keys + first, sizeof(uint64_t) * count);
    const int64_t shift = total - first;
    for (size_t bag = 0; bag < run.num_bags; ++bag) offsets[bag] = run.offsets[bag + 1] + shift;
    offsets += run.num_bags;
    total += count;
  }
}

template bool AreOffsets(const int32_t*, size_t, size_t);
template bool AreOffsets(const int64_t*, size_t, size_t);
template bool AnyWithoutKey(const TextValues<int32_t>&);
template void HashEach(const TextValues<int32_t>&, uint64_t*);
template size_t HashPresent(const TextValues<int32_t>&, uint64_t*, int64_t*);
template bool AnyWithoutKey(const TextValues<int64_t>&);
template void HashEach(const TextValues<int64_t>&, uint64_t*);
template size_t HashPresent(const TextValues<int64_t>&, uint64_t*, int64_t*);
template bool AnyWithoutKey(const NumberValues<int64_t>&);
template void HashEach(const NumberValues<int64_t>&, uint64_t*);
template size_t HashPresent(const NumberValues<int64_t>&, uint64_t*, int64_t*);
template bool AnyWithoutKey(const NumberValues<uint64_t>&);
template void HashEach(const NumberValues<uint64_t>&, uint64_t*);
template size_t HashPresent(const NumberValues<uint64_t>&, uint64_t*, int64_t*);

}  // namespace hps
