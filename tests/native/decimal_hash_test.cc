// The hash of a number's decimal text, one number after the other and many in lanes, is XXH64 of
// the text that the standard library writes.
//
// Above it: CTest. Below it: csrc/reader.
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/hash.h"
#include "reader/decimal_hash.h"
#include "reader/decimal_lanes.h"

namespace hps {
namespace {

constexpr uint32_t kRandomSeed = 20240817;

// Each length as often as another, all powers of ten with their neighbours, and the ends.
template <typename Number>
std::vector<Number> SomeNumbers(std::mt19937_64* random) {
  std::vector<Number> numbers = {0, std::numeric_limits<Number>::min(),
                                 std::numeric_limits<Number>::max()};
  for (uint64_t power = 1; power < 10'000'000'000'000'000'000ULL; power *= 10) {
    for (const uint64_t number : {power - 1, power, power + 1, 10 * power - 1}) {
      numbers.push_back(static_cast<Number>(number));
      numbers.push_back(static_cast<Number>(0 - number));
    }
    for (int i = 0; i < 200; ++i) {
      const uint64_t number = (*random)() % (10 * power);
      numbers.push_back(static_cast<Number>((*random)() % 2 == 0 ? number : 0 - number));
    }
  }
  return numbers;
}

template <typename Number>
void TestHashesAreThoseOfTheText() {
  std::mt19937_64 random(kRandomSeed);
  const std::vector<Number> numbers = SomeNumbers<Number>(&random);
  for (const uint64_t seed : {uint64_t{0}, ~uint64_t{0}, uint64_t{12345}}) {
    // Counts that fill no whole registers, too.
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{13}, numbers.size()}) {
      std::vector<uint64_t> keys(count + 1, 42), lanes(count + 1, 42);
      HashDecimals(numbers.data(), count, seed, keys.data());
      if (HasLanes()) HashInLanes(numbers.data(), count, seed, lanes.data());
      for (size_t i = 0; i < count; ++i) {
        const std::string text = std::to_string(numbers[i]);
        const uint64_t expected = Xxh64(text.data(), text.size(), seed);
        HPS_CHECK(HashDecimal(numbers[i], seed) == expected);
        HPS_CHECK(keys[i] == expected);
        HPS_CHECK(!HasLanes() || lanes[i] == expected);
      }
      HPS_CHECK(keys[count] == 42 && lanes[count] == 42);
    }
  }
}

}  // namespace
}  // namespace hps

int main() {
  hps::TestHashesAreThoseOfTheText<int64_t>();
  hps::TestHashesAreThoseOfTheText<uint64_t>();
  std::puts("ok");
}
