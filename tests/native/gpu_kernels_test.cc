// Kernels by themselves: the emulator that runs them, those that only a device launches, widths
// that do not fill sixteen bytes, slots past 2^32, pins at their limit.
//
// Above it: CTest. Below it: gpu_cache_lab.h.
#include "gpu_cache_lab.h"

namespace hps {
namespace {

void TestTheEmulatorNoticesLanesThatPart() {
  simt::Warp warp(8);
  const DeviceGroup<8> group;
  int64_t sum = 0;
  HPS_CHECK(warp.Run(5, [&](int64_t i) {
    const auto least = group.smallest(20, [=](uint32_t k) { return 100 + k + 7 * i; });
    group.elect([&] { sum += least; });
  }));
  HPS_CHECK(sum == 5 * 100 + 7 * 10 && warp.num_meetings() > 5);
  HPS_CHECK(!warp.Run(1, [&](int64_t) {
    if (group.lane() != 3) group.sync();
  }));
  HPS_CHECK(warp.what().find("lane 3 at its end") != std::string::npos);
  HPS_CHECK(!warp.Run(2, [&](int64_t i) {
    if (i == 1 && group.lane() == 0) return;
    group.sync();
  }));
}

template <int kSize>
void LanesSeeWhatTheHostSees() {
  std::mt19937_64 random(kSize);
  simt::Warp warp(kSize);
  const DeviceGroup<kSize> group;
  for (int round = 0; round < 200; ++round) {
    alignas(64) uint8_t bytes[64];
    uint32_t scores[64];
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 4 * 85);
    for (uint32_t& score : scores) score = static_cast<uint32_t>(random() % 5) * 40000;
    const auto value = static_cast<uint8_t>(random() % 4 * 85);
    const uint64_t candidates = random() | 1;
    const auto score = [&](int i) { return scores[i]; };
    HPS_CHECK(warp.Run(1, [&](int64_t) {
      HPS_CHECK(group.match(bytes, value) == HostGroup{}.match(bytes, value));
      HPS_CHECK(group.largest(candidates, score) == HostGroup{}.largest(candidates, score));
    }));
    uint32_t copies[64] = {};
    int stores = 0;
    HPS_CHECK(warp.Run(1, [&](int64_t) {
      group.copy(
          round % 65, [&](int64_t i) { return scores[i] + 1; },
          [&](int64_t i, uint32_t copied) { copies[i] = copied, ++stores; });
    }));
    HPS_CHECK(stores == round % 65);
    for (int i = 0; i < 64; ++i) HPS_CHECK(copies[i] == (i < round % 65 ? scores[i] + 1 : 0));
  }
}

// Flags of several blocks, set in any order; cleared by fewer calls than there are items.
template <int kSize>
void FlagsAreRankedAlikeByLanesAndTheHost() {
  constexpr int64_t kItems = 2 * kFlagsASum + 1000;
  std::mt19937_64 random(kSize);
  std::vector<uint32_t> words(NumFlagWords(kItems), 7), sums(NumFlagSums(kItems), 7);
  const RankedFlags flags = {words.data(), sums.data(), nullptr};
  for (int64_t i = 0; i < NumFlagWords(kItems); ++i) ClearFlags(flags, i, kItems);
  std::vector<int64_t> set;
  for (int64_t i = 0; i < kItems; ++i) {
    if (random() % 3 == 0) set.push_back(i);
  }
  std::shuffle(set.begin(), set.end(), random);
  for (const int64_t item : set) SetFlag(flags, item);
  std::sort(set.begin(), set.end());
  std::vector<uint32_t> ranks(words.size() + 1);
  const RankedFlags ranked = {words.data(), nullptr, ranks.data()};
  RankFlags(ranked, kItems);
  simt::Warp warp(kSize);
  const DeviceGroup<kSize> group;
  HPS_CHECK(warp.Run(kItems, [&](int64_t i) {
    const int64_t rank = std::lower_bound(set.begin(), set.end(), i) - set.begin();
    HPS_CHECK(FlagsBefore(group, flags, i) == rank);
    HPS_CHECK(FlagsBefore(HostGroup{}, ranked, i) == rank);
  }));
  const auto count = static_cast<int64_t>(set.size());
  HPS_CHECK(warp.Run(1, [&](int64_t) { HPS_CHECK(CountFlags(group, flags, kItems) == count); }));
  HPS_CHECK(CountFlags(HostGroup{}, ranked, kItems) == count);
}

// A window of memory that stands for one bucket of a table of 2^27 buckets.
struct FarTable {
  static constexpr int64_t kBuckets = int64_t{1} << 27;
  static constexpr int64_t kBucket = (int64_t{1} << 26) + 12345;
  static constexpr int64_t kRowBytes = 80;

  FarTable() : rows(kBucketSlots * kRowBytes / 16), numbers(256), lists(2), counters(1024) {
    cache.table.shape = {1, kBuckets, 0, kRowBytes};
    // What lies outside of the bucket is never touched.
    const auto base = [](void* data, int64_t offset) {
      return reinterpret_cast<uint8_t*>(reinterpret_cast<uint64_t>(data) -
                                        static_cast<uint64_t>(offset));
    };
    cache.table.digests = base(digests, kBucket * kBucketSlots);
    cache.table.marks = reinterpret_cast<SlotMark*>(base(marks, 2 * kBucket * kBucketSlots));
    cache.table.pins = base(pins, kBucket * kBucketSlots);
    cache.table.spilled = base(&spilled, kBucket);
    SetRows(&cache.table, base(rows.data(), kBucket * kBucketSlots * kRowBytes), kRowHeaderBytes);
    cache.bucket_lists =
        reinterpret_cast<uint32_t*>(base(lists.data(), 2 * kBucket * int64_t{sizeof(uint32_t)}));
    cache.counters = counters.data();
    cache.clock = &clock;
    cache.kind = OptimizerKind::kSgd;
    cache.dim = 16;
    cache.initializer = {InitializerKind::kUniform, -1.0f, 1.0f, 5};
  }

  static uint64_t KeyOf(uint64_t number) {
    const uint64_t hash = ((uint64_t{kBucket} << 32) / kBuckets + 1) << 32 | (1000 + 77 * number);
    return UnmixKey(hash);
  }

  alignas(64) uint8_t digests[64] = {};
  alignas(64) uint8_t pins[64] = {};
  alignas(64) SlotMark marks[64] = {};
  alignas(4) uint8_t spilled[4] = {};
  std::vector<Piece> rows;
  std::vector<uint8_t> numbers;
  std::vector<uint32_t> lists;
  std::vector<int64_t> counters;
  CacheClock clock = {};
  CacheArgs cache = {};
};

void TestSlotsPast32BitsAreFoundFilledAndUpdated() {
  FarTable far;
  const SimtLauncher<16> lanes;
  Keys keys;
  for (uint64_t i = 0; i < 40; ++i) keys.push_back(FarTable::KeyOf(i % 30));
  HPS_CHECK(PlaceOfKey(far.cache, keys[0]).first == FarTable::kBucket);
  GpuPlan plan;
  NumberKeys(lanes, keys.data(), 40, &plan);
  HPS_CHECK(plan.num_unique() == 30);
  plan.PrepareFind(30);
  const FindArgs find = {far.cache, plan.batch(), 0, -1, 30};
  lanes.any(30, [=](auto group, int64_t i) { FindSlotOne(group, find, i); });
  lanes.any(1, [=](auto group, int64_t i) { ListMissingOne(group, find, i); });
  HPS_CHECK(plan.num_missing() == 30);
  plan.PrepareReserve();
  const ReserveArgs reserve = {far.cache, plan.batch(), 30, nullptr, nullptr, nullptr};
  lanes.one(30, [=](auto group, int64_t i) { PinOne(group, reserve, i); });
  lanes.any(30, [=](auto group, int64_t i) { PlaceOne<kFirst>(group, reserve, i); });
  lanes.any(30, [=](auto group, int64_t i) { CommitEntryOne(group, reserve, i); });
  const std::vector<uint8_t> found(30);
  const FillArgs fill = {far.cache, plan.batch(), nullptr, found.data(), 30, 0, 0.1f};
  lanes.rows(16, 30, [=](auto group, int64_t i) { FillRowOne(group, fill, i); });
  for (int64_t id = 0; id < 30; ++id) {
    HPS_CHECK(plan.batch().slots[id] == FarTable::kBucket * kBucketSlots + id);
    HPS_CHECK(plan.batch().slots[id] > int64_t{1} << 32);
  }
  std::vector<float> out(40 * 16), expected(16);
  const GatherArgs gather = {far.cache, plan.batch(), out.data()};
  lanes.any(40, [=](auto group, int64_t i) { GatherOne(group, gather, i); });
  for (size_t i = 0; i < 40; ++i) {
    InitializeWeights(HostLanes<0>{16}, far.cache.initializer, keys[i], expected.data());
    HPS_CHECK(std::memcmp(&out[i * 16], expected.data(), 64) == 0);
  }
}

// What a device does after its sort, and how it hears of a gradient that is not finite.
void TestARefusedGradientStopsEveryUpdate() {
  LabOptions options;
  options.buckets = 8;
  HostLab host(options);
  auto& lab = host.lab();
  const Keys keys = {5, 9, 5, 7, 9};
  GpuPlan plan;
  HPS_CHECK(Pin(lab, keys, &plan));
  std::vector<float> gradients(20, 1.0f);
  gradients[4 * 4 + 2] = INFINITY;
  HPS_CHECK(lab->SumGradients(&plan, gradients.data()) == 1);
  Failure failure = {};
  TryTermsArgs tried[2] = {};
  BatchNumbers finite = {};
  finite.culprit = kNoCulprit;
  tried[0].batch.numbers = &finite;
  tried[1].batch = plan.batch();
  tried[1].number = 3;
  const NoteFailureArgs note = {{tried, nullptr, 2}, &failure};
  NoteFailureOne(HostGroup{}, note, 0);
  HPS_CHECK(failure.is_set == 1 && failure.cache == 3 && failure.key == 9);
  std::vector<float> before(20), after(20);
  lab.Gather(&plan, before.data());
  const std::vector<float> sums(12, 1.0f);
  ApplyArgs apply = {lab->args(), plan.batch(), sums.data(), &failure, 3, 0.5f};
  for (int64_t i = 0; i < 3; ++i) ApplyOne<OptimizerKind::kSgd>(HostGroup{}, apply, i);
  lab.Gather(&plan, after.data());
  HPS_CHECK(before == after && lab.num_rows() == 0);
  failure.is_set = 0;
  for (int64_t i = 0; i < 3; ++i) ApplyOne<OptimizerKind::kSgd>(HostGroup{}, apply, i);
  lab.Gather(&plan, after.data());
  HPS_CHECK(before != after && lab.num_rows() == 3);
  lab->Release(&plan);
}

template <class Lab>
void ASlotIsPinnedAtMost255Times(Lab& lab) {
  const Keys keys = {1, 2};
  std::vector<std::unique_ptr<typename Lab::Plan>> plans;
  for (int i = 0; i < 255; ++i) {
    plans.push_back(std::make_unique<typename Lab::Plan>());
    HPS_CHECK(Pin(lab, {keys[1]}, plans.back().get()));
  }
  typename Lab::Plan one_more;
  HPS_CHECK(!Take(lab, {keys[0], keys[1], 77}, &one_more));
  HPS_CHECK(lab.counters().refusals == 1 && lab.num_pins() == 255);
  HPS_CHECK(lab.PresenceOf(77) == 0);
  lab->Release(plans.back().get());
  HPS_CHECK(Pin(lab, {keys[0], keys[1], 77}, &one_more) && lab.num_pins() == 257);
  lab->Release(&one_more);
  plans.pop_back();
  for (auto& plan : plans) lab->Release(plan.get());
  HPS_CHECK(lab.num_pins() == 0);
}

// A key of 32 occurrences whose terms are `gradient` times `weight`, or half of it where a bag of
// several begins: what its batch notes.
BatchNumbers NumbersOf(float gradient, float weight, int64_t divisor) {
  constexpr int64_t kDim = 8, kCount = 32;
  std::vector<float> given(kCount * kDim, -gradient), weights(kCount, weight);
  std::vector<float> divided(kCount * kDim);
  std::vector<int64_t> offsets;
  std::vector<uint32_t> inverse(kCount);
  for (int64_t i = 0; i <= kCount; i += divisor) offsets.push_back(i);
  for (int64_t i = 0; divisor > 1 && i < kCount; i += divisor) weights[i] /= 2;
  BatchNumbers numbers = {};
  numbers.num_unique = 1;
  SumMemory memory(kCount, 1, kDim);
  SumArgs args = memory.args();
  args.cache.dim = kDim;
  args.batch.num_occurrences = kCount;
  args.batch.numbers = &numbers;
  args.batch.inverse = inverse.data();
  args.offsets = offsets.data();
  args.given = given.data();
  args.num_examples = kCount / divisor;
  args.pitch = kDim;
  args.divided = divisor == 1 ? nullptr : divided.data();
  args.weights = weight == 1 ? nullptr : weights.data();
  args.terms.gradients = args.divided == nullptr ? args.given : args.divided;
  if (args.weights == nullptr) args.terms.weights = nullptr;
  simt::Warp warp(4);
  const DeviceGroup<4> group;
  HPS_CHECK(warp.Run(kCount / divisor, [&](int64_t i) { SpreadBagOne(group, args, i); }));
  HPS_CHECK(warp.Run(1, [&](int64_t i) { PlaceTermsOne(group, args, i); }));
  HPS_CHECK(warp.Run(kCount / divisor, [&](int64_t i) { PutBagOne(group, args, i); }));
  HPS_CHECK(warp.Run(4, [&](int64_t i) { OrderTermsOne(group, args, i); }));
  HPS_CHECK(warp.Run(4, [&](int64_t i) { SumRunOne(group, args, i); }));
  return numbers;
}

void TestABatchIsLookedAtWhereATermIsNotOrdinary() {
  const auto is_seen = [](float gradient, float weight, int64_t divisor, float sum) {
    const BatchNumbers numbers = NumbersOf(gradient, weight, divisor);
    HPS_CHECK(numbers.is_wild == 1 && numbers.largest == MagnitudeBits(sum));
    HPS_CHECK((numbers.culprit == 0) == (numbers.largest >= kInfinityBits));
  };
  const auto is_not = [](float gradient, float weight, int64_t divisor) {
    const BatchNumbers numbers = NumbersOf(gradient, weight, divisor);
    HPS_CHECK(numbers.is_wild == 0 && numbers.largest == kOrdinaryBits);
    HPS_CHECK(numbers.culprit == kNoCulprit);
  };
  const float edge = 0x1p15f, beyond = std::nextafter(edge, INFINITY), sum = 0x1p20f;
  const float more = std::nextafter(sum, INFINITY);
  is_not(edge, 1, 1);
  is_seen(beyond, 1, 1, more);
  is_not(1, edge, 1);
  is_seen(1, -beyond, 1, more);
  is_not(4 * edge, 1, 4);
  is_seen(4 * beyond, 1, 4, more);
  is_not(16 * edge, 0.25f, 4);
  HPS_CHECK(NumbersOf(16 * beyond, 0.25f, 4).is_wild == 1);
  is_seen(0x1p127f, 1, 1, INFINITY);  // each term is finite
  is_seen(INFINITY, 1, 1, INFINITY);
  HPS_CHECK(NumbersOf(NAN, 1, 1).culprit == 0 && NumbersOf(0, INFINITY, 1).culprit == 0);
  HPS_CHECK(NumbersOf(INFINITY, 0, 1).culprit == 0 && NumbersOf(2, NAN, 2).culprit == 0);
}

// Sums of hot keys, rows and outputs of any width and any alignment.
template <class Lab>
std::vector<float> RowsOfWidth(Lab& lab, int64_t dim) {
  Keys keys;
  for (const size_t count : {1, 31, 32, 33, 65, 97, 2049 + 63}) {
    if (count > 100 && dim % 16 > 2) continue;
    keys.insert(keys.end(), count, count);
  }
  std::mt19937_64 random(static_cast<uint64_t>(dim));
  std::shuffle(keys.begin(), keys.end(), random);
  typename Lab::Plan plan;
  HPS_CHECK(Pin(lab, keys, &plan));
  const auto width = static_cast<size_t>(dim);
  std::vector<float> gradients(keys.size() * width + 1), out(keys.size() * width + 1);
  for (float& value : gradients) value = static_cast<float>(random() % 2001) * 0.001f - 1.0f;
  // One float on: no row starts at a multiple of 16 bytes.
  HPS_CHECK(lab->SumGradients(&plan, gradients.data() + 1) == -1);
  lab->Apply(&plan, 0.1f);
  HPS_CHECK(lab->SumGradients(&plan, gradients.data()) == -1);
  lab->Apply(&plan, 0.1f);
  lab.Gather(&plan, out.data() + 1);
  lab->Release(&plan);
  return out;
}

void TestEveryWidthGivesTheSameBits() {
  for (int64_t dim = 1; dim <= 130; ++dim) {
    LabOptions options;
    options.buckets = 2;
    options.layout = {dim % 2 ? OptimizerKind::kRowWiseAdagrad : OptimizerKind::kAdam, dim};
    options.numbers = {1e-8f, 0.1f, 0.9f, 0.999f, 0.1f, 0.001f, 0, 0, 0};
    DramLab dram(options);
    const std::vector<float> expected = RowsOfWidth(dram, dim);
    HostLab host(options);
    HPS_CHECK(RowsOfWidth(host.lab(), dim) == expected);
    GpuLab<SimtLauncher<16>> lanes(options, {});
    HPS_CHECK(RowsOfWidth(lanes, dim) == expected);
  }
}

}  // namespace
}  // namespace hps

int main() {
  using namespace hps;  // NOLINT: a test's main
  TestTheEmulatorNoticesLanesThatPart();
  LanesSeeWhatTheHostSees<4>();
  LanesSeeWhatTheHostSees<8>();
  LanesSeeWhatTheHostSees<16>();
  LanesSeeWhatTheHostSees<32>();
  FlagsAreRankedAlikeByLanesAndTheHost<4>();
  FlagsAreRankedAlikeByLanesAndTheHost<16>();
  TestSlotsPast32BitsAreFoundFilledAndUpdated();
  TestARefusedGradientStopsEveryUpdate();
  TestABatchIsLookedAtWhereATermIsNotOrdinary();
  LabOptions options;
  OnEveryCache(options, [](auto& lab) { ASlotIsPinnedAtMost255Times(lab); });
  TestEveryWidthGivesTheSameBits();
  std::puts("gpu_kernels_test: all passed");
  return 0;
}
