// DeviceGroup: the lane group of a device, kSize neighbouring lanes of a warp; the verbs of
// HostGroup.
//
// Above it: the kernels of gpu_cache. Below it: __ballot_sync, __shfl_sync, __syncwarp, threadIdx,
// as nvcc and NVRTC know them, or as tests/native/simt_emulator.h makes them on the host. Every
// lane of a group has to come to every verb but for_each, copy and elect; what it does in between
// is its own. Blocks have one dimension.
#pragma once

#include "table/probe.h"

namespace hps {
inline namespace HPS_BUILD {

template <int kSize>
struct DeviceGroup {
  static_assert(kSize == 1 || kSize == 4 || kSize == 8 || kSize == 16 || kSize == 32);
  static constexpr int kLanes = kSize;

  HPS_HD_MEMBER int lane() const { return static_cast<int>(threadIdx.x % kSize); }

  // The value of another lane of the group.
  template <class T>
  HPS_HD_MEMBER T shuffle(T value, int lane_of_value) const {
    return __shfl_sync(members(), value, lane_of_value, kSize);
  }

  HPS_HD_MEMBER uint64_t match(const uint8_t* bytes, uint8_t value) const {
    uint64_t mask = 0;
    if constexpr (kSize >= 16) {
      for (int first = 0; first < kBucketSlots; first += kSize) {
        mask |= static_cast<uint64_t>(ballot(bytes[first + lane()] == value)) << first;
      }
    } else {
      constexpr int kWords = kBucketSlots / 4 / kSize;  // a lane's
      constexpr int kWordsAtOnce = kWords < 4 ? kWords : 4;
      using Words = WordsOf<kWordsAtOnce>;
      const auto* own = reinterpret_cast<const Words*>(bytes) + lane() * (kWords / kWordsAtOnce);
      for (int i = 0; i < kWords / kWordsAtOnce; ++i) {
        const Words words = own[i];
        for (int j = 0; j < kWordsAtOnce; ++j) {
          const uint64_t four = EqualBytes(words.at[j], value);
          mask |= four << (4 * (lane() * kWords + i * kWordsAtOnce + j));
        }
      }
      for (int step = 1; step < kSize; step *= 2) mask |= shuffle(mask, lane() ^ step);
    }
    return mask;
  }

  template <class Score>
  HPS_HD_MEMBER int largest(uint64_t candidates, Score score) const {
    uint32_t best = 0;  // the score above the place, counted from the end, so that ties go low
    for (int i = lane(); i < kBucketSlots; i += kSize) {
      if (!(candidates >> i & 1)) continue;
      const uint32_t other = score(i) << 6 | static_cast<uint32_t>(kBucketSlots - 1 - i);
      best = other > best ? other : best;
    }
    for (int step = 1; step < kSize; step *= 2) {
      const uint32_t other = shuffle(best, lane() ^ step);
      best = other > best ? other : best;
    }
    return kBucketSlots - 1 - static_cast<int>(best & (kBucketSlots - 1));
  }

  template <class Value>
  HPS_HD_MEMBER uint32_t smallest(uint32_t count, Value value) const {
    uint32_t least = ~uint32_t{0};
    for (uint32_t i = static_cast<uint32_t>(lane()); i < count; i += kSize) {
      const uint32_t other = value(i);
      least = other < least ? other : least;
    }
    for (int step = 1; step < kSize; step *= 2) {
      const uint32_t other = shuffle(least, lane() ^ step);
      least = other < least ? other : least;
    }
    return least;
  }

  template <class Value>
  HPS_HD_MEMBER auto total(int64_t count, Value value) const {
    decltype(value(0)) sum = 0;
    for (int64_t i = lane(); i < count; i += kSize) sum += value(i);
    for (int step = 1; step < kSize; step *= 2) sum += shuffle(sum, lane() ^ step);
    return sum;
  }

  template <class Value, class Store>
  HPS_HD_MEMBER void prefix(int64_t count, Value value, Store store) const {
    using Sum = decltype(value(0));
    Sum before = 0;
    for (int64_t first = 0; first < count; first += kSize) {
      const int64_t i = first + lane();
      const Sum own = i < count ? value(i) : Sum{0};
      Sum sum = own;
      for (int step = 1; step < kSize; step *= 2) {
        const Sum lower = shuffle(sum, (lane() - step) & (kSize - 1));
        if (lane() >= step) sum += lower;
      }
      if (i < count) store(i, own, before + sum - own);
      before += shuffle(sum, kSize - 1);
    }
  }

  template <class Body>
  HPS_HD_MEMBER void for_each(int64_t count, Body body) const {
    for (int64_t i = lane(); i < count; i += kSize) body(i);
  }

  // Several loads are under way before the first store, past which no compiler could move them.
  template <class Load, class Store>
  HPS_HD_MEMBER void copy(int64_t count, Load load, Store store) const {
    int64_t i = lane();
    for (; i + 3 * kSize < count; i += 4 * kSize) {
      const auto first = load(i), second = load(i + kSize);
      const auto third = load(i + 2 * kSize), fourth = load(i + 3 * kSize);
      store(i, first);
      store(i + kSize, second);
      store(i + 2 * kSize, third);
      store(i + 3 * kSize, fourth);
    }
    if (i + kSize < count) {
      const auto first = load(i), second = load(i + kSize);
      store(i, first);
      store(i + kSize, second);
      i += 2 * kSize;
    }
    if (i < count) store(i, load(i));
  }

  template <class Body>
  HPS_HD_MEMBER void elect(Body body) const {
    if (lane() == 0) body();
  }

  HPS_HD_MEMBER void sync() const {
    if constexpr (kSize > 1) __syncwarp(members());
  }

 private:
  template <int kCount>
  struct alignas(4 * kCount) WordsOf {
    uint32_t at[kCount];
  };

  HPS_HD_MEMBER unsigned first_lane() const { return threadIdx.x % 32 / kSize * kSize; }

  // The lanes of this group within their warp.
  HPS_HD_MEMBER unsigned members() const {
    return (kSize == 32 ? ~0u : (1u << kSize % 32) - 1) << first_lane();
  }

  HPS_HD_MEMBER uint32_t ballot(bool vote) const {
    return (__ballot_sync(members(), vote) & members()) >> first_lane();
  }

  // Bit i: byte i of the word is `value`.
  static HPS_HD_MEMBER uint32_t EqualBytes(uint32_t word, uint8_t value) {
    const uint32_t differing = word ^ (0x01010101u * value);
    constexpr uint32_t kLow = 0x7f7f7f7fu;
    const uint32_t high_bits = ~(((differing & kLow) + kLow) | differing | kLow);
    return (high_bits >> 7) * 0x01020408u >> 24 & 15;
  }
};

}  // namespace HPS_BUILD
}  // namespace hps
