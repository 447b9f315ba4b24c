// Rows of a pinned window on the move: fill (publish), gather, pool, images in and out.
//
// Above it: kernels.h. Below it: row_pieces.h, csrc/optimizer. Rows are addressed by slot; nothing
// here probes the table.
#pragma once

#include "gpu_cache/narrow_group.h"
#include "optimizer/binary_counter.h"

namespace hps {

struct FillArgs {
  CacheArgs cache;
  BatchArgs batch;
  const uint8_t* images;  // [M, row_bytes], on a device in pinned memory of the host
  const uint8_t* found;   // [M] 0: the row is initialised instead
  int64_t bound;          // work items: M or more
  int32_t creates;        // not 0: rows initialised become stored and dirty, not fresh
  float lr;
};

struct GatherArgs {
  CacheArgs cache;
  BatchArgs batch;
  float* out;  // [L, dim]
};

struct PoolArgs {
  CacheArgs cache;
  BatchArgs batch;
  const int64_t* offsets;  // [num_features * num_examples + 1], feature-major
  const float* weights;    // [L] or null
  float* out;              // the first example's first feature; its others follow
  int64_t num_examples;
  int64_t pitch;  // floats from an example to the next
  int32_t is_mean;
};

struct ImagesArgs {
  CacheArgs cache;
  BatchArgs batch;
  uint8_t* images;  // [window, row_bytes], in the plan's order
  int64_t bound;    // work items: window_size or more
};

struct InitialWeightsArgs {
  CacheArgs cache;
  const uint64_t* keys;  // [count]
  float* out;            // [count, dim]
};

inline namespace HPS_BUILD {

// Flags of a row that was given a value: stored and newer than below; counts what it was before.
HPS_HD void MarkUpdated(const CacheArgs& cache, int64_t slot, int64_t i) {
  uint8_t& flags = cache.table.marks[slot].flags;
  const uint8_t before = flags;
  flags = static_cast<uint8_t>((before & ~(kFresh | kExporting)) | kDirty);
  if (before & kFresh) {
    Count(cache, kCountFresh, i, -1);
    Count(cache, kCountRows, i, 1);
    Count(cache, kCountCreated, i, 1);
  }
  if (!(before & kDirty)) Count(cache, kCountDirty, i, 1);
}

// A row that was given a value, which is no update.
HPS_HD void NotePeriod(const CacheArgs& cache, int64_t slot) {
  if (cache.table.has_statistics()) NoteSeen(RowAt(cache.table, slot), cache.period, cache.rules);
}

// A row nobody stored: key and initial weights, padding zero, the state of a new row.
template <class Group>
HPS_HD void InitializeRow(Group group, const CacheArgs& cache, int64_t slot, uint64_t key,
                          float lr) {
  const auto lanes = LanesOf(group, cache.dim);
  float* const row = FloatsAt(cache, slot);
  ZeroRow(group, RowAt(cache.table, slot), cache.table.shape.row_bytes);
  group.sync();
  group.elect([&] { SetKeyAt(cache.table, slot, key); });
  InitializeWeights(lanes, cache.initializer, key, lanes.weights(row));
  StartState(lanes, cache.kind, row, lr, cache.numbers);
}

// i: below bound. The row of a missing key arrives, or is made.
template <class Group>
HPS_HD void FillRowOne(Group group, const FillArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const CacheArgs& cache = args.cache;
  if (i >= batch.numbers->num_missing) return;
  const int64_t slot = batch.reservations[i].slot;
  const int64_t row_bytes = cache.table.shape.row_bytes;
  const bool is_found = args.found[i] != 0;
  if (is_found) {
    CopyRow(group, RowAt(cache.table, slot), args.images + i * row_bytes, row_bytes);
  } else {
    InitializeRow(group, cache, slot, batch.missing_keys[i], args.lr);
  }
  group.elect([&] {
    const uint8_t flags_of_new = args.creates ? kDirty : kFresh;
    cache.table.marks[slot].flags = is_found ? 0 : flags_of_new;
    Count(cache, kCountPending, i, -1);
    Count(cache, is_found || args.creates ? kCountRows : kCountFresh, i, 1);
    if (is_found || !args.creates) return;
    NotePeriod(cache, slot);
    Count(cache, kCountDirty, i, 1);
    Count(cache, kCountCreated, i, 1);
  });
}

// i: an occurrence. One whose key is not in the window leaves its place in `out` as it was.
template <class Group>
HPS_HD void GatherOne(Group group, const GatherArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const int64_t id = batch.inverse[i];
  if (static_cast<uint64_t>(id - batch.numbers->window_first) >=
      static_cast<uint64_t>(batch.numbers->window_size)) {
    return;
  }
  const int64_t dim = args.cache.dim;
  CopyFloats(group, args.out + i * dim, WeightsOf(group, args.cache, batch.slots[id]), dim);
}

// term(first) + ... + term(end - 1), from the left; of one term at least.
template <class Value, class Term>
HPS_HD Value AddTerms(int64_t first, int64_t end, Term term) {
  Value sum = term(first);
  for (int64_t i = first + 1; i < end; ++i) sum = sum + term(i);
  return sum;
}

// The sum of a long bag in one column.
template <class Term>
HPS_HD float AddRuns(int64_t first, int64_t end, Term term) {
  BinaryCounter counter;
  for (int64_t run = first; run < end; run += kRunLength) {
    counter.add(AddTerms<float>(run, run + kRunLength < end ? run + kRunLength : end, term));
  }
  return counter.total();
}

// i: a bag, feature-major. A run starts with its first term: hps/common/bags.py.
template <class Group>
HPS_HD void PoolOne(Group group, const PoolArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const CacheArgs& cache = args.cache;
  const int64_t feature = i / args.num_examples;
  const int64_t example = i - feature * args.num_examples;
  float* const out = args.out + example * args.pitch + feature * cache.dim;
  const int64_t first = args.offsets[i], end = args.offsets[i + 1];
  const float divisor = args.is_mean ? static_cast<float>(end - first) : 1.0f;
  const auto weights_of = [&](int64_t position) {
    return WeightsOf(group, cache, batch.slots[batch.inverse[position]]);
  };
  const auto weigh = [&](auto value, int64_t position) {
    return args.weights == nullptr ? value : value * args.weights[position];
  };
  const bool is_wide = cache.dim % 4 == 0 && IsPieceAligned(out);
  if (first == end) {
    group.for_each(cache.dim, [&](int64_t d) { out[d] = 0.0f; });
  } else if (is_wide && end - first <= kRunLength) {
    group.for_each(cache.dim / 4, [&](int64_t d) {
      PieceAt(out, d) =
          AddTerms<Piece>(first, end,
                          [&](int64_t position) {
                            return weigh(WidePiece(weights_of(position), d), position);
                          }) /
          divisor;
    });
  } else {
    group.for_each(cache.dim, [&](int64_t d) {
      out[d] = AddRuns(first, end,
                       [&](int64_t position) {
                         return weigh(Widened(weights_of(position)[d]), position);
                       }) /
               divisor;
    });
  }
}

// i: below bound.
template <class Group>
HPS_HD void ReadRowOne(Group group, const ImagesArgs& args, int64_t i) {
  if (!IsInWindow(args.batch, i)) return;
  const int64_t row_bytes = args.cache.table.shape.row_bytes;
  const int64_t slot = args.batch.slots[WindowId(args.batch, i)];
  CopyRow(group, args.images + i * row_bytes, RowAt(args.cache.table, slot), row_bytes);
}

// i: a key. What it reads as while no tier stores it.
template <class Group>
HPS_HD void InitialWeightsOne(Group group, const InitialWeightsArgs& args, int64_t i) {
  const CacheArgs& cache = args.cache;
  const auto lanes = LanesOf(group, cache.dim);
  InitializeWeights(lanes, cache.initializer, args.keys[i],
                    lanes.as_read(args.out + i * cache.dim));
}

}  // namespace HPS_BUILD
}  // namespace hps
