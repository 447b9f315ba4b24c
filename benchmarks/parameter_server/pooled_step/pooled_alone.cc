// A pooled step whose keys cost nothing: the sums and updates that any table has to make, no more.
//
// Which row each occurrence reads, and which bags each row is in, is known before the clock starts:
// no key is hashed, numbered or found; or, where that is asked for, each by one hash and one probe,
// the least that any hash table costs: an entry of a table of numbers and the key behind it an
// occurrence, a line of digests a distinct row. Forward copies each distinct row once into dense
// memory, and sums bags from there; backward sums the bags' gradients a row, and steps the row by
// row-wise Adagrad. Rows are asked for ahead. Every thread takes a contiguous part of the rows and
// of the bags of each table, the best case. Above it: pooled_alone.py (ctypes). Below it:
// spinning_threads.h.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "../../common/spinning_threads.h"

namespace {

constexpr int64_t kAhead = 24;  // rows
constexpr int64_t kSumsAhead = 16;
constexpr int kMostLanes = 16;
constexpr int64_t kLine = 64;
constexpr int64_t kFirstWeight = 4;  // floats of a header: the key, and the accumulator
constexpr int64_t kAccumulator = 2;
constexpr float kRate = 0.01F;

// What a step does to one table. Arrays of all batches lie one after another; `starts`,
// [num_batches + 1] each, say where.
struct Work {
  int64_t dim;
  float* rows;
  int64_t stride;        // floats of a row
  const int64_t* slots;  // of the distinct rows
  const int64_t* slot_starts;
  const int32_t* numbers;  // of the row of each occurrence, among the distinct ones of its batch
  const int32_t* offsets;  // [num_bags + 1] of the bags in `numbers`, of each batch
  const int64_t* number_starts;
  const int32_t* bags;         // of the occurrences of each row
  const int32_t* bag_offsets;  // [distinct + 1] of the rows in `bags`, of each batch
  int64_t num_bags;
  const uint64_t* keys;           // of each occurrence, as `numbers`
  const uint64_t* distinct_keys;  // as `slots`
  const int32_t* entries;         // [num_batches][num_entries] numbers of keys, by their hashes
  int64_t num_entries;            // a power of two
  const uint8_t* digests;         // [num_buckets][64]
  int64_t num_buckets;
  int32_t* found;          // [most occurrences] numbers
  float* values;           // [most distinct rows, dim]
  float* out;              // [num_bags, dim]
  const float* gradients;  // [num_bags, dim]
};

void PrefetchRow(const Work& work, int64_t slot) {
  const auto* row = reinterpret_cast<const char*>(work.rows + slot * work.stride);
  const int64_t bytes = work.stride * static_cast<int64_t>(sizeof(float));
  for (int64_t b = 0; b < bytes; b += kLine) __builtin_prefetch(row + b, 1);
  __builtin_prefetch(row + bytes - 1, 1);
}

uint64_t HashOf(uint64_t key) {
  key ^= key >> 33;
  key *= 0xff51afd7ed558ccdULL;
  key ^= key >> 33;
  key *= 0xc4ceb9fe1a85ec53ULL;
  return key ^ key >> 33;
}

// Where two keys have the same entry one of them has the other's number: it costs what it would.
void FindNumbers(const Work& work, int64_t batch, int64_t first, int64_t last) {
  const uint64_t* keys = work.keys + work.number_starts[batch];
  const uint64_t* distinct = work.distinct_keys + work.slot_starts[batch];
  const int32_t* entries = work.entries + batch * work.num_entries;
  const auto mask = static_cast<uint64_t>(work.num_entries - 1);
  for (int64_t i = first; i < last; ++i) {
    __builtin_prefetch(entries + (HashOf(keys[i + kSumsAhead]) & mask));
    const int32_t number = entries[HashOf(keys[i]) & mask];
    work.found[i] = distinct[number] == keys[i] ? number : 0;
  }
}

// Compares the digests of each distinct key's bucket with its own; returns what none can leave out.
int64_t FindRows(const Work& work, int64_t batch, int64_t first, int64_t last) {
  const uint64_t* keys = work.distinct_keys + work.slot_starts[batch];
  const auto line_of = [&](uint64_t hash) {
    return work.digests + ((hash >> 32) * static_cast<uint64_t>(work.num_buckets) >> 32) * kLine;
  };
  int64_t num_same = 0;
  for (int64_t i = first; i < last; ++i) {
    if (i + kAhead < last) __builtin_prefetch(line_of(HashOf(keys[i + kAhead])));
    const uint64_t hash = HashOf(keys[i]);
    using Line = uint8_t __attribute__((vector_size(kLine)));
    const auto digest = static_cast<uint8_t>(hash);
    const Line same = (*reinterpret_cast<const Line*>(line_of(hash)) == digest) & 1;
    num_same += same[hash >> 8 & (kLine - 1)];
  }
  return num_same;
}

template <int kDim>
void CopyRows(const Work& work, const int64_t* slots, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    if (i + kAhead < last) PrefetchRow(work, slots[i + kAhead]);
    const float* row = work.rows + slots[i] * work.stride + kFirstWeight;
    std::copy_n(row, kDim, work.values + i * kDim);
  }
}

template <int kDim>
void SumInto(float* sum, const float* values, const int32_t* places, int64_t first, int64_t last) {
  constexpr int kLanes = std::min(kDim, kMostLanes);
  using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));
  Vector total[kDim / kLanes] = {};
  for (int64_t i = first; i < last; ++i) {
    // Places lie one after another over bags and rows, and some are left after the last.
    const float* ahead = values + static_cast<int64_t>(places[i + kSumsAhead]) * kDim;
    for (int d = 0; d < kDim; d += kMostLanes) __builtin_prefetch(ahead + d);
    const float* value = values + static_cast<int64_t>(places[i]) * kDim;
#pragma GCC unroll 8
    for (int d = 0; d < kDim / kLanes; ++d) {
      total[d] += *reinterpret_cast<const Vector*>(value + d * kLanes);
    }
  }
#pragma GCC unroll 8
  for (int d = 0; d < kDim / kLanes; ++d) {
    *reinterpret_cast<Vector*>(sum + d * kLanes) = total[d];
  }
}

template <int kDim>
void PoolBags(const Work& work, int64_t batch, int64_t first, int64_t last) {
  const int32_t* numbers = work.numbers + work.number_starts[batch];
  const int32_t* offsets = work.offsets + batch * (work.num_bags + 1);
  for (int64_t bag = first; bag < last; ++bag) {
    SumInto<kDim>(work.out + bag * kDim, work.values, numbers, offsets[bag], offsets[bag + 1]);
  }
}

template <int kDim>
void StepRows(const Work& work, int64_t batch, int64_t first, int64_t last) {
  const int64_t* slots = work.slots + work.slot_starts[batch];
  const int32_t* bags = work.bags + work.number_starts[batch];
  const int32_t* offsets = work.bag_offsets + work.slot_starts[batch] + batch;
  alignas(64) float sum[kDim];
  for (int64_t i = first; i < last; ++i) {
    if (i + kAhead < last) PrefetchRow(work, slots[i + kAhead]);
    SumInto<kDim>(sum, work.gradients, bags, offsets[i], offsets[i + 1]);
    float squares = 0;
    for (int d = 0; d < kDim; ++d) squares += sum[d] * sum[d];
    float* row = work.rows + slots[i] * work.stride;
    row[kAccumulator] += squares / kDim;
    const float scale = kRate / (std::sqrt(row[kAccumulator]) + 1e-8F);
    for (int d = 0; d < kDim; ++d) row[kFirstWeight + d] -= scale * sum[d];
  }
}

// The phases of one table.
struct Phases {
  void (*copy)(const Work&, const int64_t* slots, int64_t first, int64_t last);
  void (*pool)(const Work&, int64_t batch, int64_t first, int64_t last);
  void (*step)(const Work&, int64_t batch, int64_t first, int64_t last);
};

template <int kDim>
constexpr Phases kPhases = {CopyRows<kDim>, PoolBags<kDim>, StepRows<kDim>};

const Phases* PhasesOf(int64_t dim) {
  switch (dim) {
    case 8:
      return &kPhases<8>;
    case 16:
      return &kPhases<16>;
    case 32:
      return &kPhases<32>;
    case 64:
      return &kPhases<64>;
    case 128:
      return &kPhases<128>;
    default:
      return nullptr;
  }
}

}  // namespace

// Median seconds of a step over the batches in turn; below 0 for a dim that there is no loop for.
// Keys cost nothing unless `finds` is not 0.
extern "C" double pooled_alone(const Work* tables, int num_tables, int num_batches, int num_threads,
                               int num_steps, int finds) {
  std::vector<const Phases*> phases;
  for (int i = 0; i < num_tables; ++i) {
    phases.push_back(PhasesOf(tables[i].dim));
    if (phases.back() == nullptr) return -1;
  }
  Barrier barrier(num_threads);
  std::vector<double> seconds(num_steps);
  std::vector<int64_t> num_same(num_threads);
  const auto run = [&](int worker) {
    const auto part = [&](int64_t whole) {
      return std::pair(whole * worker / num_threads, whole * (worker + 1) / num_threads);
    };
    for (int i = 0; i < num_steps; ++i) {
      const int64_t batch = i % num_batches;
      const auto rows_of = [&](const Work& work) {
        return part(work.slot_starts[batch + 1] - work.slot_starts[batch]);
      };
      barrier.Wait();
      const auto start = std::chrono::steady_clock::now();
      for (int j = 0; j < num_tables; ++j) {
        const auto [first, last] = rows_of(tables[j]);
        if (finds != 0) {
          const int32_t* offsets = tables[j].offsets + batch * (tables[j].num_bags + 1);
          const auto [first_key, last_key] = part(offsets[tables[j].num_bags]);
          FindNumbers(tables[j], batch, first_key, last_key);
          num_same[worker] += FindRows(tables[j], batch, first, last);
        }
        phases[j]->copy(tables[j], tables[j].slots + tables[j].slot_starts[batch], first, last);
      }
      barrier.Wait();
      for (int j = 0; j < num_tables; ++j) {
        const auto [first, last] = part(tables[j].num_bags);
        phases[j]->pool(tables[j], batch, first, last);
      }
      barrier.Wait();
      for (int j = 0; j < num_tables; ++j) {
        const auto [first, last] = rows_of(tables[j]);
        phases[j]->step(tables[j], batch, first, last);
      }
      barrier.Wait();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (worker == 0) seconds[i] = taken.count();
    }
  };
  RunOnThreads(num_threads, run);
  if (std::any_of(num_same.begin(), num_same.end(), [](int64_t same) { return same < 0; }))
    return -1;
  return MedianOf(std::move(seconds));
}
