// One driver for three caches: DramCache, the host build of gpu_cache, and gpu_cache's device text
// on emulated lanes. The same seed gives the same verbs; a trace of all that can be seen must be
// one.
//
// Above it: gpu_table_test.cc, gpu_rows_test.cc. Below it: simt_emulator.h, csrc/dram_cache,
// csrc/gpu_cache.
#pragma once

#include "simt_emulator.h"

// The emulator comes first: it names the build.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "common/check.h"
#include "dram_cache/dram_cache.h"
#include "gpu_cache/row_verbs_body.h"
#include "optimizer/device_lanes.h"

namespace hps {

// Launches a kernel's device text on `kSize` emulated lanes, row arithmetic on kRowLanes.
template <int kSize>
class SimtLauncher {
 public:
  static constexpr bool kRanksWords = false;  // as a device

  SimtLauncher() : any_(std::make_shared<simt::Warp>(kSize)), rows_(MakeRowWarp()) {}

  template <class Body, class... Ahead>
  void one(int64_t count, Body body, Ahead...) const {
    for (int64_t i = 0; i < count; ++i) body(DeviceGroup<1>{}, i);
  }

  template <class Body, class... Ahead>
  void any(int64_t count, Body body, Ahead...) const {
    Run(any_.get(), count, [&](int64_t i) { body(DeviceGroup<kSize>{}, i); });
  }

  template <class Body, class... Ahead>
  void rows(int, int64_t count, Body body, Ahead...) const {
    Run(rows_.get(), count, [&](int64_t i) { body(DeviceGroup<kRowLanes>{}, i); });
  }

  template <class Body, class... Ahead>
  void rows_out(int, int64_t count, const float*, Body body, Ahead...) const {
    any(count, body);
  }

  SimtLauncher alone() const { return *this; }

  int64_t num_meetings() const { return any_->num_meetings() + rows_->num_meetings(); }

 private:
  static std::shared_ptr<simt::Warp> MakeRowWarp() {
    return std::make_shared<simt::Warp>(kRowLanes);
  }

  template <class Body>
  static void Run(simt::Warp* warp, int64_t count, Body body) {
    if (!warp->Run(count, body)) std::fprintf(stderr, "lanes parted: %s\n", warp->what().c_str());
    HPS_CHECK(warp->what().empty());
  }

  std::shared_ptr<simt::Warp> any_;
  std::shared_ptr<simt::Warp> rows_;
};

// As a device numbers keys: occurrence by occurrence, in a table of positions.
template <int kSize>
void NumberKeys(const SimtLauncher<kSize>& launcher, const uint64_t* keys, int64_t count,
                GpuPlan* plan) {
  plan->Begin(count, 1);
  plan->shares()->CopyKeys(0, keys);
  plan->SetNumUnique(count);
  size_t entries = 64;
  while (entries < 2 * static_cast<size_t>(count)) entries *= 2;
  std::vector<uint32_t> id_table(entries);
  std::vector<uint32_t> words(static_cast<size_t>(NumFlagWords(count)));
  std::vector<uint32_t> sums(static_cast<size_t>(NumFlagSums(count)));
  std::vector<uint64_t> first_ranks(words.size());
  DeduplicateArgs args = {plan->batch(), keys};
  args.batch.id_table = id_table.data();
  args.batch.id_mask = entries - 1;
  args.batch.first_flags = {words.data(), sums.data(), nullptr};
  args.batch.first_ranks = first_ranks.data();
  launcher.one(static_cast<int64_t>(entries),
               [&](auto group, int64_t i) { BeginPlanOne(group, args, i); });
  launcher.one(count, [&](auto group, int64_t i) { PlaceKeyOne(group, args, i); });
  launcher.any(NumFlagWords(count), [&](auto group, int64_t i) { ListFirstOne(group, args, i); });
  launcher.one(count, [&](auto group, int64_t i) { NumberKeyOne(group, args, i); });
}

// As a device pools: bag by bag, into features side by side.
template <int kSize, class Wrap>
void PoolBags(const SimtLauncher<kSize>& launcher, const CacheArgs& cache, const BagsView& bags,
              OutputValues out, GpuPlan* plan, Wrap wrap) {
  HPS_CHECK(out.narrow == nullptr && bags.columns == nullptr);
  const int64_t pitch = bags.num_features * cache.dim;
  const PoolArgs args = {cache,    plan->batch(),     bags.offsets, bags.weights,
                         out.wide, bags.num_examples, pitch,        bags.is_mean};
  launcher.any(bags.num_bags(), [=](auto group, int64_t i) { PoolOne(wrap(group), args, i); });
}

// What a sum of gradients of one table works on.
struct SumMemory {
  SumMemory(int64_t num_occurrences, int64_t num_unique, int64_t dim)
      : keys(static_cast<size_t>(num_unique)), counts(keys.size()) {
    for (auto* const one : {&arrived, &unordered, &origins}) {
      one->assign(static_cast<size_t>(num_occurrences), 7);
    }
    weights.resize(origins.size());
    for (auto* const one : {&arrivals, &row_keys}) {
      one->assign(static_cast<size_t>(NumRows(num_occurrences)), 7);
    }
    run_sums.resize(arrivals.size() * static_cast<size_t>(dim));
  }

  SumArgs args() {
    SumArgs args = {};
    args.batch.counts = counts.data();
    args.terms = {nullptr, origins.data(), weights.data(), keys.data(), run_sums.data(), 0};
    args.arrived = arrived.data();
    args.unordered = unordered.data();
    args.arrivals = arrivals.data();
    args.row_keys = row_keys.data();
    return args;
  }

  std::vector<uint32_t> arrived, unordered, origins, arrivals, row_keys;
  std::vector<float> weights, run_sums;
  std::vector<KeyTerms> keys;
  std::vector<uint32_t> counts;  // zero, as are all between sums
};

// As a device sums gradients: terms in the order of keys, run by run. Every sum is looked at.
template <int kSize>
int64_t SumByKey(const SimtLauncher<kSize>& launcher, const CacheArgs& cache,
                 GradientValues gradients, const BagsView* bags, const uint8_t* labels,
                 GpuPlan* plan) {
  HPS_CHECK(gradients.narrow == nullptr && (bags == nullptr || !bags->are_rows()));
  const int64_t num_unique = plan->num_unique();
  const int64_t num_occurrences = plan->num_occurrences();
  const int64_t num_bags = bags == nullptr ? num_occurrences : bags->num_bags();
  const int64_t num_rows = NumRows(num_occurrences);
  SumMemory memory(num_occurrences, num_unique, cache.dim);
  std::vector<float> divided(static_cast<size_t>(num_bags * cache.dim));
  SumArgs args = memory.args();
  args.cache = cache;
  args.batch = plan->batch();
  args.batch.counts = memory.counts.data();
  args.given = args.terms.gradients = gradients.wide;
  args.num_examples = num_bags;
  args.pitch = cache.dim;
  args.terms.are_aligned = cache.dim % 4 == 0 && IsPieceAligned(gradients.wide);
  if (bags != nullptr) {
    args.offsets = bags->offsets;
    args.weights = bags->weights;
    if (bags->is_mean) {
      args.terms.gradients = args.divided = divided.data();
      args.terms.are_aligned = cache.dim % 4 == 0 && IsPieceAligned(divided.data());
    }
  }
  if (args.weights == nullptr) args.terms.weights = nullptr;
  const auto run = [&](int64_t count, auto body) {
    launcher.rows(cache.dim, count, [&](auto group, int64_t i) { body(group, i); });
  };
  run(num_bags, [&](auto group, int64_t i) { SpreadBagOne(group, args, i); });
  args.batch.numbers->is_wild = 1;
  run((num_unique + kKeysPlaced - 1) / kKeysPlaced,
      [&](auto group, int64_t i) { PlaceTermsOne(group, args, i); });
  HPS_CHECK(args.batch.numbers->num_placed == num_occurrences);
  run(num_bags, [&](auto group, int64_t i) { PutBagOne(group, args, i); });
  run(num_rows + (num_unique + kKeysOrdered - 1) / kKeysOrdered,
      [&](auto group, int64_t i) { OrderTermsOne(group, args, i); });
  run(num_rows + (num_unique + kKeysAnItem - 1) / kKeysAnItem,
      [&](auto group, int64_t i) { SumRunOne(group, args, i); });
  for (const uint32_t count : memory.counts) HPS_CHECK(count == 0);
  float* const sums = plan->ReserveSums(cache.dim);
  launcher.rows(cache.dim, num_unique, [&](auto group, int64_t id) {
    const auto lanes = LanesOf(group, cache.dim);
    const auto sum = SumOfKey(args.terms, cache.dim, id);
    float* const row = sums + id * cache.dim;
    lanes.each([](float& own, float value) { own = value; }, row, sum);
    group.sync();
    const auto square = [](float value) { return value * value; };
    const float squares = lanes.sum(square, sum);
    const float others = lanes.sum(square, static_cast<const float*>(row));
    HPS_CHECK(BitsOf(squares) == BitsOf(others) || squares != squares);
  });
  if (cache.table.has_statistics()) {
    plan->PrepareCounts(labels != nullptr);
    const CountArgs counts = {plan->batch(), labels, plan->shows(), plan->clicks()};
    std::fill_n(counts.shows, num_unique, 0);
    if (counts.clicks != nullptr) std::fill_n(counts.clicks, num_unique, 0);
    launcher.one(num_occurrences,
                 [&](auto group, int64_t i) { CountOccurrenceOne(group, counts, i); });
  }
  const uint32_t culprit = plan->numbers().culprit;
  return culprit == kNoCulprit ? -1 : static_cast<int64_t>(culprit);
}

struct LabOptions {
  int64_t buckets = 2;
  RowLayout layout = {OptimizerKind::kSgd, 4};
  Rounding rounding = Rounding::kNearest;
  OptimizerNumbers numbers;
  InitializerSpec initializer = {InitializerKind::kUniform, -1.0f, 1.0f, 5};
};

// A cache with its pool, its plans' type, and verbs under one name each.
class DramLab {
 public:
  using Plan = BatchPlan;

  explicit DramLab(const LabOptions& lab) : pool_(1) {
    DramCacheOptions options;
    options.layout = lab.layout;
    options.numbers = lab.numbers;
    options.rounding = lab.rounding;
    options.initializer = lab.initializer;
    options.capacity_bytes =
        lab.buckets * (kBucketSlots * lab.layout.row_bytes() + kBucketMarkBytes) + 4160;
    HPS_CHECK(DramCache::Open(options, &pool_, &cache_).ok());
    HPS_CHECK(cache_->shape().num_buckets() == lab.buckets);
  }

  DramCache* operator->() { return cache_.get(); }
  static const uint64_t* MissingKeys(const Plan& plan) { return plan.missing_keys.data(); }
  static const uint8_t* Victims(const Plan& plan) { return plan.victims.data(); }
  static int64_t NumVictims(const Plan& plan) { return plan.num_victims; }
  void Gather(Plan* plan, float* out) { cache_->Gather(plan, {out, cache_->layout().dim}); }
  void ReadRows(Plan* plan, uint8_t* images) { cache_->ReadRows(plan, images); }
  int64_t num_rows() const { return cache_->num_rows(); }
  int64_t num_fresh() const { return cache_->num_fresh(); }
  int64_t num_dirty() const { return cache_->num_dirty(); }
  int64_t num_pins() const { return cache_->num_pins(); }
  int64_t num_created() const { return cache_->num_created(); }
  DramCacheCounters counters() const { return cache_->counters(); }
  uint8_t PresenceOf(uint64_t key) { return static_cast<uint8_t>(cache_->Contains(key)); }

  // Slot and row image of every stored row.
  std::map<int64_t, std::vector<uint8_t>> StoredRows() {
    std::map<int64_t, std::vector<uint8_t>> rows;
    std::vector<uint8_t> row(static_cast<size_t>(cache_->shape().row_bytes));
    int64_t cursor = 0;
    while (cursor >= 0) {
      const bool found = cache_->Scan(&cursor, false, 1, row.data()) == 1;
      if (found) rows[(cursor < 0 ? cache_->shape().num_slots() : cursor) - 1] = row;
    }
    return rows;
  }

 private:
  ThreadPool pool_;
  std::unique_ptr<DramCache> cache_;
};

template <class Launcher>
class GpuLab {
 public:
  using Plan = GpuPlan;
  using Cache = GpuCacheOver<Launcher>;

  GpuLab(const LabOptions& lab, Launcher launcher) {
    GpuCacheOptions options;
    options.layout = lab.layout;
    options.numbers = lab.numbers;
    options.rounding = lab.rounding;
    options.initializer = lab.initializer;
    options.capacity_bytes =
        lab.buckets * (kBucketSlots * lab.layout.row_bytes() + kBucketMarkBytes + 8) + 9216;
    HPS_CHECK(Cache::Open(options, launcher, &cache_).ok());
    HPS_CHECK(cache_->shape().num_buckets() == lab.buckets);
  }

  Cache* operator->() { return cache_.get(); }
  static const uint64_t* MissingKeys(const Plan& plan) { return plan.missing_keys(); }
  static const uint8_t* Victims(const Plan& plan) { return plan.victims(); }
  static int64_t NumVictims(const Plan& plan) { return plan.num_victims(); }
  void Gather(Plan* plan, float* out) { cache_->Gather(*plan, out); }
  void ReadRows(Plan* plan, uint8_t* images) { cache_->ReadRows(*plan, images); }
  int64_t num_rows() const { return cache_->count(kCountRows); }
  int64_t num_fresh() const { return cache_->count(kCountFresh); }
  int64_t num_dirty() const { return cache_->count(kCountDirty); }
  int64_t num_pins() const { return cache_->count(kCountPins); }
  int64_t num_created() const { return cache_->count(kCountCreated); }
  DramCacheCounters counters() const {
    return {cache_->count(kCountHits),      cache_->count(kCountMisses),
            cache_->count(kCountEvictions), cache_->count(kCountWriteBacks),
            cache_->count(kCountRefusals),  cache_->count(kCountSecondBucket),
            cache_->count(kCountSpared)};
  }
  uint8_t PresenceOf(uint64_t key) {
    uint8_t presence = 0;
    cache_->Contains(&key, 1, &presence);
    return presence;
  }

  std::map<int64_t, std::vector<uint8_t>> StoredRows() {
    std::map<int64_t, std::vector<uint8_t>> rows;
    const TableView& table = cache_->args().table;
    for (int64_t slot = 0; slot < table.shape.num_slots(); ++slot) {
      if (table.digests[slot] == 0 || table.marks[slot].flags & (kFresh | kPending)) continue;
      const uint8_t* row = RowAt(table, slot);
      rows[slot] = std::vector<uint8_t>(row, row + table.shape.row_bytes);
    }
    return rows;
  }

 private:
  std::unique_ptr<Cache> cache_;
};

// A host build with threads of its own.
class HostLab {
 public:
  using Plan = GpuPlan;

  explicit HostLab(const LabOptions& options, int threads = 1)
      : pool_(std::make_unique<ThreadPool>(threads)), lab_(options, HostLauncher(pool_.get())) {}

  GpuLab<HostLauncher>& lab() { return lab_; }

 private:
  std::unique_ptr<ThreadPool> pool_;
  GpuLab<HostLauncher> lab_;
};

// Runs test(lab) on each kind of cache in turn.
template <class Test>
void OnEveryCache(const LabOptions& options, Test test) {
  {
    DramLab lab(options);
    test(lab);
  }
  {
    HostLab host(options);
    test(host.lab());
  }
  {
    GpuLab<SimtLauncher<4>> lab(options, {});
    test(lab);
  }
  {
    GpuLab<SimtLauncher<16>> lab(options, {});
    test(lab);
  }
}

using Keys = std::vector<uint64_t>;

// `count` keys whose first bucket is `first` (and second `second`, unless negative).
inline Keys KeysOfBucket(const TableShape& shape, int64_t first, int64_t second, size_t count) {
  Keys keys;
  for (uint64_t key = 0; keys.size() < count; ++key) {
    const KeyPlace place = PlaceOfHash(shape, MixKey(key));
    if (place.first == first && (second < 0 || place.second == second)) keys.push_back(key);
  }
  return keys;
}

inline Keys Some(const Keys& keys, size_t first, size_t count) {
  return {keys.begin() + static_cast<int64_t>(first),
          keys.begin() + static_cast<int64_t>(first + count)};
}

template <class Lab>
int64_t CountHere(Lab& lab, const Keys& keys) {
  int64_t count = 0;
  for (const uint64_t key : keys) count += lab.PresenceOf(key) != 0;
  return count;
}

// Finds and reserves; the rows have not arrived.
template <class Lab>
bool Take(Lab& lab, const Keys& keys, typename Lab::Plan* plan) {
  lab->MakePlan(keys.data(), static_cast<int64_t>(keys.size()), plan);
  lab->Find(plan, 0, -1);
  return lab->Reserve(plan);
}

// Makes what is missing, none of it found below.
template <class Lab>
void FillFresh(Lab& lab, typename Lab::Plan* plan) {
  const auto missing = static_cast<size_t>(plan->num_missing());
  const std::vector<uint8_t> found(missing + 1);
  const std::vector<uint8_t> rows((missing + 1) * static_cast<size_t>(lab->layout().row_bytes()));
  lab->Fill(plan, rows.data(), found.data(), 0.1f, false);
}

template <class Lab>
bool Pin(Lab& lab, const Keys& keys, typename Lab::Plan* plan) {
  if (!Take(lab, keys, plan)) return false;
  FillFresh(lab, plan);
  return true;
}

// Brings keys in as stored rows, without pinning them on; false if the batch was refused.
template <class Lab>
bool Store(Lab& lab, const Keys& keys) {
  typename Lab::Plan plan;
  if (!Pin(lab, keys, &plan)) return false;
  lab->Create(&plan, 0.1f);
  lab->Release(&plan);
  return true;
}

}  // namespace hps
