// Grouping by server around the core's own loops, on one thread, which numbers keys in order of
// first occurrence. The rule, which key is whose, is that of hps/common/sharding.py.
#include "sharding/shard_plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/float_mode.h"
#include "common/hash.h"

namespace hps {
namespace {

constexpr int64_t kFloatsAStep = 4096;  // looked at and then copied from the nearest cache

}  // namespace

ShardPlan::ShardPlan(std::vector<uint32_t> owners, const KeyLoops* loops)
    : owners_(std::move(owners)), loops_(loops), plan_(loops) {
  const uint32_t last = *std::max_element(owners_.begin(), owners_.end());
  starts_.resize(static_cast<size_t>(last) + 2);
}

Status ShardPlan::Open(std::vector<uint32_t> owners, const std::string& instruction_set,
                       std::unique_ptr<ShardPlan>* plan) {
  const size_t count = owners.size();
  if (count == 0 || (count & (count - 1)) != 0) {
    return Status(StatusCode::kConfig, "the number of virtual shards, " + std::to_string(count) +
                                           ", must be a power of two");
  }
  const KeyLoops* loops = ChooseKeyLoops(instruction_set);
  if (loops == nullptr) {
    return Status(StatusCode::kConfig, "instruction set '" + instruction_set +
                                           "' is unknown or this processor lacks it; use 'auto'");
  }
  plan->reset(new ShardPlan(std::move(owners), loops));
  return Status::Ok();
}

uint64_t ShardPlan::VirtualShard(uint64_t key, uint64_t num_virtual) {
  return ShardOfKey(key, num_virtual);
}

void ShardPlan::Build(const uint64_t* keys, int64_t count) {
  sums_ = nullptr;
  plan_.Build(keys, count);
  Group(*plan_.share());
}

bool ShardPlan::Matches(const uint64_t* keys, int64_t count) const {
  return plan_.Matches(keys, count);
}

void ShardPlan::Group(const KeyShare& share) {
  const int64_t count = share.num_unique;
  std::fill(starts_.begin(), starts_.end(), 0);
  unique_keys_ = share.keys;
  is_in_order_ = true;
  if (num_shards() == 1) {
    starts_[1] = count;
    return;
  }
  uint32_t* shards = shards_.Reserve(count);
  const uint64_t mask = owners_.size() - 1;
  for (int64_t id = 0; id < count; ++id) {
    const uint32_t shard = owners_[Xxh64(share.keys + id, sizeof(uint64_t), 0) & mask];
    shards[id] = shard;
    ++starts_[shard + 1];
  }
  for (size_t shard = 1; shard < starts_.size(); ++shard) starts_[shard] += starts_[shard - 1];
  if (OnlyShard() >= 0) return;
  is_in_order_ = false;
  uint32_t* ids = ids_.Reserve(count);
  uint64_t* keys = keys_.Reserve(count);
  std::vector<int64_t> next(starts_.begin(), starts_.end() - 1);
  for (int64_t id = 0; id < count; ++id) {
    const int64_t place = next[shards[id]]++;
    ids[place] = static_cast<uint32_t>(id);
    keys[place] = share.keys[id];
  }
  unique_keys_ = keys;
}

int ShardPlan::OnlyShard() const {
  for (int shard = 0; shard < num_shards(); ++shard) {
    const int64_t size = starts_[shard + 1] - starts_[shard];
    if (size > 0) return size == starts_.back() ? shard : -1;
  }
  return 0;
}

int64_t ShardPlan::SumGradients(const float* gradients, int32_t dim, const BagsView* bags) {
  GradientView view = {gradients, nullptr, nullptr, dim};
  if (bags != nullptr) view = pooling_.Spread(*bags, {gradients}, dim, nullptr);
  plan_.PrepareSums(dim);
  KeyShare* share = plan_.share();
  const DefaultFloatMode mode;
  loops_->sum_gradients(share, dim, view);
  const int64_t bad = loops_->find_not_finite(share->values, num_unique(), dim);
  sums_ = share->values;
  if (is_in_order_) return bad;
  const auto width = static_cast<size_t>(dim);
  float* grouped = grouped_.Reserve(num_unique() * dim);
  for (int64_t place = 0; place < num_unique(); ++place) {
    std::memcpy(grouped + place * dim, share->values + int64_t{ids_.data()[place]} * dim,
                width * sizeof(float));
  }
  sums_ = grouped;
  if (bad < 0) return -1;
  const uint32_t* ids = ids_.data();
  return std::find(ids, ids + num_unique(), static_cast<uint32_t>(bad)) - ids;
}

void ShardPlan::Count(const uint8_t* labels, uint32_t* shows, uint32_t* clicks) {
  const KeyShare& share = *plan_.share();
  const int64_t count = num_unique();
  uint32_t* places = places_.Reserve(count);  // of an id among the grouped keys
  for (int64_t place = 0; place < count; ++place) {
    const int64_t id = is_in_order_ ? place : int64_t{ids_.data()[place]};
    places[id] = static_cast<uint32_t>(place);
  }
  std::fill(shows, shows + count, 0);
  std::fill(clicks, clicks + count, 0);
  for (int64_t i = 0; i < share.num_occurrences; ++i) {
    const uint32_t place = places[share.ids[i] & ~kFirstOfKey];
    shows[place] += 1;
    if (labels != nullptr) clicks[place] += labels[share.scan_positions[i]];
  }
}

int64_t ShardPlan::CopyGradients(const float* gradients, int64_t count, int32_t dim,
                                 uint8_t* out) const {
  const DefaultFloatMode mode;
  const int64_t step = std::max<int64_t>(1, kFloatsAStep / dim);
  for (int64_t first = 0; first < count; first += step) {
    const int64_t num_rows = std::min(step, count - first);
    const float* from = gradients + first * dim;
    const int64_t bad = loops_->find_not_finite(from, num_rows, dim);
    if (bad >= 0) return first + bad;
    const auto num_bytes = static_cast<size_t>(num_rows * dim) * sizeof(float);
    std::memcpy(out + first * dim * static_cast<int64_t>(sizeof(float)), from, num_bytes);
  }
  return -1;
}

void ShardPlan::Scatter(const std::vector<const float*>& parts, int32_t dim, float* out) {
  if (num_occurrences() == 0) return;
  const KeyShare share = WithValues(parts, dim);
  const DefaultFloatMode mode;
  loops_->expand(share, dim, num_occurrences(), {out, dim});
}

void ShardPlan::Pool(const std::vector<const float*>& parts, const BagsView& bags, int32_t dim,
                     float* out) {
  const float** rows = pooling_.PrepareRows(num_occurrences());
  const KeyShare share = WithValues(parts, dim);
  loops_->point(share, {share.values, dim, nullptr}, 0, 1, rows);
  pooling_.Pool(*loops_, bags, dim, nullptr, {out});
}

KeyShare ShardPlan::WithValues(const std::vector<const float*>& parts, int32_t dim) {
  HPS_CHECK(static_cast<int>(parts.size()) == num_shards());
  sums_ = nullptr;
  KeyShare share = *plan_.share();
  if (is_in_order_) {
    // The loops only read the values, so they may stay where they came in.
    share.values = const_cast<float*>(parts[static_cast<size_t>(OnlyShard())]);
    return share;
  }
  plan_.PrepareValues(dim);
  share.values = plan_.share()->values;
  const auto width = static_cast<size_t>(dim) * sizeof(float);
  for (int shard = 0; shard < num_shards(); ++shard) {
    const float* rows = parts[static_cast<size_t>(shard)];
    for (int64_t place = starts_[shard]; place < starts_[shard + 1]; ++place, rows += dim) {
      std::memcpy(share.values + int64_t{ids_.data()[place]} * dim, rows, width);
    }
  }
  return share;
}

}  // namespace hps
