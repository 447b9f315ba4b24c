// Deduplicating a batch: its distinct keys in order of first occurrence, and the id of each
// occurrence, the same whatever order the threads come in.
//
// Above it: kernels.h. Below it: cache_args.h. The host build has loops of its own for it:
// host_batch.h says why. Every occurrence looks for its key in a table of
// positions; the smallest position of a key stays, and is its first occurrence. Whoever puts a
// position there flags it, and takes the flag of the one it displaces: once all are there, first
// occurrences alone have flags, and their ranks are the ids. Positions of 4 bytes, cleared before
// each batch, are 8 bytes an occurrence to write; with a tag of the batch in place of clearing they
// would be 8 each, to be read and written.
#pragma once

#include "gpu_cache/cache_args.h"

namespace hps {

struct DeduplicateArgs {
  BatchArgs batch;
  const uint64_t* keys;  // [L] the batch's
};

inline namespace HPS_BUILD {

// i: an entry of the id table, of which there are more than occurrences.
template <class Group>
HPS_HD void BeginPlanOne(Group, const DeduplicateArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  batch.id_table[i] = kNoPosition;
  ClearFlags(batch.first_flags, i, batch.num_occurrences);
  if (i == 0) *batch.numbers = {};
}

// i: an occurrence. Needs the id table empty and no flag set. Leaves the occurrence's entry of the
// table in the place of its id.
template <class Group>
HPS_HD void PlaceKeyOne(Group, const DeduplicateArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const auto position = static_cast<uint32_t>(i);
  const uint64_t key = args.keys[i];
  uint64_t entry = EntryOfKey(key, batch.id_mask);
  for (;; entry = (entry + 1) & batch.id_mask) {
    uint32_t* const ptr = batch.id_table + entry;
    uint32_t found = AtomicLoad(ptr);
    if (found == kNoPosition) {
      found = AtomicExchangeIf(ptr, kNoPosition, position);
      if (found == kNoPosition) {
        SetFlag(batch.first_flags, i);
        break;
      }
    }
    if (args.keys[found] != key) continue;
    // Most occurrences of a hot key come later than its first and need not queue for its entry.
    if (found > position) {
      found = AtomicMin(ptr, position);
      if (found > position) MoveFlag(batch.first_flags, found, i);
    }
    break;
  }
  batch.inverse[i] = static_cast<uint32_t>(entry);
}

// i: 32 occurrences. Numbers those that are first.
template <class Group>
HPS_HD void ListFirstOne(Group group, const DeduplicateArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const uint32_t word = batch.first_flags.words[i];
  const int64_t before = FlagsBeforeWord(group, batch.first_flags, i);
  group.elect([&] {
    batch.first_ranks[i] = static_cast<uint64_t>(before) << kFlagsAWord | word;
    if (i == NumFlagWords(batch.num_occurrences) - 1) {
      batch.numbers->num_unique = before + CountBits(word);
    }
  });
  group.for_each(kFlagsAWord, [&](int64_t bit) {
    if (!(word >> bit & 1)) return;
    const int64_t id = before + CountBits(word & ((uint32_t{1} << bit) - 1));
    batch.unique_keys[id] = args.keys[i * kFlagsAWord + bit];
  });
}

// i: an occurrence.
template <class Group>
HPS_HD void NumberKeyOne(Group, const DeduplicateArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const uint32_t first = batch.id_table[batch.inverse[i]];
  const uint64_t ranked = batch.first_ranks[first / kFlagsAWord];
  const uint32_t below = (uint32_t{1} << (first % kFlagsAWord)) - 1;
  const int rank = CountBits(static_cast<uint32_t>(ranked) & below);
  batch.inverse[i] = static_cast<uint32_t>(ranked >> kFlagsAWord) + static_cast<uint32_t>(rank);
}

}  // namespace HPS_BUILD
}  // namespace hps
