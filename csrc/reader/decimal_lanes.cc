// Which way numbers' decimal texts are hashed. Above it: text_keys.cc. Below it:
// decimal_lanes_avx512.cc, decimal_hash.h.
#include "reader/decimal_lanes.h"

#include "reader/decimal_hash.h"

namespace hps {
namespace {

template <typename Number>
void Hash(const Number* numbers, size_t count, uint64_t seed, uint64_t* keys) {
  if (HasLanes()) return HashInLanes(numbers, count, seed, keys);
  for (size_t i = 0; i < count; ++i) keys[i] = HashDecimal(numbers[i], seed);
}

}  // namespace

bool HasLanes() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("bmi2");
}

void HashDecimals(const int64_t* numbers, size_t count, uint64_t seed, uint64_t* keys) {
  Hash(numbers, count, seed, keys);
}

void HashDecimals(const uint64_t* numbers, size_t count, uint64_t seed, uint64_t* keys) {
  Hash(numbers, count, seed, keys);
}

}  // namespace hps
