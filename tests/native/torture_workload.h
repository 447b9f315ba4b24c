// TortureWorkload: rows that are a pure function of the number of steps, and the small cache that
// takes the steps.
//
// Above it: torture_lab.h. Below it: csrc/ssd_store. As in tests/torture/oracle.py, rows count:
// step t trains 16 keys of client t mod 3, which adds 1 to the client's column and the key's stamp
// to the last, and every third step erases some. No two steps leave the same rows. The cache is
// small: almost every step fetches rows from the store and evicts others into it.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ssd_store/store.h"

namespace hps {

constexpr uint64_t kNumKeys = 240;
constexpr uint64_t kStepKeys = 16;
constexpr uint64_t kErasedKeys = 3;
constexpr uint64_t kCacheRows = 40;
constexpr uint64_t kRowBytes = 32;  // of dim 4
constexpr int kNumClients = 3;

using Weights = std::array<float, kNumClients + 1>;
using Rows = std::vector<Weights>;  // by key; all zero where the key is not stored

inline float StampOf(uint64_t key) { return static_cast<float>(key % 251 + 1); }

struct Step {
  std::vector<uint64_t> trained;
  std::vector<uint64_t> erased;  // none of those trained
  int client = 0;
};

inline Step StepAt(uint64_t seed, int64_t number) {
  std::mt19937_64 random(MixKey(seed * 1000003 + static_cast<uint64_t>(number)));
  std::vector<uint64_t> keys(kNumKeys);
  for (uint64_t key = 0; key < kNumKeys; ++key) keys[key] = key;
  const uint64_t num_erased = number % 3 == 0 ? kErasedKeys : 0;
  for (uint64_t i = 0; i < kStepKeys + num_erased; ++i) {
    std::swap(keys[i], keys[i + random() % (kNumKeys - i)]);
  }
  Step step;
  step.trained.assign(keys.begin(), keys.begin() + kStepKeys);
  step.erased.assign(keys.begin() + kStepKeys, keys.begin() + kStepKeys + num_erased);
  step.client = static_cast<int>(number % kNumClients);
  return step;
}

inline void Train(uint64_t key, int client, Weights* row) {
  (*row)[client] += 1;
  (*row)[kNumClients] += StampOf(key);
}

// All rows after `number` steps.
inline Rows RowsAfter(uint64_t seed, int64_t number) {
  Rows rows(kNumKeys, Weights{});
  for (int64_t t = 1; t <= number; ++t) {
    const Step step = StepAt(seed, t);
    for (const uint64_t key : step.erased) rows[key] = Weights{};
    for (const uint64_t key : step.trained) Train(key, step.client, &rows[key]);
  }
  return rows;
}

inline void PutRow(uint64_t key, const Weights& weights, std::vector<char>* images) {
  images->resize(images->size() + kRowBytes);
  char* image = images->data() + images->size() - kRowBytes;
  std::memcpy(image, &key, 8);
  std::memcpy(image + 16, weights.data(), sizeof(weights));
}

// The tier above in a few lines: rows in memory, of which others give way, by an append to the
// store, before new ones come in. A call that fails has changed nothing.
class SmallCache {
 public:
  SmallCache(SsdStore* store, uint64_t seed, int64_t steps)
      : store_(store), seed_(seed), steps_(steps) {}

  bool forgets_victims = false;  // a planted bug: victims are gone before the store has them
  int64_t num_evicted = 0;
  int64_t num_fetched = 0;
  int64_t steps() const { return steps_; }  // done so far

  Status TakeStep() {
    const Step step = StepAt(seed_, steps_ + 1);
    std::vector<uint64_t> missing;
    for (const uint64_t key : step.trained) {
      if (rows_.count(key) == 0) missing.push_back(key);
    }
    Rows fetched(missing.size());
    HPS_RETURN_IF_ERROR(Fetch(missing, &fetched));
    HPS_RETURN_IF_ERROR(Evict(step, missing.size()));
    if (!step.erased.empty()) {
      std::vector<uint8_t> found(step.erased.size());
      HPS_RETURN_IF_ERROR(store_->Erase(0, step.erased.data(), step.erased.size(), found.data()));
    }
    for (const uint64_t key : step.erased) rows_.erase(key);
    for (size_t i = 0; i < missing.size(); ++i) rows_[missing[i]] = fetched[i];
    for (const uint64_t key : step.trained) Train(key, step.client, &rows_[key]);
    ++steps_;
    return Status::Ok();
  }

  // Writes what is in memory down and takes a checkpoint; its position is the number of steps.
  Status Checkpoint() {
    std::vector<char> images;
    for (const auto& [key, weights] : rows_) PutRow(key, weights, &images);
    HPS_RETURN_IF_ERROR(store_->Append(0, images.data(), rows_.size()));
    const std::vector<NamedBlob> extras = {{"position", std::to_string(steps_)},
                                           {"dense", std::string(6000, 'd')}};
    CheckpointSummary summary;
    return store_->MakeCheckpoint("", extras, &summary);
  }

  // Every key as the two tiers have it together.
  Status ReadAll(Rows* rows) {
    rows->assign(kNumKeys, Weights{});
    std::vector<uint64_t> below;
    for (uint64_t key = 0; key < kNumKeys; ++key) {
      if (rows_.count(key) > 0)
        (*rows)[key] = rows_.at(key);
      else
        below.push_back(key);
    }
    Rows fetched(below.size());
    HPS_RETURN_IF_ERROR(Fetch(below, &fetched));
    for (size_t i = 0; i < below.size(); ++i) (*rows)[below[i]] = fetched[i];
    return Status::Ok();
  }

 private:
  Status Fetch(const std::vector<uint64_t>& keys, Rows* rows) {
    std::vector<char> images(keys.size() * kRowBytes);
    std::vector<uint8_t> found(keys.size());
    HPS_RETURN_IF_ERROR(
        store_->table(0).Fetch(keys.data(), keys.size(), images.data(), found.data()));
    for (size_t i = 0; i < keys.size(); ++i) {
      (*rows)[i] = Weights{};
      if (found[i]) std::memcpy((*rows)[i].data(), &images[i * kRowBytes + 16], sizeof(Weights));
      num_fetched += found[i];
    }
    return Status::Ok();
  }

  Status Evict(const Step& step, uint64_t num_missing) {
    std::vector<uint64_t> victims;
    std::vector<char> images;
    for (const auto& [key, weights] : rows_) {
      if (rows_.size() - victims.size() + num_missing <= kCacheRows) break;
      if (std::find(step.trained.begin(), step.trained.end(), key) != step.trained.end()) continue;
      victims.push_back(key);
      PutRow(key, weights, &images);
    }
    if (victims.empty()) return Status::Ok();
    const Status appended = store_->Append(0, images.data(), victims.size());
    if (appended.ok() || forgets_victims) {
      for (const uint64_t key : victims) rows_.erase(key);
    }
    num_evicted += static_cast<int64_t>(victims.size());
    return appended;
  }

  SsdStore* store_;
  uint64_t seed_;
  int64_t steps_;
  std::map<uint64_t, Weights> rows_;
};

}  // namespace hps
