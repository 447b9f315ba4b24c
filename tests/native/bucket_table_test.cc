// The bucket table of the dram_cache: marks that age, and the same slots for every instruction set
// and number of threads.
//
// Above it: CTest. Below it: csrc/table through csrc/dram_cache. What both caches promise, rounds,
// pins, victims and undo, is in gpu_table_test.cc.
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "common/check.h"
#include "dram_cache/dram_cache.h"
#include "table/host_group.h"

namespace hps {
namespace {

constexpr int64_t kDim = 4;

struct Fixture {
  Fixture(int64_t buckets, const char* instruction_set, int threads) : pool(threads) {
    DramCacheOptions options;
    options.layout = {OptimizerKind::kSgd, kDim};
    options.initializer = {InitializerKind::kUniform, -1.0f, 1.0f, 5};
    options.capacity_bytes = buckets * (kBucketSlots * (options.layout.row_bytes() + 4) + 1) + 4160;
    options.instruction_set = instruction_set;
    const Status status = DramCache::Open(options, &pool, &cache);
    HPS_CHECK(status.ok());
    HPS_CHECK(cache->shape().num_buckets() == buckets);
  }

  // Brings keys in as stored rows, without pinning them on; false if the batch was refused.
  bool Store(const std::vector<uint64_t>& keys) {
    cache->MakePlan(keys.data(), static_cast<int64_t>(keys.size()), &plan);
    const int64_t missing = cache->Find(&plan, 0, plan.num_unique());
    if (!cache->Reserve(&plan)) return false;
    const std::vector<uint8_t> found(static_cast<size_t>(missing) + 1);
    const std::vector<uint8_t> rows(found.size() * 32);
    cache->Fill(&plan, rows.data(), found.data(), 0.1f, false);
    cache->Create(&plan, 0.1f);
    cache->Release(&plan);
    return true;
  }

  ThreadPool pool;
  std::unique_ptr<DramCache> cache;
  BatchPlan plan;
};

int64_t CountStored(const DramCache& cache, const std::vector<uint64_t>& keys) {
  int64_t count = 0;
  for (const uint64_t key : keys) count += cache.Contains(key) != Presence::kAbsent;
  return count;
}

void TestMarksOfADroppedBatchEndWithAge() {
  SlotMark mark = {10, static_cast<uint8_t>(kWanted | kDirty | 3 << kFrequencyShift)};
  HPS_CHECK(FrequencyOf(mark) == 3);
  HPS_CHECK(Swept(mark, 10 + 100).flags == (kWanted | kDirty | 1 << kFrequencyShift));
  HPS_CHECK(Swept(mark, 10 + 192).flags == kDirty);
  HPS_CHECK(Touched(mark, 11).flags == (kDirty | 4 << kFrequencyShift));
  HPS_CHECK(Touched(mark, 10).flags == (kDirty | 3 << kFrequencyShift));
}

// Rounds of churn at load 1.0: the same slots for every instruction set and thread count.
std::vector<uint8_t> Churn(const char* instruction_set, int threads, uint64_t seed) {
  Fixture fixture(512, instruction_set, threads);
  std::mt19937_64 random(seed);
  int64_t inserted = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<uint64_t> keys(random() % 9000);
    for (uint64_t& key : keys) key = random() % 80000;
    HPS_CHECK(fixture.Store(keys));
    HPS_CHECK(CountStored(*fixture.cache, keys) == static_cast<int64_t>(keys.size()));
    inserted += fixture.plan.num_missing();
    HPS_CHECK(fixture.cache->num_rows() + fixture.cache->counters().evictions == inserted);
  }
  HPS_CHECK(fixture.cache->num_rows() > fixture.cache->shape().num_slots() * 99 / 100);
  HPS_CHECK(fixture.cache->counters().evictions > 100000);
  std::vector<uint8_t> rows(static_cast<size_t>(fixture.cache->num_rows()) * 32);
  int64_t cursor = 0;
  fixture.cache->Scan(&cursor, false, fixture.cache->num_rows(), rows.data());
  return rows;
}

void TestChurnTakesTheSameSlotsEverywhere() {
  const uint64_t seed = 20260718;
  std::printf("churn seed %llu\n", static_cast<unsigned long long>(seed));
  const auto expected = Churn("plain", 1, seed);
  for (const char* instruction_set : {"plain", "auto"}) {
    for (const int threads : {1, 3}) HPS_CHECK(Churn(instruction_set, threads, seed) == expected);
  }
}

void TestPlainMatchAgreesWithBytes() {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    uint8_t bytes[64];
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 4 * 85);
    const auto value = static_cast<uint8_t>(random() % 4 * 85);
    uint64_t expected = 0;
    for (int i = 0; i < 64; ++i) expected |= uint64_t{bytes[i] == value} << i;
    HPS_CHECK(HostGroup{}.match(bytes, value) == expected);
  }
}

}  // namespace
}  // namespace hps

int main() {
  hps::TestMarksOfADroppedBatchEndWithAge();
  hps::TestPlainMatchAgreesWithBytes();
  hps::TestChurnTakesTheSameSlotsEverywhere();
  std::puts("bucket_table_test: all passed");
  return 0;
}
