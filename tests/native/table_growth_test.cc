// The dram_cache's table grows as rows come: nothing is lost, plans keep their rows, and what would
// not fit a larger table stays in the smaller one.
//
// Above it: CTest. Below it: csrc/dram_cache over csrc/table.
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/check.h"
#include "dram_cache/dram_cache.h"
#include "table/table_shape.h"

namespace hps {
namespace {

constexpr int64_t kDim = 4;
constexpr int64_t kRowBytes = 32;
constexpr int64_t kBudget = int64_t{64} << 20;

using Keys = std::vector<uint64_t>;

int64_t SizeOf(const Keys& keys) { return static_cast<int64_t>(keys.size()); }

struct Lab {
  explicit Lab(int threads) : pool(threads) {
    DramCacheOptions options;
    options.layout = {OptimizerKind::kSgd, kDim};
    HPS_CHECK(options.layout.row_bytes() == kRowBytes);
    options.initializer = {InitializerKind::kUniform, -1.0f, 1.0f, 5};
    options.capacity_bytes = kBudget;
    HPS_CHECK(DramCache::Open(options, &pool, &cache).ok());
  }

  // Looks a batch up and takes slots for what is missing; false if it was refused.
  bool Reserve(const Keys& keys, BatchPlan* plan) {
    cache->MakePlan(keys.data(), SizeOf(keys), plan);
    cache->Find(plan, 0, -1);
    return cache->Reserve(plan);
  }

  // Missing rows come up as stored ones, such as Row makes them.
  void Fill(BatchPlan* plan) {
    const int64_t count = plan->num_missing();
    std::vector<uint8_t> rows(static_cast<size_t>(count * kRowBytes) + 1);
    for (int64_t i = 0; i < count; ++i) Row(plan->missing_keys.data()[i], &rows[i * kRowBytes]);
    const std::vector<uint8_t> found(static_cast<size_t>(count) + 1, 1);
    cache->Fill(plan, rows.data(), found.data(), 0.1f, false);
  }

  void Store(const Keys& keys) {
    HPS_CHECK(Reserve(keys, &plan));
    Fill(&plan);
    cache->Release(&plan);
  }

  static void Row(uint64_t key, uint8_t* row) {
    std::memset(row, 0, kRowBytes);
    std::memcpy(row, &key, sizeof(key));
    for (int i = 0; i < kDim; ++i) {
      const auto weight = static_cast<float>(key % 1000003 + static_cast<uint64_t>(i));
      std::memcpy(row + kRowBytes - 4 * (kDim - i), &weight, sizeof(weight));
    }
  }

  // Whether all keys are here with the weights that Row gives them plus `added`.
  void Check(const Keys& keys, float added) {
    std::vector<float> out(keys.size() * kDim);
    HPS_CHECK(cache->Pull(keys.data(), SizeOf(keys), &checked, {out.data(), kDim}) == 0);
    for (size_t i = 0; i < out.size(); ++i) {
      const auto weight = static_cast<float>(keys[i / kDim] % 1000003 + i % kDim);
      HPS_CHECK(out[i] == weight + added);
    }
  }

  ThreadPool pool;
  std::unique_ptr<DramCache> cache;
  BatchPlan plan;
  BatchPlan checked;
};

Keys KeysFrom(uint64_t first, int64_t count) {
  Keys keys(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) keys[i] = (first + static_cast<uint64_t>(i)) * 2654435761u;
  return keys;
}

void TestMemoryFollowsTheRowsAndHardlyAnyGivesWay(int threads) {
  Lab lab(threads);
  std::mt19937_64 random(7);
  HPS_CHECK(lab.cache->memory_bytes() < int64_t{5} << 20);
  int64_t grown = 0;
  uint64_t next = 0;
  while (next < 1200000) {
    const auto count = static_cast<int64_t>(1 + random() % 30000);
    const int64_t before = lab.cache->memory_bytes();
    lab.Store(KeysFrom(next, count));
    next += static_cast<uint64_t>(count);
    grown += lab.cache->memory_bytes() > before;
    const int64_t used = static_cast<int64_t>(next) * (kRowBytes + 4);
    HPS_CHECK(lab.cache->memory_bytes() < used * 13 / 10 + (int64_t{34} << 20));
    const int64_t evictions = lab.cache->counters().evictions;
    HPS_CHECK(lab.cache->num_rows() + evictions == static_cast<int64_t>(next));
    HPS_CHECK(evictions <= static_cast<int64_t>(next) / 1000);  // both buckets of a key were full
  }
  HPS_CHECK(grown > 3);
  std::vector<uint8_t> rows(static_cast<size_t>(next) * kRowBytes);
  int64_t cursor = 0;
  const int64_t count = lab.cache->Scan(&cursor, false, static_cast<int64_t>(next), rows.data());
  HPS_CHECK(count == lab.cache->num_rows());
  for (int64_t i = 0; i < count; ++i) {
    uint64_t key = 0;
    uint8_t expected[kRowBytes];
    std::memcpy(&key, &rows[i * kRowBytes], sizeof(key));
    Lab::Row(key, expected);
    HPS_CHECK(std::memcmp(expected, &rows[i * kRowBytes], kRowBytes) == 0);
    HPS_CHECK(lab.cache->Contains(key) == Presence::kStored);
  }
}

void TestTheBudgetIsUsedWholeAndNotExceeded() {
  Lab lab(2);
  const int64_t slots = lab.cache->shape().num_slots();
  for (uint64_t next = 0; next < static_cast<uint64_t>(slots) * 5 / 4; next += 50000) {
    lab.Store(KeysFrom(next, 50000));
  }
  HPS_CHECK(lab.cache->num_rows() > slots * 98 / 100);
  HPS_CHECK(lab.cache->counters().evictions > 0);
  HPS_CHECK(lab.cache->memory_bytes() <= kBudget);
}

void TestPlansKeepTheirRowsWhileTheTableGrows() {
  Lab lab(2);
  const Keys old = KeysFrom(0, 50000);
  lab.Store(old);
  BatchPlan updated, filled, cancelled, taken;
  const Keys updated_keys = KeysFrom(10000, 20000);
  HPS_CHECK(lab.Reserve(updated_keys, &updated));
  lab.Fill(&updated);
  const Keys filled_keys = KeysFrom(45000, 10000);
  HPS_CHECK(lab.Reserve(filled_keys, &filled));
  const Keys cancelled_keys = KeysFrom(60000, 10000);
  HPS_CHECK(lab.Reserve(cancelled_keys, &cancelled));
  const int64_t before = lab.cache->memory_bytes();
  lab.Store(KeysFrom(100000, 300000));
  HPS_CHECK(lab.cache->memory_bytes() > 2 * before);
  HPS_CHECK(lab.cache->num_pins() == 40000);

  lab.cache->Cancel(&cancelled);
  for (const uint64_t key : cancelled_keys) {
    HPS_CHECK(lab.cache->Contains(key) == Presence::kAbsent);
  }
  lab.Fill(&filled);
  std::vector<float> gradients(updated_keys.size() * kDim, -10.0f);
  HPS_CHECK(lab.cache->SumGradients(&updated, gradients.data()) == -1);
  lab.cache->Apply(&updated, 0.5f);
  lab.Check(updated_keys, 5.0f);
  lab.Check(filled_keys, 0);
  HPS_CHECK(lab.cache->num_dirty() == SizeOf(updated_keys));
  lab.cache->Release(&updated);
  lab.cache->Release(&filled);
  HPS_CHECK(lab.cache->num_pins() == 0);
  // What was cancelled can come again, and everything can give way: no pin stayed anywhere.
  lab.Store(cancelled_keys);
  lab.Check(cancelled_keys, 0);
  HPS_CHECK(lab.cache->num_rows() == 355000 + 10000);
  uint8_t presence[1];
  HPS_CHECK(lab.cache->Erase(updated_keys.data(), 1, presence).ok());
  HPS_CHECK(presence[0] == static_cast<uint8_t>(Presence::kStoredDirty));
}

// `count` keys whose two buckets in a table of this shape are the same. Their second ones straddle
// two of a table with half the buckets.
Keys KeysOfTwoBuckets(const TableShape& shape, int64_t count) {
  std::mt19937_64 random(3);
  Keys keys;
  const auto buckets = static_cast<uint64_t>(shape.buckets_per_part);
  const uint64_t straddling = (buckets - 1) / 2 - 1;
  while (SizeOf(keys) < count) {
    const uint64_t low = ((straddling << 32) + random() % (uint64_t{1} << 32)) / (buckets - 1);
    // Part 0: the top bits are zero, then come 32 that choose the first bucket; its lowest are the
    // highest of the 32 that choose the second.
    const int shared = shape.part_bits;
    const uint64_t first = (uint64_t{7} << 31) / buckets >> shared << shared | low >> (32 - shared);
    const uint64_t varied = first + (random() % 1000 << shared);
    const uint64_t hash = varied << (32 - shared) | (low & ((uint64_t{1} << (32 - shared)) - 1));
    const KeyPlace place = PlaceOfHash(shape, hash);
    if (!keys.empty()) {
      const KeyPlace wanted = PlaceOfHash(shape, MixKey(keys[0]));
      if (place.first != wanted.first || place.second != wanted.second) continue;
    }
    keys.push_back(UnmixKey(hash));
  }
  return keys;
}

void TestRowsThatWouldNotFitALargerTableStay() {
  Lab lab(2);
  const TableShape first = FirstShape(lab.cache->shape());
  const int64_t before = lab.cache->memory_bytes();
  const TableShape next = ShapeForRows(first, lab.cache->shape(), first.num_slots() * 7 / 8 + 1);
  const Keys chosen = KeysOfTwoBuckets(next, 150);
  BatchPlan pinned;
  HPS_CHECK(lab.Reserve(chosen, &pinned));
  lab.Fill(&pinned);
  for (uint64_t i = 0; i < 20; ++i) lab.Store(KeysFrom(i * 5000, 5000));
  lab.Store(KeysFrom(100000, 5000));
  HPS_CHECK(lab.cache->memory_bytes() == before);  // refused
  lab.Check(chosen, 0);
  lab.cache->Release(&pinned);
  for (uint64_t i = 0; i < 100; ++i) lab.Store(KeysFrom(200000 + i * 5000, 5000));
  HPS_CHECK(lab.cache->memory_bytes() > before);
  lab.Check(KeysFrom(650000, 50000), 0);
}

void TestRowsWhoseFirstBucketIsFullGoToTheirSecond() {
  Lab lab(2);
  const TableShape first = FirstShape(lab.cache->shape());
  const int64_t before = lab.cache->memory_bytes();
  const TableShape next = ShapeForRows(first, lab.cache->shape(), first.num_slots() * 7 / 8 + 1);
  const Keys chosen = KeysOfTwoBuckets(next, 100);
  BatchPlan pinned;
  HPS_CHECK(lab.Reserve(chosen, &pinned));
  lab.Fill(&pinned);
  for (uint64_t i = 0; i < 19; ++i) lab.Store(KeysFrom(i * 5000, 5000));
  HPS_CHECK(lab.cache->memory_bytes() == before);
  // One by one, so that no other key of that bucket comes with the growth.
  for (uint64_t i = 95000; lab.cache->memory_bytes() == before; ++i) lab.Store(KeysFrom(i, 1));
  lab.Check(chosen, 0);
  // Pinned rows stay, whatever is to give way.
  for (uint64_t i = 0; i < 45; ++i) lab.Store(KeysFrom(1000000 + i * 50000, 50000));
  HPS_CHECK(lab.cache->counters().evictions > 100000);
  lab.Check(chosen, 0);
  lab.cache->Release(&pinned);
}

void TestGrowthsAreCounted() {
  Lab lab(2);
  lab.Store(KeysFrom(0, 50000));
  const int64_t before = lab.cache->memory_bytes();
  const uint64_t growths = lab.cache->num_growths();
  lab.Store(KeysFrom(0, 50000));
  HPS_CHECK(lab.cache->num_growths() == growths && lab.cache->memory_bytes() == before);
  lab.Store(KeysFrom(50000, 200000));
  HPS_CHECK(lab.cache->num_growths() > growths && lab.cache->memory_bytes() > before);
}

void TestABatchIsLookedUpAgainOnlyWhereSlotsMayHaveMoved() {
  Lab lab(2);
  DramCache& cache = *lab.cache;
  lab.Store(KeysFrom(0, 1000));
  const Keys keys = KeysFrom(500, 1000);
  BatchPlan plan;
  cache.MakePlan(keys.data(), SizeOf(keys), &plan);
  HPS_CHECK(cache.Find(&plan, 0, -1) == 500);
  const int64_t misses = cache.counters().misses;
  HPS_CHECK(cache.Find(&plan, 0, -1) == 500 && cache.counters().misses == misses);
  lab.Store(KeysFrom(1000, 200));
  const int64_t later = cache.counters().misses;
  HPS_CHECK(cache.Find(&plan, 0, -1) == 300 && cache.counters().misses == later + 300);
  HPS_CHECK(cache.Reserve(&plan));
  lab.Fill(&plan);
  cache.Release(&plan);
  HPS_CHECK(cache.Find(&plan, 0, -1) == 0);
  uint8_t presence = 0;
  HPS_CHECK(cache.Erase(keys.data(), 1, &presence).ok());
  HPS_CHECK(cache.Find(&plan, 0, -1) == 1);
}

}  // namespace
}  // namespace hps

int main() {
  for (const int threads : {1, 3}) hps::TestMemoryFollowsTheRowsAndHardlyAnyGivesWay(threads);
  hps::TestTheBudgetIsUsedWholeAndNotExceeded();
  hps::TestPlansKeepTheirRowsWhileTheTableGrows();
  hps::TestRowsThatWouldNotFitALargerTableStay();
  hps::TestRowsWhoseFirstBucketIsFullGoToTheirSecond();
  hps::TestGrowthsAreCounted();
  hps::TestABatchIsLookedUpAgainOnlyWhereSlotsMayHaveMoved();
  std::puts("table_growth_test: all passed");
  return 0;
}
