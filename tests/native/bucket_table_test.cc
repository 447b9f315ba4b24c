// The bucket table under keys that all want the same buckets: rounds, pins, victims, undo.
//
// Above it: CTest. Below it: csrc/table through csrc/dram_cache. Keys are chosen by searching for
// those whose hash falls where the test needs them.
#include <cstdio>
#include <cstring>
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
  explicit Fixture(int64_t buckets, const char* instruction_set = "auto", int threads = 1)
      : pool(threads) {
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
    if (!Pin(keys, &plan)) return false;
    cache->Create(&plan, 0.1f);
    cache->Release(&plan);
    return true;
  }

  bool Pin(const std::vector<uint64_t>& keys, BatchPlan* batch) {
    cache->MakePlan(keys.data(), static_cast<int64_t>(keys.size()), batch);
    const int64_t missing = cache->Find(batch, 0, batch->num_unique());
    if (!cache->Reserve(batch)) return false;
    const std::vector<uint8_t> found(static_cast<size_t>(missing) + 1);
    const std::vector<uint8_t> rows(found.size() * 32);
    cache->Fill(batch, rows.data(), found.data(), 0.1f, false);
    return true;
  }

  ThreadPool pool;
  std::unique_ptr<DramCache> cache;
  BatchPlan plan;
};

// `count` keys whose first bucket is `first` (and second `second`, unless negative).
std::vector<uint64_t> KeysOfBucket(const TableShape& shape, int64_t first, int64_t second,
                                   size_t count) {
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; keys.size() < count; ++key) {
    const KeyPlace place = PlaceOfHash(shape, MixKey(key));
    if (place.first == first && (second < 0 || place.second == second)) keys.push_back(key);
  }
  return keys;
}

std::vector<uint64_t> Some(const std::vector<uint64_t>& keys, size_t first, size_t count) {
  return {keys.begin() + static_cast<int64_t>(first),
          keys.begin() + static_cast<int64_t>(first + count)};
}

int64_t CountStored(const DramCache& cache, const std::vector<uint64_t>& keys) {
  int64_t count = 0;
  for (const uint64_t key : keys) count += cache.Contains(key) != Presence::kAbsent;
  return count;
}

void TestFloodOfOneBucketUsesBothThenEvicts() {
  Fixture fixture(2);
  const auto keys = KeysOfBucket(fixture.cache->shape(), 0, 1, 200);
  HPS_CHECK(fixture.Store(Some(keys, 0, 60)));
  HPS_CHECK(fixture.cache->counters().second_bucket == 0);
  HPS_CHECK(fixture.Store(Some(keys, 60, 60)));
  HPS_CHECK(fixture.cache->counters().second_bucket > 0);
  HPS_CHECK(fixture.Store(Some(keys, 120, 8)));
  HPS_CHECK(fixture.cache->counters().evictions == 0);
  HPS_CHECK(CountStored(*fixture.cache, Some(keys, 0, 128)) == 128);  // load 1.0, all found
  HPS_CHECK(fixture.Store(Some(keys, 128, 72)));
  // Stored + evicted = inserted.
  HPS_CHECK(fixture.cache->counters().evictions == 72);
  HPS_CHECK(fixture.cache->num_rows() == 128);
  HPS_CHECK(CountStored(*fixture.cache, Some(keys, 128, 72)) == 72);
}

void TestPinnedRowsSurviveAndAFullTableRefuses() {
  Fixture fixture(2);
  const auto keys = KeysOfBucket(fixture.cache->shape(), 0, 1, 300);
  BatchPlan pinned;
  HPS_CHECK(fixture.Pin(Some(keys, 0, 128), &pinned));
  HPS_CHECK(!fixture.Store(Some(keys, 128, 1)));
  HPS_CHECK(fixture.cache->counters().refusals == 1);
  HPS_CHECK(CountStored(*fixture.cache, Some(keys, 0, 128)) == 128);
  HPS_CHECK(fixture.cache->num_pins() == 128);
  fixture.cache->Release(&pinned);
  HPS_CHECK(fixture.cache->num_pins() == 0);
  HPS_CHECK(fixture.Store(Some(keys, 128, 128)));
  HPS_CHECK(fixture.cache->counters().evictions == 0);  // fresh rows are dropped, not evicted
  HPS_CHECK(fixture.cache->num_rows() == 128);
}

void TestRefusedBatchLeavesNoTrace() {
  Fixture fixture(2);
  const auto keys = KeysOfBucket(fixture.cache->shape(), 0, -1, 400);
  HPS_CHECK(fixture.Store(Some(keys, 0, 100)));
  std::vector<uint8_t> before(100 * 32), after(100 * 32);
  int64_t cursor = 0;
  HPS_CHECK(fixture.cache->Scan(&cursor, false, 100, before.data()) == 100);
  HPS_CHECK(!fixture.Store(Some(keys, 50, 200)));  // 50 are here; 150 more than 128 - 50 slots
  cursor = 0;
  HPS_CHECK(fixture.cache->Scan(&cursor, false, 100, after.data()) == 100);
  HPS_CHECK(before == after);
  HPS_CHECK(fixture.cache->num_pins() == 0 && fixture.cache->num_rows() == 100);
  HPS_CHECK(fixture.cache->counters().second_bucket >= 0);
  HPS_CHECK(fixture.Store(Some(keys, 100, 28)));
  HPS_CHECK(CountStored(*fixture.cache, Some(keys, 0, 128)) == 128);
}

void TestCancelBringsVictimsBack() {
  Fixture fixture(2);
  const auto keys = KeysOfBucket(fixture.cache->shape(), 1, 0, 200);
  HPS_CHECK(fixture.Store(Some(keys, 0, 128)));
  const auto more = Some(keys, 128, 50);
  fixture.cache->MakePlan(more.data(), 50, &fixture.plan);
  HPS_CHECK(fixture.cache->Find(&fixture.plan, 0, 50) == 50);
  HPS_CHECK(fixture.cache->Reserve(&fixture.plan));
  HPS_CHECK(fixture.plan.num_victims == 50);  // created rows are dirty
  HPS_CHECK(fixture.cache->num_rows() == 78);
  fixture.cache->Cancel(&fixture.plan);
  HPS_CHECK(CountStored(*fixture.cache, Some(keys, 0, 128)) == 128);
  HPS_CHECK(CountStored(*fixture.cache, more) == 0);
  HPS_CHECK(fixture.cache->num_rows() == 128 && fixture.cache->num_dirty() == 128);
  HPS_CHECK(fixture.cache->num_pins() == 0 && fixture.cache->counters().evictions == 0);
}

void TestOldestRowGivesWayFirst() {
  Fixture fixture(2);
  const auto keys = KeysOfBucket(fixture.cache->shape(), 0, 1, 140);
  for (size_t i = 0; i < 128; ++i) HPS_CHECK(fixture.Store({keys[i]}));
  HPS_CHECK(fixture.Store({keys[0]}));  // used again: young, and used twice
  HPS_CHECK(fixture.Store({keys[128]}));
  HPS_CHECK(fixture.cache->Contains(keys[0]) != Presence::kAbsent);
  HPS_CHECK(fixture.cache->Contains(keys[1]) == Presence::kAbsent);
}

void TestMarksOfADroppedBatchEndWithAge() {
  SlotMark mark = {10, static_cast<uint8_t>(kWanted | kDirty | 3 << kFrequencyShift)};
  HPS_CHECK(FrequencyOf(mark) == 3);
  HPS_CHECK(Swept(mark, 10 + 100).flags == (kWanted | kDirty | 1 << kFrequencyShift));
  HPS_CHECK(Swept(mark, 10 + 192).flags == kDirty);
  HPS_CHECK(Touched(mark, 11).flags == (kDirty | 4 << kFrequencyShift));
  HPS_CHECK(Touched(mark, 10).flags == (kDirty | 3 << kFrequencyShift));
}

void TestEraseGivesSecondBucketBack() {
  Fixture fixture(2);
  const auto keys = KeysOfBucket(fixture.cache->shape(), 0, 1, 128);
  HPS_CHECK(fixture.Store(keys));
  std::vector<uint8_t> presence(128);
  HPS_CHECK(fixture.cache->Erase(keys.data(), 128, presence.data()).ok());
  HPS_CHECK(fixture.cache->num_rows() == 0 && CountStored(*fixture.cache, keys) == 0);
  const int64_t before = fixture.cache->counters().second_bucket;
  HPS_CHECK(fixture.Store(Some(keys, 0, 60)));
  HPS_CHECK(fixture.cache->counters().second_bucket == before);
}

void TestKeyReservedTwiceTakesOneSlot() {
  Fixture fixture(4);
  BatchPlan first, second;
  const std::vector<uint64_t> keys = {0, ~uint64_t{0}, uint64_t{1} << 63};
  HPS_CHECK(fixture.Pin(keys, &first));
  HPS_CHECK(fixture.Pin(keys, &second));
  HPS_CHECK(fixture.cache->num_fresh() == 3 && fixture.cache->num_pins() == 6);
  fixture.cache->Release(&first);
  fixture.cache->Release(&second);
  HPS_CHECK(fixture.cache->num_pins() == 0);
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
  hps::TestFloodOfOneBucketUsesBothThenEvicts();
  hps::TestPinnedRowsSurviveAndAFullTableRefuses();
  hps::TestRefusedBatchLeavesNoTrace();
  hps::TestCancelBringsVictimsBack();
  hps::TestOldestRowGivesWayFirst();
  hps::TestMarksOfADroppedBatchEndWithAge();
  hps::TestEraseGivesSecondBucketBack();
  hps::TestKeyReservedTwiceTakesOneSlot();
  hps::TestPlainMatchAgreesWithBytes();
  hps::TestChurnTakesTheSameSlotsEverywhere();
  std::puts("bucket_table_test: all passed");
  return 0;
}
