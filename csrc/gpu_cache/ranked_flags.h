// Flags of numbered items, and how many are set before an item: without a prefix sum over all.
//
// Above it: cache_args.h and the kernels that set flags and, in a later launch, rank what bears
// them. Below it: common/atomics.h, csrc/table. Flags are set in any order by any number of
// threads, each item's once; a rank is the same whatever the order. Its cost is a load for each
// block of kFlagsASum items before, and one for each word of its own block.
#pragma once

#include "common/atomics.h"
#include "table/probe.h"

namespace hps {

inline constexpr int64_t kFlagsAWord = 32;
inline constexpr int64_t kFlagsASum = 2048;

struct RankedFlags {
  uint32_t* words;  // [ceil(n / kFlagsAWord)] a bit an item
  uint32_t* sums;   // [ceil(n / kFlagsASum)] flags that are set in each block
  // [words + 1] flags set below each word, and in all, added up between two launches: the host's,
  // which needs no sums then. Null on a device.
  uint32_t* ranks;
};

inline namespace HPS_BUILD {

HPS_HD int64_t NumFlagWords(int64_t num_items) {
  return (num_items + kFlagsAWord - 1) / kFlagsAWord;
}

HPS_HD int64_t NumFlagSums(int64_t num_items) { return (num_items + kFlagsASum - 1) / kFlagsASum; }

// Its part of clearing the flags of `num_items` items, where it is called for every i below their
// number, or that of their words.
HPS_HD void ClearFlags(const RankedFlags& flags, int64_t i, int64_t num_items) {
  if (i < NumFlagWords(num_items)) flags.words[i] = 0;
  if (i < NumFlagSums(num_items)) flags.sums[i] = 0;
}

// Sets an item's flag, which is not set.
HPS_HD void SetFlag(const RankedFlags& flags, int64_t i) {
  AtomicAdd(flags.words + i / kFlagsAWord, uint32_t{1} << (i % kFlagsAWord));
  if (flags.ranks == nullptr) AtomicAdd(flags.sums + i / kFlagsASum, uint32_t{1});
}

// Sets an item's flag, which is not set, in place of another's, whoever has set that or will.
HPS_HD void MoveFlag(const RankedFlags& flags, int64_t from, int64_t to) {
  SetFlag(flags, to);
  AtomicAdd(flags.words + from / kFlagsAWord, ~uint32_t{0} << (from % kFlagsAWord));
  AtomicAdd(flags.sums + from / kFlagsASum, ~uint32_t{0});
}

// Flags set below the first item of a word.
template <class Group>
HPS_HD int64_t FlagsBeforeWord(Group group, const RankedFlags& flags, int64_t word) {
  if (flags.ranks != nullptr) return flags.ranks[word];
  constexpr int64_t kWordsASum = kFlagsASum / kFlagsAWord;
  const int64_t block = word / kWordsASum;
  const uint32_t* const words = flags.words + block * kWordsASum;
  const uint32_t* const sums = flags.sums;
  const uint32_t blocks = group.total(block, [=](int64_t k) { return sums[k]; });
  return blocks + group.total(word % kWordsASum, [=](int64_t k) {
    return static_cast<uint32_t>(CountBits(words[k]));
  });
}

// Flags set below an item.
template <class Group>
HPS_HD int64_t FlagsBefore(Group group, const RankedFlags& flags, int64_t i) {
  const int64_t word = i / kFlagsAWord;
  const uint32_t below = (uint32_t{1} << (i % kFlagsAWord)) - 1;
  return FlagsBeforeWord(group, flags, word) + CountBits(flags.words[word] & below);
}

// Flags set of `num_items` items.
template <class Group>
HPS_HD int64_t CountFlags(Group group, const RankedFlags& flags, int64_t num_items) {
  if (flags.ranks != nullptr) return flags.ranks[NumFlagWords(num_items)];
  const uint32_t* const sums = flags.sums;
  return group.total(NumFlagSums(num_items), [=](int64_t k) { return sums[k]; });
}

}  // namespace HPS_BUILD
}  // namespace hps
