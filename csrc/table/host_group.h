// HostGroup: the lane group of size one, with the instruction set its translation unit is compiled
// for.
//
// Above it: the batch loops of dram_cache, the host build of gpu_cache. Below it: probe.h. All
// forms give the same masks. Its counterpart on a device, with the same verbs: device_group.h.
#pragma once

#include "table/probe.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace hps {
inline namespace HPS_BUILD {

// Asks for the line at `ptr`. The empty assembly is an effect: GCC drops calls of functions that
// only prefetch, which to it do nothing.
template <bool kWrites = false>
inline void AskForLine(const void* ptr) {
  __builtin_prefetch(ptr, kWrites);
  asm volatile("");
}

struct HostGroup {
  uint64_t match(const uint8_t* bytes, uint8_t value) const {
#if defined(__AVX512BW__)
    const __m512i line = _mm512_loadu_si512(bytes);
    return _mm512_cmpeq_epi8_mask(line, _mm512_set1_epi8(static_cast<char>(value)));
#elif defined(__AVX2__)
    const __m256i wanted = _mm256_set1_epi8(static_cast<char>(value));
    const auto* halves = reinterpret_cast<const __m256i*>(bytes);
    const auto low = static_cast<uint32_t>(
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256(halves), wanted)));
    const auto high = static_cast<uint32_t>(
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256(halves + 1), wanted)));
    return static_cast<uint64_t>(high) << 32 | low;
#elif defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi8(static_cast<char>(value));
    const auto* quarters = reinterpret_cast<const __m128i*>(bytes);
    uint64_t mask = 0;
    for (int i = 0; i < 4; ++i) {
      const __m128i equal = _mm_cmpeq_epi8(_mm_loadu_si128(quarters + i), wanted);
      mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(equal))) << (16 * i);
    }
    return mask;
#else
    uint64_t mask = 0;
    for (int word = 0; word < 8; ++word) {
      uint64_t eight;
      __builtin_memcpy(&eight, bytes + 8 * word, 8);
      mask |= ZeroBytes(eight ^ (0x0101010101010101ULL * value)) << (8 * word);
    }
    return mask;
#endif
  }

  template <class Score>
  int largest(uint64_t candidates, Score score) const {
    int best = LowestBit(candidates);
    uint32_t best_score = score(best);
    for (candidates &= candidates - 1; candidates != 0; candidates &= candidates - 1) {
      const int i = LowestBit(candidates);
      const uint32_t other = score(i);
      if (other > best_score) {
        best = i;
        best_score = other;
      }
    }
    return best;
  }

  // The smallest of value(0) to value(count - 1); all ones if count is 0.
  template <class Value>
  uint32_t smallest(uint32_t count, Value value) const {
    uint32_t least = ~uint32_t{0};
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t other = value(i);
      least = other < least ? other : least;
    }
    return least;
  }

  // The sum of value(0) to value(count - 1).
  template <class Value>
  auto total(int64_t count, Value value) const {
    decltype(value(0)) sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += value(i);
    return sum;
  }

  // store(i, value(i), the sum of value(0) to value(i - 1)) for every i below count, each by one
  // lane; no store changes the values of others.
  template <class Value, class Store>
  void prefix(int64_t count, Value value, Store store) const {
    decltype(value(0)) before = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto own = value(i);
      store(i, own, before);
      before += own;
    }
  }

  // body(i) for every i below count, each by one lane.
  template <class Body>
  void for_each(int64_t count, Body body) const {
    for (int64_t i = 0; i < count; ++i) body(i);
  }

  // store(i, load(i)) for every i below count, each by one lane; no store changes what is loaded.
  template <class Load, class Store>
  void copy(int64_t count, Load load, Store store) const {
    for (int64_t i = 0; i < count; ++i) store(i, load(i));
  }

  // body() by one lane.
  template <class Body>
  void elect(Body body) const {
    body();
  }

  // Every lane sees what the others wrote.
  void sync() const {}

 private:
  // Bit i set where byte i of `eight` is zero; exact, no borrow runs from byte to byte.
  static uint64_t ZeroBytes(uint64_t eight) {
    constexpr uint64_t kLow = 0x7f7f7f7f7f7f7f7fULL;
    const uint64_t high_bits = ~(((eight & kLow) + kLow) | eight | kLow);
    return ((high_bits >> 7) * 0x0102040810204080ULL) >> 56;
  }
};

}  // namespace HPS_BUILD
}  // namespace hps
