// The hashes of many numbers' decimal texts.
//
// Above it: text_keys.cc. Below it: decimal_hash.h, decimal_lanes_avx512.cc. Thread-safe: nothing
// here has state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hps {

// True if the processor has what HashInLanes takes.
bool HasLanes();

// Writes HashDecimal of each of numbers[count] to keys[count]. Needs HasLanes.
void HashInLanes(const int64_t* numbers, size_t count, uint64_t seed, uint64_t* keys);
void HashInLanes(const uint64_t* numbers, size_t count, uint64_t seed, uint64_t* keys);

// The same on any processor.
void HashDecimals(const int64_t* numbers, size_t count, uint64_t seed, uint64_t* keys);
void HashDecimals(const uint64_t* numbers, size_t count, uint64_t seed, uint64_t* keys);

}  // namespace hps
