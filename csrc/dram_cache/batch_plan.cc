// BatchPlan's making: room for each worker, windows over unique keys.
#include "dram_cache/batch_plan.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace hps {
namespace {

constexpr int kPullsAfterMiss = 16;
constexpr int kPullsToWait = 256;
constexpr int kPushesToWait = 16;

}  // namespace

void BatchPlan::Empty() {
  shares_.Empty();
  num_unique_ = window_first_ = window_size_ = 0;
  num_workers_ = 0;
}

void BatchPlan::Begin(int64_t count, int64_t num_parts, ThreadPool* pool) {
  HPS_CHECK(state != State::kReserved && state != State::kPinned && state != State::kEach);
  // Empty until it is made: there may be no memory for it.
  state = State::kKeys;
  Empty();
  num_victims = 0;
  num_parts_ = num_parts;
  shares_.Begin(count, num_parts, is_alone_ ? 1 : pool->num_threads());
  while (static_cast<int>(workers_.size()) < shares_.num_owners()) workers_.emplace_back();
  num_workers_ = shares_.num_owners();
  for (int i = 0; i < num_workers_; ++i) {
    WorkerBatch& batch = workers_[i].batch;
    batch.num_unique = batch.num_occurrences = batch.num_missing = batch.num_hot = 0;
    batch.gradients = nullptr;
  }
  is_sorted_ = false;
  was_pulled_each_ = false;
}

bool BatchPlan::BuildAs(const BatchPlan& other, int64_t num_parts, ThreadPool* pool) {
  HPS_CHECK(other.state != State::kEach && !other.was_pulled_each_);
  Begin(other.num_occurrences(), num_parts, pool);
  const bool are_divided_alike = num_workers_ == 1 || num_parts == other.num_parts_;
  if (num_workers_ != other.num_workers_ || !are_divided_alike) return false;
  shares_.TakeOwners(other.shares_);
  const auto work = [&](int i) {
    WorkerBatch& batch = workers_[i].batch;
    shares_.CopyKeys(i, other.keys());
    Prepare(i);
    shares_.CopyNumbers(i, other.workers_[i].batch, &batch);
    batch.window_begin = 0;
    batch.window_end = batch.num_unique;
  };
  if (num_workers_ == 1) {
    work(0);
  } else {
    pool->Run([&](int i) {
      if (i < num_workers_) work(i);
    });
  }
  CountUnique();
  return true;
}

bool BatchPlan::ChoosePullEach(const uint64_t* keys, int64_t count) {
  if (pulls_to_wait_ > 0) {
    --pulls_to_wait_;
    return false;
  }
  return SeemDistinct(keys, count);
}

void BatchPlan::MissPulledEach(int64_t count) {
  if (was_pulled_each_ && count == num_pulled_each_) pulls_to_wait_ = kPullsToWait;
}

void BatchPlan::BeginPullEach(const uint64_t* keys, bool only_reads) {
  if (!only_reads) shares_.ChooseOwners(keys);
  const int64_t count = num_occurrences();
  for (int i = 0; i < num_workers_; ++i) {
    Prepare(i);
    WorkerBatch& batch = workers_[i].batch;
    batch.window_begin = only_reads ? count * i / num_workers_ : 0;
    batch.window_end = only_reads ? count * (i + 1) / num_workers_ : count;
    if (only_reads) batch.owned_parts = ~uint64_t{0};
  }
}

int64_t BatchPlan::EndPullEach() {
  const int64_t missing = num_missing();
  num_pulled_each_ = num_occurrences();
  Empty();
  was_pulled_each_ = true;
  if (missing > 0) pulls_to_wait_ = kPullsAfterMiss;
  return missing;
}

bool BatchPlan::ChooseFindEach(const uint64_t* keys, int64_t count) {
  if (pushes_to_wait_ > 0) {
    --pushes_to_wait_;
    return false;
  }
  return SeemDistinct(keys, count);
}

void BatchPlan::BeginFindEach(const uint64_t* keys, const float* gradients, int32_t dim) {
  shares_.ChooseOwners(keys);
  const int64_t count = num_occurrences();
  for (int i = 0; i < num_workers_; ++i) {
    Prepare(i);
    PrepareValues(i, 1, dim);
    WorkerBatch& batch = workers_[i].batch;
    batch.gradients = gradients;
    batch.num_repeats = 0;
    batch.window_begin = count * i / num_workers_;
    batch.window_end = count * (i + 1) / num_workers_;
  }
}

bool BatchPlan::EndFindEach() {
  bool is_whole = true;
  ForWorkersInTurn([&](WorkerBatch* worker) {
    is_whole &= worker->num_missing + worker->num_repeats + worker->result == 0;
    worker->window_begin = 0;
    worker->window_end = worker->num_unique;
  });
  if (is_whole) {
    CountUnique();
    state = State::kEach;
  } else {
    pushes_to_wait_ = kPushesToWait;
  }
  return is_whole;
}

void BatchPlan::Forget() {
  Empty();
  state = State::kKeys;
}

void BatchPlan::CountUnique() {
  num_unique_ = 0;
  int64_t most = 0;
  ForWorkersInTurn([&](WorkerBatch* worker) {
    num_unique_ += worker->num_unique;
    most = std::max(most, worker->num_occurrences);
  });
  window_first_ = 0;
  window_size_ = num_unique_;
  shares_.NoteNumbered(num_unique_, most);
}

void BatchPlan::Prepare(int worker) {
  Worker& mine = workers_[worker];
  WorkerBatch& batch = mine.batch;
  shares_.Prepare(worker, &batch);
  batch.slots = mine.slots.Reserve(num_occurrences());
  batch.missing = mine.missing.Reserve(num_occurrences());
  batch.num_missing = 0;
  batch.num_reserved = 0;
  batch.withheld = nullptr;
}

void BatchPlan::PrepareValues(int worker, int64_t count, int32_t dim) {
  workers_[worker].batch.values = workers_[worker].values.Reserve(count * dim);
}

void BatchPlan::SortPositions(const BatchLoops& loops, ThreadPool* pool) {
  if (is_sorted_) return;
  for (int i = 0; i < num_workers_; ++i) {
    Worker& worker = workers_[i];
    worker.batch.starts = worker.starts.Reserve(worker.batch.num_unique + 1);
    worker.batch.positions = worker.positions.Reserve(worker.batch.num_occurrences);
  }
  ForWorkers(pool, [&](WorkerBatch* worker) { loops.sort_positions(worker); });
  is_sorted_ = true;
}

void BatchPlan::SetWindow(int64_t first, int64_t count) {
  HPS_CHECK(first >= 0 && count >= 0 && first + count <= num_unique_);
  window_first_ = first;
  window_size_ = count;
  int64_t base = 0;
  ForWorkersInTurn([&](WorkerBatch* worker) {
    const int64_t size = worker->num_unique;
    worker->window_begin = std::clamp<int64_t>(first - base, 0, size);
    worker->window_end = std::clamp<int64_t>(first + count - base, 0, size);
    worker->num_missing = 0;
    worker->num_reserved = 0;
    base += size;
  });
}

void BatchPlan::PrepareMissing() {
  for (int i = 0; i < num_workers_; ++i) {
    Worker& worker = workers_[i];
    const int64_t count = worker.batch.num_missing;
    worker.batch.order = worker.order.Reserve(count);
    worker.batch.second_round = worker.second_round.Reserve(count);
    worker.batch.reservations = worker.reservations.Reserve(count);
  }
  uint64_t* keys = missing_keys.Reserve(num_missing());
  ForWorkersInTurn([&](WorkerBatch* worker) {
    for (int64_t i = 0; i < worker->num_missing; ++i) *keys++ = worker->keys[worker->missing[i]];
  });
}

void BatchPlan::PrepareValues(int32_t dim) {
  for (int i = 0; i < num_workers_; ++i) PrepareValues(i, workers_[i].batch.num_unique, dim);
}

void BatchPlan::PrepareSums(int32_t dim) {
  PrepareValues(dim);
  for (int i = 0; i < num_workers_; ++i) shares_.PrepareSums(i, dim, &workers_[i].batch);
}

void BatchPlan::PrepareFresh() {
  for (int i = 0; i < num_workers_; ++i) {
    Worker& worker = workers_[i];
    WorkerBatch& batch = worker.batch;
    const int64_t size = batch.window_end - batch.window_begin;
    batch.num_listed = 0;
    batch.fresh = worker.fresh.Reserve(size);
    batch.fresh_keys = worker.fresh_keys.Reserve(size + KeyShares::kKeyPadding);
    batch.beside = worker.beside.Reserve(size);
    batch.withheld = worker.withheld.Reserve(batch.num_unique);
    std::memset(batch.withheld, 0, static_cast<size_t>(batch.num_unique));
  }
}

int64_t BatchPlan::num_listed() const {
  int64_t count = 0;
  for (int i = 0; i < num_workers_; ++i) count += workers_[i].batch.num_listed;
  return count;
}

void BatchPlan::CountClicks(const uint8_t* labels, ThreadPool* pool) {
  int number = 0;
  ForWorkersInTurn([&](WorkerBatch* worker) { worker->result = number++; });
  ForWorkers(pool, [&](WorkerBatch* worker) {
    shares_.CountClicks(static_cast<int>(worker->result), labels, worker);
  });
}

void BatchPlan::Pool(const KeyLoops& loops, const BagsView& bags, int32_t dim, ThreadPool* pool,
                     OutputValues out, const float* first, int64_t stride) {
  const float** rows = pooling_.PrepareRows(num_occurrences());
  int number = 0;
  ForWorkersInTurn([&](WorkerBatch* worker) { worker->result = number++; });
  ForWorkers(pool, [&](WorkerBatch* worker) {
    const bool has_values = first == nullptr;
    const ValuePlaces places = {has_values ? worker->values : first, stride,
                                has_values ? nullptr : worker->slots};
    loops.point(*worker, places, static_cast<int>(worker->result), num_workers_, rows);
  });
  pooling_.Pool(loops, bags, dim, is_alone_ ? nullptr : pool, out);
}

int64_t BatchPlan::num_missing() const {
  int64_t count = 0;
  for (int i = 0; i < num_workers_; ++i) count += workers_[i].batch.num_missing;
  return count;
}

void BatchPlan::CopyUniqueKeys(uint64_t* keys) const {
  for (int i = 0; i < num_workers_; ++i) {
    const WorkerBatch& batch = workers_[i].batch;
    std::memcpy(keys, batch.keys, static_cast<size_t>(batch.num_unique) * sizeof(uint64_t));
    keys += batch.num_unique;
  }
}

uint64_t BatchPlan::UniqueKey(int64_t id) const {
  for (int i = 0; i < num_workers_; ++i) {
    const WorkerBatch& batch = workers_[i].batch;
    if (id < batch.num_unique) return batch.keys[id];
    id -= batch.num_unique;
  }
  HPS_CHECK(false);
  return 0;
}

}  // namespace hps
