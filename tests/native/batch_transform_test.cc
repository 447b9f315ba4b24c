// BatchTransform against a twin that works bag by bag: random rules and batches, in arrays of
// exactly their size, so that `make asan` sees any byte read past them; one thread, three, and two
// callers at once give the same. Offsets that fit no keys are refused. Prints its seed. Above it:
// CTest. Below it: csrc/reader.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/hash.h"
#include "reader/batch_transform.h"
#include "reader/decimal_hash.h"
#include "reader/text_schema.h"

namespace hps {
namespace {

constexpr uint32_t kSeed = 20261124;
constexpr int kRounds = 400;
constexpr uint64_t kMissingKey = 77;
constexpr size_t kNumFeatures = 3;
constexpr size_t kNumDense = 4;

using Random = std::mt19937_64;
using Bag = std::vector<std::pair<uint64_t, float>>;  // keys and their weights

struct Batch {
  size_t num_examples = 0;
  std::vector<float> dense;
  std::vector<uint64_t> keys;
  std::vector<int64_t> offsets{0};
  std::vector<float> weights;  // or none

  RawBatch View() const {
    return {num_examples,
            dense.data(),
            keys.data(),
            offsets.data(),
            weights.empty() ? nullptr : weights.data(),
            keys.size()};
  }
  Bag At(size_t feature, size_t row) const {
    Bag bag;
    const size_t place = feature * num_examples + row;
    for (int64_t i = offsets[place]; i < offsets[place + 1]; ++i) {
      bag.emplace_back(keys[i], weights.empty() ? 1.0F : weights[i]);
    }
    return bag;
  }
};

Batch MakeBatch(Random* random) {
  Batch batch;
  const size_t sizes[] = {0, 1, 5, 511, 512, 513, 1100};
  batch.num_examples = sizes[(*random)() % 7];
  const bool is_single = (*random)() % 2 == 0;
  for (size_t bag = 0; bag < kNumFeatures * batch.num_examples; ++bag) {
    for (size_t count = is_single ? 1 : (*random)() % 4; count > 0; --count) {
      const uint64_t key = (*random)();
      batch.keys.push_back(key % 4 == 0 ? kMissingKey : key);
    }
    batch.offsets.push_back(static_cast<int64_t>(batch.keys.size()));
  }
  for (size_t i = 0; i < kNumDense * batch.num_examples; ++i) {
    const auto number = static_cast<float>((*random)() % 2000) / 100 - 10;
    const bool is_missing = (*random)() % 5 == 0;
    batch.dense.push_back(is_missing ? std::numeric_limits<float>::quiet_NaN() : number);
  }
  const bool has_weights = !is_single && (*random)() % 2 == 0;
  for (size_t i = 0; has_weights && i < batch.keys.size(); ++i) {
    batch.weights.push_back(static_cast<float>((*random)() % 1000) / 64 + 1);
  }
  return batch;
}

// Rules beside what the twin needs to know of them.
struct Rules {
  std::vector<FeatureRule> features;
  std::vector<uint64_t> folds;  // of each feature, and of the cross; 0: none
  std::vector<float> bounds{-1, 0, 2.5F};
  CrossRule cross;  // of feature 0, the bucket and feature 1
  DenseRule dense;
  bool is_scaled = false;
};

Rules MakeRules(Random* random) {
  Rules rules;
  const uint64_t folds[] = {0, 0, 1, 1000, 262144, 262145, uint64_t{1} << 40, uint64_t{1} << 62};
  for (size_t column = 0; column < kNumFeatures; ++column) {
    FeatureRule rule;
    rule.column = kNumFeatures - 1 - column;
    rule.missing = kMissingKey;
    rule.drops = (*random)() % 3 == 0;
    rule.fills = !rule.drops && (*random)() % 2 == 0;
    rule.most = (*random)() % 3;
    rule.is_last = (*random)() % 2 == 0;
    rules.folds.push_back(folds[(*random)() % 8]);
    if (rules.folds.back() != 0) rule.fold = Fold(rules.folds.back(), column);
    rules.features.push_back(rule);
  }
  rules.cross.parts = {0, kNumFeatures, 1};
  rules.cross.seed = 9;
  rules.cross.most = 1 + (*random)() % 4;
  rules.folds.push_back(folds[(*random)() % 8]);
  if (rules.folds.back() != 0) rules.cross.fold = Fold(rules.folds.back(), rules.cross.seed);
  rules.dense.column = 2;
  rules.dense.finds_missing = true;
  rules.dense.is_filled = (*random)() % 2 == 0;
  rules.dense.instead = 0.5F;
  rules.dense.is_clipped = (*random)() % 2 == 0;
  rules.dense.low = -3;
  rules.dense.high = 4;
  rules.dense.is_logged = (*random)() % 2 == 0;
  rules.dense.mean = 0.25F;
  rules.dense.factor = 3;
  rules.is_scaled = (*random)() % 2 == 0;
  return rules;
}

BatchTransform MakeTransform(const Rules& rules) {
  BatchTransform transform(kNumFeatures, kNumDense, MissingNumber::kNan, 2);
  DenseRule plain;
  plain.column = 3;
  transform.AddDense(plain, false);
  transform.AddDense(rules.dense, rules.is_scaled);
  transform.AddFeature(rules.features[0], 0);
  transform.AddFeature(rules.features[1], 1);
  transform.AddFeature(rules.features[2], 0);
  transform.AddBucket(BucketRule(1, MissingNumber::kNan, rules.bounds, 4, 5), 1);
  transform.AddCross(rules.cross, 0);
  return transform;
}

uint64_t Folded(uint64_t key, uint64_t buckets, uint64_t seed) {
  return buckets == 0 ? key : HashDecimal(key % buckets, seed);
}

Bag TwinOfFeature(const FeatureRule& rule, uint64_t fold, uint64_t seed, Bag bag) {
  if (rule.drops) {
    std::erase_if(bag, [](const auto& one) { return one.first == kMissingKey; });
  }
  if (rule.most != 0 && bag.size() > rule.most) {
    bag.erase(rule.is_last ? bag.begin() : bag.begin() + static_cast<int64_t>(rule.most),
              rule.is_last ? bag.end() - static_cast<int64_t>(rule.most) : bag.end());
  }
  for (auto& [key, weight] : bag) {
    if (!rule.fills || key != kMissingKey) key = Folded(key, fold, seed);
  }
  if (rule.fills && bag.empty()) bag.emplace_back(kMissingKey, 1.0F);
  return bag;
}

Bag TwinOfBucket(const Rules& rules, float value) {
  if (std::isnan(value)) return {{Xxh64("missing", 7, 5), 1.0F}};
  uint64_t bucket = 0;
  for (const float bound : rules.bounds) bucket += bound <= value ? 1 : 0;
  return {{HashDecimal(bucket, 5), 1.0F}};
}

Bag TwinOfCross(const Rules& rules, const Bag& a, const Bag& b, const Bag& c) {
  Bag made;
  for (const auto& one : a) {
    for (const auto& two : b) {
      for (const auto& three : c) {
        const uint64_t tuple[] = {one.first, two.first, three.first};
        const uint64_t key = Xxh64(tuple, sizeof(tuple), rules.cross.seed);
        if (made.size() < rules.cross.most) {
          made.emplace_back(Folded(key, rules.folds[kNumFeatures], rules.cross.seed),
                            one.second * two.second * three.second);
        }
      }
    }
  }
  return made;
}

float TwinOfDense(const Rules& rules, float value) {
  const DenseRule& rule = rules.dense;
  const bool is_missing = std::isnan(value);
  if (is_missing) value = rule.instead;
  if (rule.is_filled || !is_missing) {
    if (rule.is_clipped) value = std::min(std::max(value, rule.low), rule.high);
    if (rule.is_logged) {
      value = static_cast<float>(std::copysign(std::log1p(std::fabs(double{value})), value));
    }
  }
  return rules.is_scaled ? (value - rule.mean) * rule.factor : value;
}

void CheckBag(const TableIds& table, size_t bag, bool has_weights, const Bag& expected) {
  const bool is_single = table.offsets.data == nullptr;
  const auto begin = is_single ? static_cast<int64_t>(bag) : table.offsets.data[bag];
  const auto end = is_single ? begin + 1 : table.offsets.data[bag + 1];
  HPS_CHECK(end - begin == static_cast<int64_t>(expected.size()));
  for (int64_t i = begin; i < end; ++i) {
    HPS_CHECK(table.keys.data[i] == expected[i - begin].first);
    if (has_weights) HPS_CHECK(table.weights.data[i] == expected[i - begin].second);
  }
}

void CheckMade(const Rules& rules, const Batch& batch, const MadeBatch& made) {
  const size_t count = batch.num_examples;
  const bool has_weights = !batch.weights.empty();
  HPS_CHECK(made.tables.size() == 2 && made.dense.size == 2 * count);
  for (size_t row = 0; row < count; ++row) {
    const float* dense = batch.dense.data() + row * kNumDense;
    HPS_CHECK(made.dense.data[2 * row + 1] == TwinOfDense(rules, dense[2]));
    HPS_CHECK(std::isnan(dense[3]) || made.dense.data[2 * row] == dense[3]);
    Bag bags[kNumFeatures];
    for (size_t i = 0; i < kNumFeatures; ++i) {
      const FeatureRule& rule = rules.features[i];
      bags[i] = TwinOfFeature(rule, rules.folds[i], i, batch.At(rule.column, row));
    }
    const Bag bucket = TwinOfBucket(rules, dense[1]);
    CheckBag(made.tables[0], row, has_weights, bags[0]);
    CheckBag(made.tables[0], count + row, has_weights, bags[2]);
    CheckBag(made.tables[0], 2 * count + row, has_weights,
             TwinOfCross(rules, bags[0], bucket, bags[1]));
    CheckBag(made.tables[1], row, has_weights, bags[1]);
    CheckBag(made.tables[1], count + row, has_weights, bucket);
  }
}

void CheckRound(Random* random, ThreadPool* pool) {
  const Rules rules = MakeRules(random);
  const BatchTransform transform = MakeTransform(rules);
  const Batch batch = MakeBatch(random);
  MadeBatch alone;
  MadeBatch shared;
  HPS_CHECK(transform.changes_keys());
  std::thread other([&] { HPS_CHECK(transform.Apply(batch.View(), nullptr, &alone)); });
  HPS_CHECK(transform.Apply(batch.View(), pool, &shared));
  other.join();
  CheckMade(rules, batch, alone);
  CheckMade(rules, batch, shared);
  if (batch.keys.empty()) return;
  Batch wrong = batch;
  wrong.offsets[(*random)() % wrong.offsets.size()] += (*random)() % 2 == 0 ? 1000000 : -1000000;
  MadeBatch refused;
  HPS_CHECK(!transform.Apply(wrong.View(), pool, &refused));
}

}  // namespace
}  // namespace hps

int main() {
  std::printf("seed %u\n", hps::kSeed);
  hps::Random random(hps::kSeed);
  hps::ThreadPool pool(3);
  for (int round = 0; round < hps::kRounds; ++round) hps::CheckRound(&random, &pool);
  return 0;
}
