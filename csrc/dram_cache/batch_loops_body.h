// The text of the hot loops, compiled once an instruction set: pull, find, gather, reserve, fill.
// (Updates: batch_updates_body.h.) See batch_loops.h for what each loop does.
//
// Above it: batch_updates_body.h. Below it: lookup_body.h, csrc/batch, csrc/table.
#pragma once

#include <type_traits>

#include "batch/numbering_body.h"
#include "dram_cache/lookup_body.h"

namespace hps {
inline namespace HPS_BUILD {

// Groups the occurrences by key, in order.
inline void SortPositions(WorkerBatch* worker) {
  uint32_t* starts = worker->starts;
  const auto num_unique = static_cast<uint64_t>(worker->num_unique);
  __builtin_memset(starts, 0, (num_unique + 1) * sizeof(uint32_t));
  for (int64_t i = 0; i < worker->num_occurrences; ++i) ++starts[worker->ids[i] & ~kFirstOfKey];
  uint32_t end = 0;
  for (uint64_t id = 0; id <= num_unique; ++id) {
    end += starts[id];
    starts[id] = end - starts[id];
  }
  for (int64_t i = 0; i < worker->num_occurrences; ++i) {
    worker->positions[starts[worker->ids[i] & ~kFirstOfKey]++] = worker->scan_positions[i];
  }
  for (uint64_t id = num_unique; id > 0; --id) starts[id] = starts[id - 1];
  starts[0] = 0;
}

inline void Find(const CacheView& cache, WorkerBatch* worker) {
  Lookup<0, false, Taking::kSlot> lookup(cache, worker, {});
  lookup.Finish(worker->window_end - worker->window_begin);
}

// Calls body with the type that the table's weights have.
template <class Body>
inline auto WithWeights(const CacheView& cache, Body body) {
  return cache.is_narrow ? body(Bfloat16{}) : body(float{});
}

// Numbers, looks up and writes the output in one go, each some keys behind the other: numbering
// computes, looking up waits for memory and writing fills it, so they go well together. Value and
// Weight are float or Bfloat16; between them a row is of the narrower type, so that it is rounded
// once a key, and the near cache holds twice as many.
template <class Weight, class Value>
inline bool PullTo(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys, int64_t count,
                   Value* out, int64_t stride) {
  constexpr int64_t kRowsAStep = 24;  // somewhat more than keys are numbered between two calls
  worker->window_begin = 0;
  return WithOutput(cache.dim, count, out, stride, [&](auto lanes, auto streaming) {
    constexpr int kDim = decltype(lanes)::kWidth;
    constexpr bool kStream = decltype(streaming)::value;
    using Collected = std::conditional_t<std::is_same_v<Value, float>, Weight, Value>;
    Expander<kDim, kStream, Value, Collected> expander(*worker, cache.dim, out, stride);
    Lookup<kDim, false, Taking::kValue, Weight, Collected> lookup(cache, worker, {});
    const bool fits = DeduplicateWith(worker, keys, count, [&] {
      lookup.UpTo(worker->num_unique);
      if (worker->num_missing == 0) expander.UpTo(lookup.num_checked(), kRowsAStep);
    });
    if (fits) lookup.Finish(worker->num_unique);
    if (fits && worker->num_missing == 0) {
      expander.Finish();
    } else {
      expander.Stop();
    }
    return fits;
  });
}

inline bool Pull(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys, int64_t count,
                 OutputRows out) {
  return WithWeights(cache, [&](auto weight) {
    using Weight = decltype(weight);
    if (out.narrow != nullptr) {
      return PullTo<Weight>(cache, worker, keys, count, out.narrow, out.stride);
    }
    return PullTo<Weight>(cache, worker, keys, count, out.values, out.stride);
  });
}

// Numbers keys, which are looked up close behind.
template <int kDim, Taking kTaking, class Weight>
inline bool NumberAndFind(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                          int64_t count) {
  worker->window_begin = 0;
  Lookup<kDim, false, kTaking, Weight> lookup(cache, worker, {});
  const bool fits = DeduplicateWith(worker, keys, count, [&] { lookup.UpTo(worker->num_unique); });
  if (fits) lookup.Finish(worker->num_unique);
  return fits;
}

// As Pull, of values that are pooled afterwards, when all workers have theirs.
inline bool PullValues(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                       int64_t count) {
  return WithWeights(cache, [&](auto weight) {
    return WithDim(cache.dim, [&](auto lanes) {
      constexpr int kDim = decltype(lanes)::kWidth;
      return NumberAndFind<kDim, Taking::kValue, decltype(weight)>(cache, worker, keys, count);
    });
  });
}

inline bool PullSlots(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                      int64_t count) {
  return NumberAndFind<0, Taking::kSlot, float>(cache, worker, keys, count);
}

// Looks up every occurrence by itself. The window is the part of the batch to go through.
template <class Weight>
inline void PullEachOf(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                       int64_t count, OutputRows out) {
  const int64_t end = worker->window_end;
  int64_t first = worker->window_begin;
  worker->window_begin = 0;
  WithOutput(cache.dim, count, out.values, out.stride, [&](auto lanes, auto streaming) {
    constexpr bool kStream = decltype(streaming)::value;
    Lookup<decltype(lanes)::kWidth, kStream, Taking::kOutput, Weight> lookup(cache, worker, out);
    uint64_t hashes[kChunk + 8];
    int64_t kept = 0;
    for (; first < end && worker->num_missing == 0; first += kChunk) {
      const int length = static_cast<int>(end - first < kChunk ? end - first : kChunk);
      kept += CompressOwned(keys + first, length, static_cast<uint32_t>(first), worker->owned_parts,
                            worker->keys + kept, hashes, worker->scan_positions + kept);
      lookup.UpTo(kept);
    }
    lookup.Finish(kept);
    if constexpr (kStream) EndStream();
  });
}

inline void PullEach(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                     int64_t count, OutputRows out) {
  WithWeights(cache,
              [&](auto weight) { PullEachOf<decltype(weight)>(cache, worker, keys, count, out); });
}

inline void FindEach(const CacheView& cache, WorkerBatch* worker, const uint64_t* keys,
                     int64_t count) {
  worker->window_begin = 0;
  worker->num_repeats = 0;
  Lookup<0, false, Taking::kFirst> lookup(cache, worker, {});
  uint64_t hashes[kChunk + 8];
  int64_t kept = 0;
  for (int64_t first = 0; first < count; first += kChunk) {
    if (worker->num_missing + worker->num_repeats != 0) break;
    const int length = static_cast<int>(count - first < kChunk ? count - first : kChunk);
    kept += CompressOwned(keys + first, length, static_cast<uint32_t>(first), worker->owned_parts,
                          worker->keys + kept, hashes, worker->scan_positions + kept);
    lookup.UpTo(kept);
  }
  lookup.Finish(kept);
  worker->num_unique = worker->num_occurrences = kept;
}

template <class Weight>
inline void CollectOf(const CacheView& cache, const WorkerBatch& worker) {
  constexpr int64_t kAhead = 16;
  WithDim(cache.dim, [&](auto lanes) {
    for (int64_t id = worker.window_begin; id < worker.window_end; ++id) {
      if (id + kAhead < worker.window_end) {
        PrefetchRow(RowAt(cache.table, worker.slots[id + kAhead]),
                    cache.table.header_bytes() + int64_t{sizeof(Weight)} * cache.dim,
                    cache.alignment());
      }
      CopyColumns<decltype(lanes)::kWidth>(WeightsAt<Weight>(cache.table, worker.slots[id]),
                                           cache.dim, worker.values + id * cache.dim);
    }
  });
}

inline void Collect(const CacheView& cache, const WorkerBatch& worker) {
  WithWeights(cache, [&](auto weight) { CollectOf<decltype(weight)>(cache, worker); });
}

// The rounds of reserve.h over one worker's missing keys.
struct ReserveRounds {
  const CacheView& cache;
  WorkerBatch* worker;
  HostGroup group = {};

  KeyPlace PlaceOf(int64_t entry) const {
    return PlaceOfHash(cache.table.shape, MixKey(worker->keys[worker->missing[entry]]));
  }

  // Asks for what taking a slot in a key's first bucket reads and writes.
  void AskFor(int64_t entry) const {
    const TableView& table = cache.table;
    const int64_t slot = PlaceOf(entry).first * kBucketSlots;
    __builtin_prefetch(table.digests + slot, 1);
    __builtin_prefetch(table.pins + slot, 1);
    __builtin_prefetch(table.marks + slot, 1);
    __builtin_prefetch(table.marks + slot + kBucketSlots / 2, 1);
  }

  bool IsPlaced(int64_t entry) const { return worker->slots[worker->missing[entry]] != kNoSlot; }

  // Offers pick(entry, place) -> slot to every key that has none yet; true if none is left.
  template <class Pick>
  bool Round(Pick pick) {
    constexpr int64_t kAhead = 12;
    bool complete = true;
    for (int64_t entry = 0; entry < worker->num_missing; ++entry) {
      if (entry + kAhead < worker->num_missing) AskFor(entry + kAhead);
      if (IsPlaced(entry)) continue;
      const KeyPlace place = PlaceOf(entry);
      const int64_t slot = pick(entry, place);
      if (slot == kNoSlot) {
        complete = false;
        continue;
      }
      Reservation* reservation = &worker->reservations[entry];
      TakeSlot(cache.table, slot, place.digest, cache.now, reservation);
      CountSpill(cache.table, place.first, reservation, PlainCounts{});
      worker->slots[worker->missing[entry]] = slot;
      worker->order[worker->num_reserved++] = static_cast<uint32_t>(entry);
    }
    return complete;
  }

  bool Run() {
    const TableView& table = cache.table;
    const auto free_in = [&](int64_t bucket) { return FirstFree(group, table, bucket); };
    const auto victim_in = [&](int64_t bucket) {
      const int64_t slot = ChooseVictim(group, table, bucket, cache.now);
      if (cache.has_wants && slot != kNoSlot) {
        const int place = static_cast<int>(slot - bucket * kBucketSlots);
        const uint64_t candidates = VictimCandidates(group, table, bucket);
        worker->num_spared += SparesOne(group, table, bucket, candidates, place, cache.now);
      }
      return slot;
    };
    using Place = const KeyPlace&;
    if (Round([&](int64_t, Place place) { return FirstRoundSlot(group, table, place); })) {
      return true;
    }
    for (int64_t entry = 0; entry < worker->num_missing; ++entry) {
      if (IsPlaced(entry)) continue;
      const KeyPlace place = PlaceOf(entry);
      worker->second_round[entry] = EmptierBucket(group, table, place) == place.second;
    }
    return Round([&](int64_t entry, Place place) {
             return free_in(worker->second_round[entry] ? place.second : place.first);
           }) ||
           Round([&](int64_t, Place place) { return free_in(place.first); }) ||
           Round([&](int64_t, Place place) { return free_in(place.second); }) ||
           Round([&](int64_t, Place place) { return victim_in(place.first); }) ||
           Round([&](int64_t, Place place) { return victim_in(place.second); });
  }
};

inline bool Reserve(const CacheView& cache, WorkerBatch* worker) {
  worker->num_reserved = 0;
  worker->num_spared = 0;
  return ReserveRounds{cache, worker}.Run();
}

// Calls body with a walker of the table's rows that updates none.
template <class Body>
inline auto WithRowLanes(const CacheView& cache, Body body) {
  return WithDim(cache.dim, [&](auto lanes) {
    if (!cache.is_narrow) return body(lanes);
    return body(NarrowLanes<decltype(lanes), Rounding::kNearest>{lanes, 0});
  });
}

inline void Fill(const CacheView& cache, WorkerBatch* worker, const uint8_t* rows,
                 const uint8_t* found, float lr) {
  const TableView& table = cache.table;
  const int64_t slot_bytes = table.shape.row_bytes;
  constexpr int64_t kAhead = 16;
  WithRowLanes(cache, [&](auto lanes) {
    for (int64_t entry = 0; entry < worker->num_missing; ++entry) {
      if (entry + kAhead < worker->num_missing) {
        const int64_t later = worker->missing[entry + kAhead];
        PrefetchRow<true>(RowAt(table, worker->slots[later]), slot_bytes, cache.alignment());
      }
      const int64_t id = worker->missing[entry];
      uint8_t* row = RowAt(table, worker->slots[id]);
      if (found[entry]) {
        SetSlot(cache.packing, rows + entry * cache.packing.image_bytes, row);
        continue;
      }
      __builtin_memset(row, 0, static_cast<uint64_t>(slot_bytes));
      SetKeyAt(table, worker->slots[id], worker->keys[id]);
      float* const values = FloatsAt(table, worker->slots[id]);
      InitializeWeights(lanes, cache.initializer, worker->keys[id], lanes.weights(values));
      StartState(lanes, cache.kind, values, lr, cache.numbers);
    }
  });
}

}  // namespace HPS_BUILD
}  // namespace hps
