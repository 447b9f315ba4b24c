// ShardPlan at many widths, under the sanitizers: batches that grow and shrink on one plan, all
// keys on one shard, hot keys, no key; each group in order of first occurrence, each sum and row
// against a plain loop.
//
// Above it: CTest. Below it: csrc/sharding.
#include "sharding/shard_plan.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "common/check.h"

namespace hps {
namespace {

constexpr uint64_t kNumVirtual = 64;

std::unique_ptr<ShardPlan> MakePlan(uint64_t num_shards) {
  std::vector<uint32_t> owners;
  for (uint64_t v = 0; v < kNumVirtual; ++v) {
    owners.push_back(static_cast<uint32_t>(v * num_shards / kNumVirtual));
  }
  std::unique_ptr<ShardPlan> plan;
  HPS_CHECK(ShardPlan::Open(owners, "auto", &plan).ok());
  return plan;
}

uint64_t OwnerOf(uint64_t key, uint64_t num_shards) {
  return ShardPlan::VirtualShard(key, kNumVirtual) * num_shards / kNumVirtual;
}

// The distinct keys by shard, in order of first occurrence.
std::vector<uint64_t> Expected(const std::vector<uint64_t>& keys, uint64_t num_shards) {
  std::vector<std::vector<uint64_t>> groups(num_shards);
  std::map<uint64_t, bool> seen;
  for (const uint64_t key : keys) {
    if (!seen.emplace(key, true).second) continue;
    groups[OwnerOf(key, num_shards)].push_back(key);
  }
  std::vector<uint64_t> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

void CheckMatches(const ShardPlan& plan, std::vector<uint64_t> keys) {
  const auto count = static_cast<int64_t>(keys.size());
  HPS_CHECK(plan.Matches(keys.data(), count));
  if (keys.empty()) return;
  HPS_CHECK(!plan.Matches(keys.data(), count - 1));
  keys.back() ^= 1;
  HPS_CHECK(!plan.Matches(keys.data(), count));
}

// Whole numbers, whose sums are exact in any order.
void CheckSums(ShardPlan* plan, const std::vector<uint64_t>& keys, int32_t dim) {
  std::vector<float> gradients(keys.size() * static_cast<size_t>(dim));
  std::map<uint64_t, float> sums;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto value = static_cast<float>(i % 16);
    sums[keys[i]] += value;
    for (int32_t d = 0; d < dim; ++d) gradients[i * static_cast<size_t>(dim) + d] = value;
  }
  HPS_CHECK(plan->SumGradients(gradients.data(), dim) == -1);
  for (int64_t i = 0; i < plan->num_unique(); ++i) {
    for (int32_t d = 0; d < dim; ++d) {
      HPS_CHECK(plan->sums()[i * dim + d] == sums[plan->unique_keys()[i]]);
    }
  }
}

void CheckCounts(ShardPlan* plan, const std::vector<uint64_t>& keys) {
  std::vector<uint8_t> labels(keys.size());
  std::map<uint64_t, std::pair<uint32_t, uint32_t>> expected;
  for (size_t i = 0; i < keys.size(); ++i) {
    labels[i] = static_cast<uint8_t>(i % 3 == 0);
    expected[keys[i]].first += 1;
    expected[keys[i]].second += labels[i];
  }
  const auto count = static_cast<size_t>(plan->num_unique());
  for (const bool has_labels : {true, false}) {
    std::vector<uint32_t> shows(count, 77);
    std::vector<uint32_t> clicks(count, 77);
    plan->Count(has_labels ? labels.data() : nullptr, shows.data(), clicks.data());
    for (size_t i = 0; i < count; ++i) {
      const auto& [show, click] = expected[plan->unique_keys()[i]];
      HPS_CHECK(shows[i] == show && clicks[i] == (has_labels ? click : 0));
    }
  }
}

void CheckRows(ShardPlan* plan, const std::vector<uint64_t>& keys, int32_t dim) {
  const auto width = static_cast<size_t>(dim);
  std::vector<std::vector<float>> rows(static_cast<size_t>(plan->num_shards()));
  std::vector<const float*> parts;
  for (size_t shard = 0; shard < rows.size(); ++shard) {
    for (int64_t i = plan->starts()[shard]; i < plan->starts()[shard + 1]; ++i) {
      rows[shard].insert(rows[shard].end(), width,
                         static_cast<float>(plan->unique_keys()[i] % 65536));
    }
    parts.push_back(rows[shard].data());
  }
  std::vector<float> out(keys.size() * width);
  plan->Scatter(parts, dim, out.data());
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t d = 0; d < width; ++d) {
      HPS_CHECK(out[i * width + d] == static_cast<float>(keys[i] % 65536));
    }
  }
}

void TestShards(uint64_t num_shards) {
  const auto plan = MakePlan(num_shards);
  std::mt19937_64 random(num_shards);
  for (const size_t count : {1u, 0u, 700u, 40u, 6000u, 33u}) {
    for (const uint64_t distinct : {uint64_t{3}, uint64_t{500}, ~uint64_t{0}}) {
      std::vector<uint64_t> keys(count);
      for (uint64_t& key : keys) key = random() % distinct;
      plan->Build(keys.data(), static_cast<int64_t>(count));
      CheckMatches(*plan, keys);
      CheckCounts(plan.get(), keys);
      const std::vector<uint64_t> expected = Expected(keys, num_shards);
      HPS_CHECK(plan->num_unique() == static_cast<int64_t>(expected.size()));
      HPS_CHECK(std::memcmp(plan->unique_keys(), expected.data(), expected.size() * 8) == 0);
      for (const int32_t dim : {1, 6, 16, 33}) {
        // Either may be the first that needs room for so wide a row.
        if (dim % 2 == 0) CheckSums(plan.get(), keys, dim);
        CheckRows(plan.get(), keys, dim);
        if (dim % 2 == 1) CheckSums(plan.get(), keys, dim);
      }
    }
  }
}

void TestRefusals() {
  std::unique_ptr<ShardPlan> plan;
  HPS_CHECK(ShardPlan::Open({0, 1, 1}, "auto", &plan).code() == StatusCode::kConfig);
  HPS_CHECK(ShardPlan::Open({}, "auto", &plan).code() == StatusCode::kConfig);
  HPS_CHECK(ShardPlan::Open({0, 1}, "sse9", &plan).code() == StatusCode::kConfig);
}

}  // namespace
}  // namespace hps

int main() {
  for (const uint64_t num_shards : {1, 2, 3, 64}) hps::TestShards(num_shards);
  hps::TestRefusals();
  std::puts("shard plan: ok");
  return 0;
}
