// The terms of each key's sum, brought into order without a sort: key after key, of each key in the
// order of occurrences, the same whatever order the threads come in.
//
// Above it: sums.h. Below it: cache_args.h, optimizer/binary_counter.h. Occurrences are counted a
// key, which gives each a number by arrival; then keys are given places, in any order of keys, as
// many as they have occurrences. Places are handed out by one addition a group of keys, so that
// nothing waits for a prefix sum. An occurrence goes to the place of its arrival, and from there to
// that of its rank: how many of its key's occurrences come before it. A key of more than
// kMostRanked has no ranks: it counts its occurrences in kMostRanked stretches of the batch, each
// as long as the others, and a run of its sum looks for its 32 from the stretch on in which they
// begin.
//
// The work is bounded: ranks take kMostRanked looks an occurrence at most, a run of a hotter key
// kMostRanked + L / kMostRanked and as many positions as hold 32 of its occurrences. The worst of a
// batch of 2^20 is as many keys as can be of 1024 or 1025: 2^30 looks, all at neighbouring words.
// Of one key alone they are 2^26.
#pragma once

#include "gpu_cache/cache_args.h"
#include "optimizer/binary_counter.h"

namespace hps {

// A hot key, of more than kRunLength occurrences, has a row of run_sums for each of its runs,
// behind each other. The first follows from where its places start: 33 places or more have at most
// as many runs as multiples of 16 that end among them.
inline constexpr int64_t kPlacesARow = kRunLength / 2;
inline constexpr uint32_t kNoKey = ~uint32_t{0};
inline constexpr int64_t kMostRanked = 1024;
inline constexpr int64_t kKeysPlaced = 64;   // by one addition
inline constexpr int64_t kKeysOrdered = 16;  // by one item
// Terms of a key that one lane brings into order.
inline constexpr uint32_t kTermsALane = 8;

// Where a key's terms lie.
struct alignas(8) KeyTerms {
  uint32_t start, count;  // places [start, start + count)
};

// Of one table: the terms of each key's sum.
struct TermArgs {
  const float* gradients;  // of bags, or of occurrences; of means they have been divided
  uint32_t* origins;       // [L] where each term lies among them, in floats, by place
  float* weights;          // [L] factor of each, by place; or null: 1
  KeyTerms* keys;          // [N]
  float* run_sums;         // [NumRows(L), dim] of hot keys' runs, then of these keys
  int32_t are_aligned;     // terms begin at multiples of 16 bytes
};

// One table's part of a sum. Gradients as they came are rows of an example's features, whether one
// or several tables lie side by side; [F * B, dim] are those of F * B examples of one feature.
struct SumArgs {
  CacheArgs cache;
  BatchArgs batch;
  TermArgs terms;
  const int64_t* offsets;  // [num_bags + 1], or null: gradients are of occurrences
  const float* weights;    // [L] factor of each occurrence's gradient, or null: 1
  const float* given;      // gradients as they came; the first example's first feature
  int64_t num_examples;    // rows of them
  int64_t pitch;           // floats from one of these to the next
  float* divided;          // [num_bags, dim] gradients of means as those of sums, or null
  uint32_t* arrived;    // [L] by occurrence: its number by arrival among its key's; then its bag,
                        // where that is asked for
  uint32_t* unordered;  // [L] by place, in order of arrival: see PutBagOne; of a key of more than
                        // kMostRanked its counters of occurrences
  uint32_t* arrivals;   // [NumRows(L)] by row of run_sums, see SumHotRun
  uint32_t* row_keys;   // [NumRows(L)] the key whose run a row is of, or kNoKey
};

inline namespace HPS_BUILD {

// Rows of run_sums for so many occurrences.
HPS_HD int64_t NumRows(int64_t num_occurrences) { return num_occurrences / kPlacesARow + 1; }

HPS_HD int64_t NumRuns(int64_t count) { return (count + kRunLength - 1) / kRunLength; }

// Of a hot key whose places start there.
HPS_HD int64_t FirstRow(int64_t start) { return start / kPlacesARow; }

HPS_HD int64_t LengthOfRun(KeyTerms key, int64_t run) {
  const int64_t left = key.count - run * kRunLength;
  return left < kRunLength ? left : int64_t{kRunLength};
}

// The hot key whose run a row is of, or -1.
HPS_HD int64_t KeyOfRow(const SumArgs& args, int64_t row) {
  if (row * kPlacesARow >= args.batch.num_occurrences) return -1;
  const uint32_t id = args.row_keys[row];
  return id == kNoKey ? int64_t{-1} : int64_t{id};
}

// Occurrences [first, first + count).
struct BagRange {
  int64_t first, count;
};

// Of a bag, or of an occurrence where there are no bags.
HPS_HD BagRange RangeOfBag(const SumArgs& args, int64_t i) {
  if (args.offsets == nullptr) return {i, 1};
  return {args.offsets[i], args.offsets[i + 1] - args.offsets[i]};
}

// Where the gradient of a bag, or of an occurrence, begins among those given, in floats.
HPS_HD int64_t OriginOf(const SumArgs& args, int64_t i) {
  const int64_t feature = i / args.num_examples;
  return (i - feature * args.num_examples) * args.pitch + feature * args.cache.dim;
}

// Where it begins as a term.
HPS_HD uint32_t OriginOfTerm(const SumArgs& args, int64_t i) {
  return static_cast<uint32_t>(args.divided == nullptr ? OriginOf(args, i) : i * args.cache.dim);
}

// Counts an occurrence; needs the counts of all keys zero.
HPS_HD void CountTerm(const SumArgs& args, int64_t position) {
  uint32_t* const count = args.batch.counts + args.batch.inverse[position];
  args.arrived[position] = AtomicAdd(count, uint32_t{1});
  if (position % kPlacesARow != 0) return;
  args.arrivals[position / kPlacesARow] = 0;
  args.row_keys[position / kPlacesARow] = kNoKey;
}

// i: kKeysPlaced keys. Gives them places, and leaves their counts zero.
template <class Group>
HPS_HD void PlaceTermsOne(Group group, const SumArgs& args, int64_t i) {
  const int64_t first = i * kKeysPlaced;
  const int64_t left = args.batch.numbers->num_unique - first;
  if (left <= 0) return;
  const int64_t num_keys = left < kKeysPlaced ? left : kKeysPlaced;
  uint32_t* const counts = args.batch.counts + first;
  KeyTerms* const keys = args.terms.keys + first;
  const auto count = [=](int64_t k) { return counts[k]; };
  const uint32_t total = group.total(num_keys, count);
  const uint32_t most =
      ~group.smallest(static_cast<uint32_t>(num_keys), [=](uint32_t k) { return ~counts[k]; });
  const uint32_t start = group.smallest(
      1, [&](uint32_t) { return AtomicAdd(&args.batch.numbers->num_placed, total); });
  group.prefix(num_keys, count, [=](int64_t k, uint32_t own, uint32_t before) {
    keys[k] = {start + before, own};
    counts[k] = 0;
  });
  if (most <= kMostRanked) return;
  group.sync();
  for (int64_t k = 0; k < num_keys; ++k) {
    const KeyTerms key = keys[k];
    if (key.count <= kMostRanked) continue;
    group.for_each(kMostRanked, [&](int64_t at) { args.unordered[key.start + at] = 0; });
  }
}

// The positions of each of the kMostRanked stretches.
HPS_HD int64_t StretchLength(const SumArgs& args) {
  return (args.batch.num_occurrences + kMostRanked - 1) / kMostRanked;
}

// i: a bag, or an occurrence. Puts its occurrences to the places of their arrival: by the number of
// their bags, in whose order they come. Those of a bag may have several weights: these are put by
// the number of the occurrence. A key of one is in order.
template <class Group>
HPS_HD void PutBagOne(Group group, const SumArgs& args, int64_t i) {
  const BagRange bag = RangeOfBag(args, i);
  group.for_each(bag.count, [&](int64_t k) {
    const int64_t position = bag.first + k;
    const uint32_t id = args.batch.inverse[position];
    const KeyTerms key = args.terms.keys[id];
    if (key.count == 1) {
      args.terms.origins[key.start] = OriginOfTerm(args, i);
      if (args.weights != nullptr) args.terms.weights[key.start] = args.weights[position];
      return;
    }
    const uint32_t number = args.arrived[position];
    if (key.count > kRunLength && number % kRunLength == 0) {
      args.row_keys[FirstRow(key.start) + number / kRunLength] = id;
    }
    const bool is_ranked = key.count <= kMostRanked;
    if (!is_ranked || args.weights != nullptr) args.arrived[position] = static_cast<uint32_t>(i);
    uint32_t* const places = args.unordered + key.start;
    if (is_ranked) {
      places[number] = static_cast<uint32_t>(args.weights == nullptr ? i : position);
    } else {
      AtomicAdd(places + position / StretchLength(args), uint32_t{1});
    }
  });
}

// Puts the k-th to arrive of a key to its place in order. Occurrences of one bag that were put by
// its number have the same term.
HPS_HD void RankTerm(const SumArgs& args, KeyTerms key, int64_t k) {
  const uint32_t* const places = args.unordered + key.start;
  const uint32_t own = places[k];
  uint32_t rank = 0;
  for (int64_t other = 0; other < key.count; ++other) {
    const uint32_t found = places[other];
    rank += found < own || (found == own && other < k) ? 1 : 0;
  }
  const int64_t place = int64_t{key.start} + rank;
  args.terms.origins[place] = OriginOfTerm(args, args.weights == nullptr ? own : args.arrived[own]);
  if (args.weights != nullptr) args.terms.weights[place] = args.weights[own];
}

// i: below NumRows(L) + ceil(bound / kKeysOrdered). A run of a hot key, by its row; or keys of one
// run.
template <class Group>
HPS_HD void OrderTermsOne(Group group, const SumArgs& args, int64_t i) {
  const int64_t num_rows = NumRows(args.batch.num_occurrences);
  if (i < num_rows) {
    const int64_t id = KeyOfRow(args, i);
    if (id < 0) return;
    const KeyTerms key = args.terms.keys[id];
    if (key.count > kMostRanked) return;
    const int64_t run = i - FirstRow(key.start);
    group.for_each(LengthOfRun(key, run),
                   [&](int64_t k) { RankTerm(args, key, run * kRunLength + k); });
    return;
  }
  const int64_t first = (i - num_rows) * kKeysOrdered;
  const int64_t left = args.batch.numbers->num_unique - first;
  if (left <= 0) return;
  const int64_t num_keys = left < kKeysOrdered ? left : kKeysOrdered;
  const KeyTerms* const keys = args.terms.keys + first;
  group.for_each(num_keys, [&](int64_t k) {
    const KeyTerms key = keys[k];
    if (key.count == 1 || key.count > kTermsALane) return;
    for (int64_t number = 0; number < key.count; ++number) RankTerm(args, key, number);
  });
  for (int64_t k = 0; k < num_keys; ++k) {
    const KeyTerms key = keys[k];
    if (key.count <= kTermsALane || key.count > kRunLength) continue;
    group.for_each(key.count, [&](int64_t number) { RankTerm(args, key, number); });
  }
}

// Puts the terms of a run of a key of more than kMostRanked to their places.
template <class Group>
HPS_HD void ListRun(Group group, const SumArgs& args, int64_t id, int64_t run) {
  const KeyTerms key = args.terms.keys[id];
  const uint32_t* const counters = args.unordered + key.start;
  const uint32_t* const inverse = args.batch.inverse;
  int64_t before = run * kRunLength;  // occurrences to pass over
  int64_t stretch = 0;
  for (;; stretch += kRunLength) {
    const int64_t found = group.total(kRunLength, [=](int64_t k) { return counters[stretch + k]; });
    if (found > before) break;
    before -= found;
  }
  for (; counters[stretch] <= before; ++stretch) before -= counters[stretch];
  int64_t place = key.start + run * kRunLength;
  const int64_t end = place + LengthOfRun(key, run);
  const int64_t length = args.batch.num_occurrences;
  for (int64_t first = stretch * StretchLength(args); place < end; first += kRunLength) {
    const int64_t rest = length - first < kRunLength ? length - first : int64_t{kRunLength};
    const uint32_t own =
        group.total(rest, [=](int64_t k) { return uint32_t{inverse[first + k] == id} << k; });
    group.for_each(rest, [&](int64_t k) {
      const int64_t number = CountBits(own & ((uint32_t{1} << k) - 1)) - before;
      if (!(own >> k & 1) || number < 0 || place + number >= end) return;
      args.terms.origins[place + number] = OriginOfTerm(args, args.arrived[first + k]);
      if (args.weights != nullptr) args.terms.weights[place + number] = args.weights[first + k];
    });
    const int64_t found = CountBits(own);
    place += found > before ? found - before : 0;
    before -= found < before ? found : before;
  }
  group.sync();
}

}  // namespace HPS_BUILD
}  // namespace hps
