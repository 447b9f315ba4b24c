// The tables of dram_cache and gpu_cache under the same tests: host threads, and the device's own
// text on emulated lanes.
//
// Above it: CTest. Below it: gpu_cache_lab.h.
#include "gpu_cache_lab.h"

namespace hps {
namespace {

template <class Lab>
void FloodOfOneBucketUsesBothThenEvicts(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, 1, 200);
  HPS_CHECK(Store(lab, Some(keys, 0, 60)));
  HPS_CHECK(lab.counters().second_bucket == 0);
  HPS_CHECK(Store(lab, Some(keys, 60, 60)));
  HPS_CHECK(lab.counters().second_bucket > 0);
  HPS_CHECK(Store(lab, Some(keys, 120, 8)));
  HPS_CHECK(lab.counters().evictions == 0);
  HPS_CHECK(CountHere(lab, Some(keys, 0, 128)) == 128);  // load 1.0, all found
  HPS_CHECK(Store(lab, Some(keys, 128, 72)));
  // Stored + evicted = inserted.
  HPS_CHECK(lab.counters().evictions == 72 && lab.num_rows() == 128);
  HPS_CHECK(CountHere(lab, Some(keys, 128, 72)) == 72);
}

template <class Lab>
void PinnedRowsSurviveAndAFullTableRefuses(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, 1, 300);
  typename Lab::Plan pinned;
  HPS_CHECK(Pin(lab, Some(keys, 0, 128), &pinned));
  HPS_CHECK(!Store(lab, Some(keys, 128, 1)));
  HPS_CHECK(lab.counters().refusals == 1);
  HPS_CHECK(CountHere(lab, Some(keys, 0, 128)) == 128 && lab.num_pins() == 128);
  lab->Release(&pinned);
  HPS_CHECK(lab.num_pins() == 0);
  HPS_CHECK(Store(lab, Some(keys, 128, 128)));
  // Fresh rows are dropped, not evicted.
  HPS_CHECK(lab.counters().evictions == 0 && lab.num_rows() == 128);
}

template <class Lab>
void RefusedBatchLeavesNoTrace(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, -1, 400);
  HPS_CHECK(Store(lab, Some(keys, 0, 100)));
  const auto before = lab.StoredRows();
  HPS_CHECK(!Store(lab, Some(keys, 50, 200)));  // 50 are here; 150 more than 128 - 50 slots
  HPS_CHECK(lab.counters().refusals == 1);
  HPS_CHECK(lab.StoredRows() == before && lab.num_pins() == 0);
  HPS_CHECK(CountHere(lab, Some(keys, 150, 100)) == 0);
  HPS_CHECK(Store(lab, Some(keys, 100, 28)));
  HPS_CHECK(CountHere(lab, Some(keys, 0, 128)) == 128);
}

template <class Lab>
void BatchLargerThanTheCacheIsRefused(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, -1, 129);
  HPS_CHECK(lab->shape().num_slots() == 128);
  HPS_CHECK(!Store(lab, keys));
  HPS_CHECK(lab.counters().refusals == 1 && lab.num_pins() == 0 && lab.num_fresh() == 0);
  HPS_CHECK(CountHere(lab, keys) == 0);
  HPS_CHECK(Store(lab, Some(keys, 0, 128)));
}

template <class Lab>
void CancelBringsVictimsBack(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 1, 0, 200);
  HPS_CHECK(Store(lab, Some(keys, 0, 128)));
  const auto before = lab.StoredRows();
  const int64_t spilled = lab.counters().second_bucket;
  typename Lab::Plan plan;
  HPS_CHECK(Take(lab, Some(keys, 128, 50), &plan));
  HPS_CHECK(Lab::NumVictims(plan) == 50 && lab.num_rows() == 78);  // created rows are dirty
  lab->Cancel(&plan);
  HPS_CHECK(lab.StoredRows() == before && CountHere(lab, Some(keys, 128, 50)) == 0);
  HPS_CHECK(lab.num_rows() == 128 && lab.num_dirty() == 128 && lab.num_pins() == 0);
  HPS_CHECK(lab.counters().evictions == 0 && lab.counters().second_bucket == spilled);
}

template <class Lab>
void OldestRowGivesWayFirst(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, 1, 140);
  for (size_t i = 0; i < 128; ++i) HPS_CHECK(Store(lab, {keys[i]}));
  HPS_CHECK(Store(lab, {keys[0]}));  // used again: young, and used twice
  HPS_CHECK(Store(lab, {keys[128]}));
  HPS_CHECK(lab.counters().evictions == 1);
  HPS_CHECK(lab.PresenceOf(keys[0]) != 0 && lab.PresenceOf(keys[1]) == 0);
}

template <class Lab>
void WantedRowsGiveWayLastUntilTheyAreUsed(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, 1, 400);
  for (size_t i = 0; i < 128; ++i) HPS_CHECK(Store(lab, {keys[i]}));
  typename Lab::Plan wanted;
  lab->MakePlan(keys.data(), 100, &wanted);  // the oldest rows
  lab->Want(&wanted);
  for (size_t i = 128; i < 156; ++i) HPS_CHECK(Store(lab, {keys[i]}));
  HPS_CHECK(CountHere(lab, Some(keys, 0, 100)) == 100);
  HPS_CHECK(lab.counters().evictions == 28 && lab.counters().spared > 0);
  HPS_CHECK(Store(lab, Some(keys, 0, 40)));    // used: their marks end
  HPS_CHECK(Store(lab, Some(keys, 156, 44)));  // all that nobody wants in the keys' bucket
  HPS_CHECK(CountHere(lab, Some(keys, 40, 60)) == 60 && CountHere(lab, Some(keys, 0, 40)) == 0);
  // A refused batch has spared nothing, whatever gave way to it before it was refused.
  typename Lab::Plan pinned;
  HPS_CHECK(Pin(lab, Some(keys, 156, 44), &pinned));
  const int64_t spared = lab.counters().spared;
  HPS_CHECK(!Store(lab, Some(keys, 200, 85)) && lab.counters().spared == spared);
  lab->Release(&pinned);
  HPS_CHECK(Store(lab, Some(keys, 200, 24)) && lab.counters().spared > spared);
  // Where all are wanted, a wanted one gives way after all: nothing is refused.
  HPS_CHECK(Store(lab, Some(keys, 224, 128)));
  HPS_CHECK(CountHere(lab, Some(keys, 224, 128)) == 128);
}

// Window by window of one plan, as a batch is worked off that does not fit at once.
template <class Lab>
void SparedRowsAreCountedOnceForEachThatGivesWay(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, 1, 168);
  for (size_t i = 0; i < 128; ++i) HPS_CHECK(Store(lab, {keys[i]}));
  typename Lab::Plan wanted, plan;
  lab->MakePlan(keys.data(), 20, &wanted);  // the oldest of the keys' first bucket
  lab->Want(&wanted);
  lab->MakePlan(keys.data() + 128, 40, &plan);
  for (const int64_t first : {0, 20}) {
    lab->Find(&plan, first, 20);
    HPS_CHECK(lab->Reserve(&plan));
    FillFresh(lab, &plan);
    lab->Release(&plan);
  }
  HPS_CHECK(lab.counters().evictions == 40 && lab.counters().spared == 40);
}

// While there is room nothing gives way, and a use would not take the mark off again.
template <class Lab>
void NothingIsMarkedWhileThereIsRoom(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, 1, 200);
  HPS_CHECK(Store(lab, Some(keys, 0, 100)));
  typename Lab::Plan wanted;
  lab->MakePlan(keys.data(), 60, &wanted);
  lab->Want(&wanted);
  for (size_t i = 100; i < 200; ++i) HPS_CHECK(Store(lab, {keys[i]}));
  HPS_CHECK(lab.counters().evictions == 72 && lab.counters().spared == 0);
}

template <class Lab>
void EraseGivesSecondBucketBack(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, 1, 128);
  HPS_CHECK(Store(lab, keys));
  std::vector<uint8_t> presence(128);
  if constexpr (requires { lab->args(); }) {
    HPS_CHECK(lab->args().table.spilled[0] > 0);
  }
  HPS_CHECK(lab->Erase(keys.data(), 128, presence.data()).ok());
  HPS_CHECK(lab.num_rows() == 0 && lab.num_dirty() == 0 && CountHere(lab, keys) == 0);
  if constexpr (requires { lab->args(); }) HPS_CHECK(lab->args().table.spilled[0] == 0);
  const int64_t before = lab.counters().second_bucket;
  HPS_CHECK(Store(lab, Some(keys, 0, 60)));
  HPS_CHECK(lab.counters().second_bucket == before);
}

template <class Lab>
void EraseOfAPinnedKeyErasesNothing(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, -1, 20);
  HPS_CHECK(Store(lab, keys));
  typename Lab::Plan plan;
  HPS_CHECK(Pin(lab, {keys[7]}, &plan));
  std::vector<uint8_t> presence(20);
  HPS_CHECK(!lab->Erase(keys.data(), 20, presence.data()).ok());
  HPS_CHECK(CountHere(lab, keys) == 20);
  lab->Release(&plan);
  HPS_CHECK(lab->Erase(keys.data(), 20, presence.data()).ok());
  HPS_CHECK(CountHere(lab, keys) == 0 && lab.num_rows() == 0);
}

template <class Lab>
void KeyReservedTwiceTakesOneSlot(Lab& lab) {
  typename Lab::Plan first, second;
  const Keys keys = {0, ~uint64_t{0}, uint64_t{1} << 63};
  HPS_CHECK(Take(lab, keys, &first));
  // The rows have not arrived; the next batch finds the slots and pins them again.
  HPS_CHECK(Take(lab, keys, &second));
  HPS_CHECK(first.num_missing() == 3 && second.num_missing() == 0);
  for (const uint64_t key : keys) HPS_CHECK(lab.PresenceOf(key) == 4);
  HPS_CHECK(lab.num_pins() == 6);
  FillFresh(lab, &first);
  FillFresh(lab, &second);
  HPS_CHECK(lab.num_fresh() == 3);
  lab->Release(&first);
  HPS_CHECK(lab.num_pins() == 3);
  lab->Release(&second);
  HPS_CHECK(lab.num_pins() == 0);
}

// A saturated spill count stays, and every find looks on: no key is lost by it.
template <class Lab>
void SaturatedSpillCountsLoseNoKey(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 3, -1, 700);
  Keys kept;
  typename Lab::Plan pinned;
  HPS_CHECK(Pin(lab, Some(keys, 0, 64), &pinned));
  for (size_t first = 64; first + 4 <= keys.size(); first += 4) {
    const Keys four = Some(keys, first, 4);
    HPS_CHECK(Store(lab, four));
    HPS_CHECK(CountHere(lab, four) == 4);
    kept.insert(kept.end(), four.begin(), four.end());
  }
  HPS_CHECK(lab.counters().evictions == 0 && lab.counters().second_bucket == kSpilledSticky);
  if constexpr (requires { lab->args(); }) {
    HPS_CHECK(lab->args().table.spilled[3] == kSpilledSticky);
  }
  HPS_CHECK(CountHere(lab, kept) == static_cast<int64_t>(kept.size()));
  std::vector<uint8_t> presence(kept.size());
  const auto count = static_cast<int64_t>(kept.size());
  HPS_CHECK(lab->Erase(kept.data(), count - 1, presence.data()).ok());
  HPS_CHECK(lab.PresenceOf(kept.back()) != 0);
  lab->Release(&pinned);
}

template <class Lab>
void ClearForgetsEveryRow(Lab& lab) {
  const Keys keys = KeysOfBucket(lab->shape(), 0, -1, 100);
  HPS_CHECK(Store(lab, keys));
  lab->Clear();
  HPS_CHECK(lab.num_rows() == 0 && lab.num_dirty() == 0 && lab.num_fresh() == 0);
  HPS_CHECK(CountHere(lab, keys) == 0);
  HPS_CHECK(Store(lab, keys) && lab.counters().evictions == 0 && lab.num_rows() == 100);
}

// A key of a bucket that many want costs a look over the others for each slot it can get, no more.
void TestFloodOfALargeTableIsNotQuadratic() {
  LabOptions options;
  options.buckets = 256;
  HostLab host(options);
  auto& lab = host.lab();
  HPS_CHECK(lab->shape().num_parts > 1);
  // All first buckets are one; their second buckets have room for them.
  const Keys keys = KeysOfBucket(lab->shape(), 5, -1, 1500);
  HPS_CHECK(Store(lab, keys));
  HPS_CHECK(CountHere(lab, keys) == 1500 && lab.counters().evictions == 0);
}

}  // namespace
}  // namespace hps

int main() {
  using namespace hps;  // NOLINT: a test's main
  LabOptions two, eight, many;
  eight.buckets = 8;
  many.buckets = 40;
  OnEveryCache(two, [](auto& lab) { FloodOfOneBucketUsesBothThenEvicts(lab); });
  OnEveryCache(two, [](auto& lab) { PinnedRowsSurviveAndAFullTableRefuses(lab); });
  OnEveryCache(two, [](auto& lab) { RefusedBatchLeavesNoTrace(lab); });
  OnEveryCache(two, [](auto& lab) { BatchLargerThanTheCacheIsRefused(lab); });
  OnEveryCache(two, [](auto& lab) { CancelBringsVictimsBack(lab); });
  OnEveryCache(two, [](auto& lab) { OldestRowGivesWayFirst(lab); });
  OnEveryCache(two, [](auto& lab) { WantedRowsGiveWayLastUntilTheyAreUsed(lab); });
  OnEveryCache(two, [](auto& lab) { SparedRowsAreCountedOnceForEachThatGivesWay(lab); });
  OnEveryCache(two, [](auto& lab) { NothingIsMarkedWhileThereIsRoom(lab); });
  OnEveryCache(two, [](auto& lab) { EraseGivesSecondBucketBack(lab); });
  OnEveryCache(eight, [](auto& lab) { EraseOfAPinnedKeyErasesNothing(lab); });
  OnEveryCache(eight, [](auto& lab) { KeyReservedTwiceTakesOneSlot(lab); });
  OnEveryCache(many, [](auto& lab) { SaturatedSpillCountsLoseNoKey(lab); });
  OnEveryCache(eight, [](auto& lab) { ClearForgetsEveryRow(lab); });
  TestFloodOfALargeTableIsNotQuadratic();
  std::puts("gpu_table_test: all passed");
  return 0;
}
