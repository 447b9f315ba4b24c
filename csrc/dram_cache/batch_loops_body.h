// The text of the hot loops, compiled once an instruction set: deduplicate, find, gather, reserve,
// fill. (Sums and updates: batch_updates_body.h.) See batch_loops.h for what each loop does.
//
// Look-ups run in groups, each group one stage behind the next: hash and ask for the bucket's
// lines; compare digests and ask for the row; check the key and use the row. Memory latency is all
// there is to hide, and three groups in flight hide it.
#pragma once

#include "dram_cache/batch_loops.h"
#include "dram_cache/row_copy.h"
#include "optimizer/lanes.h"
#include "table/host_group.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int kGroup = 8;
inline constexpr int64_t kExpandEvery = 512;  // keys, a multiple of kGroup
inline constexpr int kChunk = 1024;
inline constexpr int64_t kStreamedFloats =
    1 << 19;  // a worker's output this large goes past the caches
inline constexpr uint32_t kExtraRun = uint32_t{1} << 31;

// Calls body with the widths that are worth compiling for as constants, any other as 0.
template <class Body>
inline auto WithDim(int dim, Body body) {
  switch (dim) {
    case 8:
      return body(HostLanes<8>{dim});
    case 16:
      return body(HostLanes<16>{dim});
    case 32:
      return body(HostLanes<32>{dim});
    case 64:
      return body(HostLanes<64>{dim});
    case 128:
      return body(HostLanes<128>{dim});
    default:
      return body(HostLanes<0>{dim});
  }
}

// A chunk of a batch after hashing: the keys whose parts are this worker's.
struct OwnedChunk {
  uint64_t keys[kChunk + 16];
  uint64_t hashes[kChunk + 16];  // what stands behind the last one is only prefetched
};

// Keeps the keys that are `owned`, and where they stand: from `base` on, into positions.
inline int CompressOwned(const uint64_t* keys, int count, uint32_t base, uint64_t owned,
                         OwnedChunk* chunk, uint32_t* positions) {
  int kept = 0;
  int i = 0;
#if defined(__AVX512DQ__)
  const __m512i multiplier1 = _mm512_set1_epi64(static_cast<int64_t>(0xff51afd7ed558ccdULL));
  const __m512i multiplier2 = _mm512_set1_epi64(static_cast<int64_t>(0xc4ceb9fe1a85ec53ULL));
  const __m512i owned_bits = _mm512_set1_epi64(static_cast<int64_t>(owned));
  const __m512i one = _mm512_set1_epi64(1);
  __m256i places = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(base)),
                                    _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  for (; i + 8 <= count; i += 8) {
    const __m512i key = _mm512_loadu_si512(keys + i);
    __m512i hash = _mm512_xor_si512(key, _mm512_srli_epi64(key, 33));
    hash = _mm512_mullo_epi64(hash, multiplier1);
    hash = _mm512_xor_si512(hash, _mm512_srli_epi64(hash, 33));
    hash = _mm512_mullo_epi64(hash, multiplier2);
    hash = _mm512_xor_si512(hash, _mm512_srli_epi64(hash, 33));
    const __m512i bit = _mm512_srlv_epi64(owned_bits, _mm512_srli_epi64(hash, 58));
    const __mmask8 mine = _mm512_test_epi64_mask(bit, one);
    // Compress in registers: the form that stores to memory is microcode on some processors.
    _mm512_storeu_si512(chunk->keys + kept, _mm512_maskz_compress_epi64(mine, key));
    _mm512_storeu_si512(chunk->hashes + kept, _mm512_maskz_compress_epi64(mine, hash));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + kept),
                        _mm256_maskz_compress_epi32(mine, places));
    places = _mm256_add_epi32(places, _mm256_set1_epi32(8));
    kept += __builtin_popcount(mine);
  }
#endif
  for (; i < count; ++i) {
    const uint64_t hash = MixKey(keys[i]);
    chunk->keys[kept] = keys[i];
    chunk->hashes[kept] = hash;
    positions[kept] = base + static_cast<uint32_t>(i);
    kept += static_cast<int>((owned >> (hash >> 58)) & 1);
  }
  return kept;
}

// What numbering keeps in registers while it goes over a chunk.
struct IdTable {
  uint32_t* entries;
  uint64_t mask;
  KeyRuns* runs;
  uint32_t num_unique;
};

// The id of a key whose own entry holds another key: further on in the table, or new.
inline uint32_t FindOrAddDisplaced(IdTable* table, uint64_t key, uint64_t entry) {
  for (;;) {
    entry = (entry + 1) & table->mask;
    const uint32_t found = table->entries[entry];
    if (found != 0 && table->runs[found - 1].key == key) return found - 1;
    if (found != 0) continue;
    const uint32_t id = table->num_unique++;
    table->entries[entry] = id + 1;
    table->runs[id] = {key, 0, id};
    return id;
  }
}

// Starts the next run of a key whose last one is full. Its number carries the top bit until the
// number of unique keys, from which extra runs count on, is known. The run stays empty, and is
// passed over, if the key does not come again: asking for its next occurrence only then would cost
// a branch that new keys make unpredictable.
inline void StartExtraRun(WorkerBatch* worker, uint32_t id, KeyRuns* runs) {
  worker->extra_owners[worker->num_extra] = id;
  runs->accumulator = static_cast<uint32_t>(worker->num_extra++) | kExtraRun;
}

// Gives every occurrence of a chunk its accumulator. Whether a key is new cannot be predicted, so a
// new key is written down whether or not it is one, and counted only if it is; the branches left
// are for keys whose entry another key took, and for a full run.
inline void NumberChunk(WorkerBatch* worker, const OwnedChunk& chunk, int kept) {
  constexpr int kEntriesAhead = 16;
  constexpr int kRunsAhead = 8;
  IdTable table = {worker->id_table, worker->id_mask, worker->runs,
                   static_cast<uint32_t>(worker->num_unique)};
  uint32_t* accumulators = worker->accumulators + worker->num_occurrences;
  for (int i = 0; i < kept; ++i) {
    __builtin_prefetch(table.entries + (chunk.hashes[i + kEntriesAhead] >> 16 & table.mask), 1);
    __builtin_prefetch(table.runs + table.entries[chunk.hashes[i + kRunsAhead] >> 16 & table.mask],
                       1);
    const uint64_t key = chunk.keys[i];
    const uint64_t entry = chunk.hashes[i] >> 16 & table.mask;
    const uint32_t found = table.entries[entry];
    const uint32_t is_new = found == 0;
    const uint32_t number = found + (is_new ? table.num_unique + 1 : 0);
    table.runs[table.num_unique] = {key, 0, table.num_unique};
    table.entries[entry] = number;
    table.num_unique += is_new;
    uint32_t id = number - 1;
    if (table.runs[id].key != key) [[unlikely]]
      id = FindOrAddDisplaced(&table, key, entry);
    KeyRuns& runs = table.runs[id];
    accumulators[i] = runs.accumulator;
    if (++runs.count % kRunLength == 0) [[unlikely]]
      StartExtraRun(worker, id, &runs);
  }
  worker->num_unique = table.num_unique;
  worker->num_occurrences += kept;
}

// Chains each hot key's later runs in order, starting from its KeyRuns.
inline void ChainRuns(WorkerBatch* worker) {
  for (int64_t i = 0; i < worker->num_extra; ++i) {
    worker->runs[worker->extra_owners[i]].accumulator = kNoRun;
  }
  for (int64_t i = worker->num_extra - 1; i >= 0; --i) {
    uint32_t& second = worker->runs[worker->extra_owners[i]].accumulator;
    worker->next_runs[i] = second;
    second = static_cast<uint32_t>(i);
  }
}

inline bool Deduplicate(WorkerBatch* worker, const uint64_t* keys, int64_t count) {
  OwnedChunk chunk = {};
  const int64_t most_unique = static_cast<int64_t>(worker->id_mask - worker->id_mask / 8);
  __builtin_memset(worker->id_table, 0, (worker->id_mask + 1) * sizeof(uint32_t));
  worker->num_unique = 0;
  worker->num_extra = 0;
  worker->num_occurrences = 0;
  for (int64_t first = 0; first < count; first += kChunk) {
    const int length = static_cast<int>(count - first < kChunk ? count - first : kChunk);
    const int kept =
        CompressOwned(keys + first, length, static_cast<uint32_t>(first), worker->owned_parts,
                      &chunk, worker->scan_positions + worker->num_occurrences);
    if (worker->num_unique + kept > most_unique) return false;
    NumberChunk(worker, chunk, kept);
  }
  for (int64_t i = 0; i < kOccurrencePadding; ++i) {
    worker->accumulators[worker->num_occurrences + i] = 0;
    worker->scan_positions[worker->num_occurrences + i] = 0;
  }
  const auto num_unique = static_cast<uint32_t>(worker->num_unique);
  for (int64_t i = 0; i < worker->num_occurrences; ++i) {
    const uint32_t number = worker->accumulators[i];
    worker->accumulators[i] = (number & ~kExtraRun) + (number >> 31) * num_unique;
  }
  ChainRuns(worker);
  for (int64_t id = 0; id < worker->num_unique; ++id) worker->keys[id] = worker->runs[id].key;
  return true;
}

inline void SortPositions(WorkerBatch* worker) {
  uint32_t start = 0;
  for (int64_t id = 0; id < worker->num_unique; ++id) {
    worker->starts[id] = start;
    start += worker->runs[id].count;
  }
  for (int64_t i = 0; i < worker->num_occurrences; ++i) {
    const int64_t number = worker->accumulators[i];
    const int64_t extra = number - worker->num_unique;
    const int64_t id = extra >= 0 ? worker->extra_owners[extra] : number;
    worker->positions[worker->starts[id]++] = worker->scan_positions[i];
  }
  for (int64_t id = worker->num_unique; id > 0; --id) worker->starts[id] = worker->starts[id - 1];
  worker->starts[0] = 0;
}

// A group of keys on its way through a look-up.
struct LookupStage {
  uint64_t first[kGroup];
  uint64_t second[kGroup];
  uint64_t digests[kGroup];
  uint64_t candidates[kGroup];  // slots of the first bucket that have the digest
};

inline void AskForBuckets(const TableView& table, const uint64_t* keys, int count,
                          LookupStage* stage) {
  const TableShape shape = table.shape;
  // Whole groups, so that the arithmetic is done in wide registers; keys are padded for it.
  for (int i = 0; i < kGroup; ++i) {
    const uint64_t hash = MixKey(keys[i]);
    stage->first[i] = FirstBucket(shape, hash);
    stage->second[i] = SecondBucket(shape, hash);
    stage->digests[i] = DigestOf(hash);
  }
  for (int i = 0; i < count; ++i) {
    __builtin_prefetch(table.digests + stage->first[i] * kBucketSlots);
    __builtin_prefetch(table.spilled + stage->first[i]);
  }
}

// Asks for the first `bytes` of a row; rows are aligned to 16, so its last 16 share a line.
template <bool kWrite = false>
inline void PrefetchRow(const uint8_t* row, int64_t bytes) {
  for (int64_t line = 0; line < bytes - 16; line += 64) __builtin_prefetch(row + line, kWrite);
  __builtin_prefetch(row + bytes - 1, kWrite);
}

template <int kDim, bool kCollect>
inline void AskForRows(const CacheView& cache, int count, LookupStage* stage) {
  const int64_t dim = kDim > 0 ? kDim : cache.dim;
  const int64_t useful_bytes = kRowHeaderBytes + (kCollect ? 4 * dim : 0);
  const TableView& table = cache.table;
  const HostGroup group;
  for (int i = 0; i < count; ++i) {
    const auto bucket = static_cast<int64_t>(stage->first[i]);
    const auto digest = static_cast<uint8_t>(stage->digests[i]);
    const uint64_t mask = group.match(table.digests + bucket * kBucketSlots, digest);
    stage->candidates[i] = mask;
    // In one bucket of five some other key has the same digest, so all candidates are asked for.
    for (uint64_t left = mask; left != 0; left &= left - 1) {
      const int64_t slot = bucket * kBucketSlots + LowestBit(left);
      PrefetchRow(RowAt(table, slot), useful_bytes);
      if (cache.keeps_stamps) __builtin_prefetch(table.marks + slot, 1);
    }
    if (mask == 0 && table.spilled[bucket] != 0) {
      __builtin_prefetch(table.digests + stage->second[i] * kBucketSlots);
    }
  }
}

inline int64_t SlotOf(const TableView& table, const LookupStage& stage, int i, uint64_t key) {
  const auto bucket = static_cast<int64_t>(stage.first[i]);
  for (uint64_t left = stage.candidates[i]; left != 0; left &= left - 1) {
    const int64_t slot = bucket * kBucketSlots + LowestBit(left);
    if (KeyAt(table, slot) == key) return slot;
  }
  if (table.spilled[bucket] == 0) return kNoSlot;
  const auto digest = static_cast<uint8_t>(stage.digests[i]);
  return FindInBucket(HostGroup{}, table, static_cast<int64_t>(stage.second[i]), digest, key);
}

inline const float* WeightsAt(const TableView& table, int64_t slot) {
  return reinterpret_cast<const float*>(RowAt(table, slot)) + kRowHeaderFloats;
}

template <int kDim, bool kCollect>
inline void CheckKeys(const CacheView& cache, WorkerBatch* worker, int64_t first, int count,
                      const LookupStage& stage) {
  const TableView& table = cache.table;
  const int64_t dim = kDim > 0 ? kDim : cache.dim;
  for (int i = 0; i < count; ++i) {
    const int64_t id = first + i;
    const int64_t slot = SlotOf(table, stage, i, worker->keys[id]);
    worker->slots[id] = slot;
    if (slot == kNoSlot) {
      worker->missing[worker->num_missing++] = static_cast<uint32_t>(id);
      continue;
    }
    if (cache.keeps_stamps) table.marks[slot] = Touched(table.marks[slot], cache.now);
    if (kCollect) {
      CopyColumns<kDim>(WeightsAt(table, slot), cache.dim, worker->values + id * dim);
    }
  }
}

// Writes collected embeddings to all their positions. Rows lie scattered over the table, but
// collected they are few and dense; so the large output is written front to back, from values in a
// near cache. Keys are numbered in order of first occurrence: as soon as the first ids are
// collected, the batch can be expanded up to the first occurrence of the next one.
template <int kDim, bool kStream>
class Expander {
 public:
  Expander(const WorkerBatch& worker, int dim, float* out)
      : worker_(worker), any_dim_(dim), out_(out) {}

  // Goes on while the values of ids below `num_collected` are enough.
  void UpTo(int64_t num_collected) {
    constexpr int64_t kAhead = 16;
    const int64_t dim = kDim > 0 ? kDim : any_dim_;
    float* values = worker_.values;
    const int64_t num_unique = worker_.num_unique;
    // An extra run is numbered after its owner came, so it is in time if its owner is.
    for (; next_extra_ < worker_.num_extra; ++next_extra_) {
      const int64_t owner = worker_.extra_owners[next_extra_];
      if (owner >= num_collected) break;
      CopyColumns<kDim>(values + owner * dim, any_dim_, values + (num_unique + next_extra_) * dim);
    }
    const auto num_waiting = static_cast<uint64_t>(num_unique - num_collected);
    const uint32_t* accumulators = worker_.accumulators;
    int64_t i = next_;
    for (; i < worker_.num_occurrences; ++i) {
      const int64_t number = accumulators[i];
      if (static_cast<uint64_t>(number - num_collected) < num_waiting) break;
      // What stands behind the last occurrence is 0, and harmless.
      const float* ahead = values + accumulators[i + kAhead] * dim;
      for (int64_t d = 0; d < dim; d += 16) __builtin_prefetch(ahead + d);
      float* dst = out_ + worker_.scan_positions[i] * dim;
      if constexpr (kStream) {
        StreamColumns<kDim>(values + number * dim, dst);
      } else {
        CopyColumns<kDim>(values + number * dim, any_dim_, dst);
      }
    }
    next_ = i;
  }

  void Finish() {
    UpTo(worker_.num_unique);
    if constexpr (kStream) EndStream();
  }

 private:
  const WorkerBatch& worker_;
  const int any_dim_;
  float* const out_;
  int64_t next_ = 0;
  int64_t next_extra_ = 0;
};

// Calls body with the expander that suits the output.
template <class Body>
inline void WithExpander(const WorkerBatch& worker, int32_t dim, float* out, Body body) {
  const bool is_large = worker.num_occurrences * dim >= kStreamedFloats;
  WithDim(dim, [&](auto lanes) {
    constexpr int kWidth = decltype(lanes)::kWidth;
    if constexpr (kWidth % 16 == 0 && kWidth > 0) {
      if (is_large && CanStream<kWidth>(out)) {
        Expander<kWidth, true> expander(worker, dim, out);
        return body(lanes, &expander);
      }
    }
    Expander<kWidth, false> expander(worker, dim, out);
    body(lanes, &expander);
  });
}

inline void Expand(const WorkerBatch& worker, int32_t dim, float* out) {
  WithExpander(worker, dim, out, [](auto, auto* expander) { expander->Finish(); });
}

// Looks up the window in groups, each a stage behind the next; after(num_checked) follows each
// group.
template <int kDim, bool kCollect, class After>
inline void FindWith(const CacheView& cache, WorkerBatch* worker, After after) {
  const int64_t begin = worker->window_begin;
  const int64_t total = worker->window_end - begin;
  const int64_t num_groups = (total + kGroup - 1) / kGroup;
  const auto length = [=](int64_t g) {
    return static_cast<int>(total - g * kGroup < kGroup ? total - g * kGroup : kGroup);
  };
  LookupStage stages[3];
  worker->num_missing = 0;
  for (int64_t g = 0; g < num_groups + 2; ++g) {
    if (g < num_groups) {
      AskForBuckets(cache.table, worker->keys + begin + g * kGroup, length(g), &stages[g % 3]);
    }
    if (g >= 1 && g - 1 < num_groups) {
      AskForRows<kDim, kCollect>(cache, length(g - 1), &stages[(g - 1) % 3]);
    }
    if (g >= 2) {
      CheckKeys<kDim, kCollect>(cache, worker, begin + (g - 2) * kGroup, length(g - 2),
                                stages[(g - 2) % 3]);
      after((g - 2) * kGroup + length(g - 2));
    }
  }
}

inline void Find(const CacheView& cache, WorkerBatch* worker) {
  FindWith<0, false>(cache, worker, [](int64_t) {});
}

// Looks up the whole batch and, as long as nothing is missing, writes the output on the way:
// waiting for memory to answer look-ups and writing to it go well together.
inline void FindAndExpand(const CacheView& cache, WorkerBatch* worker, float* out) {
  WithExpander(*worker, cache.dim, out, [&](auto lanes, auto* expander) {
    FindWith<decltype(lanes)::kWidth, true>(cache, worker, [&](int64_t num_checked) {
      if (num_checked % kExpandEvery == 0 && worker->num_missing == 0) expander->UpTo(num_checked);
    });
    if (worker->num_missing == 0) expander->Finish();
  });
}

inline void Collect(const CacheView& cache, const WorkerBatch& worker) {
  constexpr int64_t kAhead = 16;
  WithDim(cache.dim, [&](auto lanes) {
    for (int64_t id = worker.window_begin; id < worker.window_end; ++id) {
      if (id + kAhead < worker.window_end) {
        PrefetchRow(RowAt(cache.table, worker.slots[id + kAhead]), kRowHeaderBytes + 4 * cache.dim);
      }
      CopyColumns<decltype(lanes)::kWidth>(WeightsAt(cache.table, worker.slots[id]), cache.dim,
                                           worker.values + id * cache.dim);
    }
  });
}

// The rounds of reserve.h over one worker's missing keys.
struct ReserveRounds {
  const CacheView& cache;
  WorkerBatch* worker;
  HostGroup group = {};

  KeyPlace PlaceOf(int64_t entry) const {
    return PlaceOfHash(cache.table.shape, MixKey(worker->keys[worker->missing[entry]]));
  }

  bool IsPlaced(int64_t entry) const { return worker->slots[worker->missing[entry]] != kNoSlot; }

  // Offers pick(entry, place) -> slot to every key that has none yet; true if none is left.
  template <class Pick>
  bool Round(Pick pick) {
    bool complete = true;
    for (int64_t entry = 0; entry < worker->num_missing; ++entry) {
      if (IsPlaced(entry)) continue;
      const KeyPlace place = PlaceOf(entry);
      const int64_t slot = pick(entry, place);
      if (slot == kNoSlot) {
        complete = false;
        continue;
      }
      TakeSlot(cache.table, slot, place, cache.now, &worker->reservations[entry]);
      worker->slots[worker->missing[entry]] = slot;
      worker->order[worker->num_reserved++] = static_cast<uint32_t>(entry);
    }
    return complete;
  }

  bool Run() {
    const TableView& table = cache.table;
    const auto free_in = [&](int64_t bucket) { return FirstFree(group, table, bucket); };
    const auto victim_in = [&](int64_t bucket) {
      return ChooseVictim(group, table, bucket, cache.now);
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
  return ReserveRounds{cache, worker}.Run();
}

inline void Fill(const CacheView& cache, WorkerBatch* worker, const uint8_t* rows,
                 const uint8_t* found, float lr) {
  const TableView& table = cache.table;
  const int64_t row_bytes = table.shape.row_bytes;
  WithDim(cache.dim, [&](auto lanes) {
    for (int64_t entry = 0; entry < worker->num_missing; ++entry) {
      const int64_t id = worker->missing[entry];
      uint8_t* row = RowAt(table, worker->slots[id]);
      if (found[entry]) {
        __builtin_memcpy(row, rows + entry * row_bytes, static_cast<uint64_t>(row_bytes));
        continue;
      }
      __builtin_memset(row, 0, static_cast<uint64_t>(row_bytes));
      SetKeyAt(table, worker->slots[id], worker->keys[id]);
      auto* values = reinterpret_cast<float*>(row);
      InitializeWeights(lanes, cache.initializer, worker->keys[id], values + kRowHeaderFloats);
      StartState(lanes, cache.kind, values, lr, cache.numbers);
    }
  });
}

}  // namespace HPS_BUILD
}  // namespace hps
