// BatchPlan's making: who owns which part of a batch, room for each worker, windows over unique
// keys.
#include "dram_cache/batch_plan.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace hps {
namespace {

constexpr int64_t kKeysPerWorker = 4096;  // below this a second thread costs more than it saves
constexpr int64_t kLeastSampled = 1024;
constexpr int64_t kMostSampled = 16384;
constexpr int64_t kBalance = 16;  // no worker may have more than an average and one in so many
constexpr int64_t kRepeats = 64;  // keys repeat if one in so many does
constexpr uint64_t kBitsOfSampled = 64;
constexpr int kPullsAfterMiss = 16;
constexpr uint64_t kMinIdTable = 1 << 12;
constexpr int64_t kLeastPulledEach = 4096;
constexpr int kPullsToWait = 256;
constexpr int64_t kKeyPadding = 64;  // look-ups read whole groups of keys

uint64_t PowerOfTwoFrom(uint64_t least) {
  uint64_t power = 1;
  while (power < least) power *= 2;
  return power;
}

}  // namespace

// Writes hashes of some of the keys to sample_: one key from each stretch of equal length and not
// always from the same place in it, for a batch may be a table whose columns differ. They are
// written down before anyone counts them, so that keys that no cache holds are waited for together.
// Returns how many.
int64_t BatchPlan::Sample(const uint64_t* keys, int64_t count) {
  const int64_t wanted = std::clamp<int64_t>(count / 64, kLeastSampled, kMostSampled);
  const int64_t stretch = std::max<int64_t>(1, count / wanted);
  const int64_t num_sampled = count / stretch;
  uint64_t* hashes = sample_.Reserve(num_sampled);
  for (int64_t i = 0; i < num_sampled; ++i) {
    const uint64_t bits = MixKey(static_cast<uint64_t>(i)) >> 32;
    const uint64_t place = Choose(bits, static_cast<uint64_t>(stretch));
    hashes[i] = MixKey(keys[i * stretch + static_cast<int64_t>(place)]);
  }
  return num_sampled;
}

void BatchPlan::Empty() {
  num_occurrences_ = num_unique_ = window_first_ = window_size_ = 0;
  num_workers_ = 0;
}

void BatchPlan::Begin(int64_t count, int64_t num_parts, ThreadPool* pool) {
  HPS_CHECK(count >= 0 && count < (int64_t{1} << 31));
  HPS_CHECK(state != State::kReserved && state != State::kPinned);
  // Empty until it is made: there may be no memory for it.
  state = State::kKeys;
  Empty();
  num_victims = 0;
  keys_.Reserve(count);
  num_occurrences_ = count;
  const int64_t useful = std::min<int64_t>(1 + count / kKeysPerWorker, num_parts);
  const auto num_workers = static_cast<int>(std::min<int64_t>(pool->num_threads(), useful));
  while (static_cast<int>(workers_.size()) < num_workers) workers_.emplace_back();
  num_workers_ = num_workers;
  for (int i = 0; i < num_workers; ++i) {
    WorkerBatch& batch = workers_[i].batch;
    batch.num_unique = batch.num_occurrences = batch.num_missing = batch.num_hot = 0;
  }
  is_sorted_ = false;
  was_pulled_each_ = false;
}

bool BatchPlan::ChoosePullEach(const uint64_t* keys, int64_t count) {
  if (pulls_to_wait_ > 0) {
    --pulls_to_wait_;
    return false;
  }
  if (count < kLeastPulledEach || has_repeats_) return false;
  const int64_t num_sampled = Sample(keys, count);
  const uint64_t num_bits = PowerOfTwoFrom(kBitsOfSampled * static_cast<uint64_t>(num_sampled));
  uint64_t* seen = seen_.Reserve(static_cast<int64_t>(num_bits / 64));
  std::memset(seen, 0, num_bits / 8);
  int64_t num_repeated = 0;
  for (int64_t i = 0; i < num_sampled; ++i) {
    const uint64_t place = sample_[i] & (num_bits - 1);
    const uint64_t bit = uint64_t{1} << (place % 64);
    num_repeated += (seen[place / 64] & bit) != 0;
    seen[place / 64] |= bit;
  }
  // Of so many distinct keys one in 128 meets another's bit.
  return num_repeated * kRepeats < num_sampled;
}

void BatchPlan::MissPulledEach(int64_t count) {
  if (was_pulled_each_ && count == num_pulled_each_) pulls_to_wait_ = kPullsToWait;
}

void BatchPlan::BeginPullEach(const uint64_t* keys, int64_t num_parts, bool only_reads) {
  if (!only_reads) ChooseOwners(keys, num_parts);
  for (int i = 0; i < num_workers_; ++i) {
    Prepare(&workers_[i]);
    WorkerBatch& batch = workers_[i].batch;
    batch.window_begin = only_reads ? num_occurrences_ * i / num_workers_ : 0;
    batch.window_end = only_reads ? num_occurrences_ * (i + 1) / num_workers_ : num_occurrences_;
    if (only_reads) batch.owned_parts = ~uint64_t{0};
  }
}

int64_t BatchPlan::EndPullEach() {
  const int64_t missing = num_missing();
  num_pulled_each_ = num_occurrences_;
  Empty();
  was_pulled_each_ = true;
  if (missing > 0) pulls_to_wait_ = kPullsAfterMiss;
  return missing;
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
  is_balanced_ = most * num_workers_ * kBalance <= num_occurrences_ * (kBalance + 1);
  if (num_occurrences_ >= kLeastPulledEach) {
    has_repeats_ = num_unique_ * kRepeats < num_occurrences_ * (kRepeats - 1);
  }
}

// Spreads the parts so that each worker gets about as many occurrences, by a sample of the batch:
// with skewed keys equal numbers of parts would not do. Any assignment gives the same result; it is
// kept while it does, for a row is soonest found in the near cache of the core that wrote it last.
void BatchPlan::ChooseOwners(const uint64_t* keys, int64_t num_parts) {
  const int num_workers = num_workers_;
  if (num_workers == 1) {
    workers_[0].batch.owned_parts = ~uint64_t{0};
    return;
  }
  if (num_workers != num_owners_ || num_parts != num_parts_owned_ || !is_balanced_) {
    SpreadParts(keys, num_parts);
    num_owners_ = num_workers;
    num_parts_owned_ = num_parts;
  }
  for (int i = 0; i < num_workers; ++i) workers_[i].batch.owned_parts = workers_[i].parts;
}

void BatchPlan::SpreadParts(const uint64_t* keys, int64_t num_parts) {
  const int num_workers = num_workers_;
  int64_t weights[kNumSubparts] = {};
  const int64_t group = kNumSubparts / num_parts;
  const int64_t num_sampled = Sample(keys, num_occurrences_);
  for (int64_t i = 0; i < num_sampled; ++i) {
    weights[static_cast<int64_t>(sample_[i] >> 58) / group] += 1;
  }
  int64_t loads[kMaxParts] = {};
  int order[kNumSubparts];
  for (int part = 0; part < num_parts; ++part) order[part] = part;
  std::stable_sort(order, order + num_parts,
                   [&](int left, int right) { return weights[left] > weights[right]; });
  for (int i = 0; i < num_workers; ++i) workers_[i].parts = 0;
  const uint64_t part_bits = group == 64 ? ~uint64_t{0} : (uint64_t{1} << group) - 1;
  for (int64_t i = 0; i < num_parts; ++i) {
    const auto lightest = std::min_element(loads, loads + num_workers) - loads;
    loads[lightest] += weights[order[i]] + 1;
    workers_[lightest].parts |= part_bits << (order[i] * group);
  }
}

// The copy, by which a later push knows this plan, is made by all workers together.
void BatchPlan::CopyKeys(int worker, const uint64_t* keys) {
  const int64_t first = num_occurrences_ * worker / num_workers_;
  const int64_t last = num_occurrences_ * (worker + 1) / num_workers_;
  std::memcpy(keys_.data() + first, keys + first,
              static_cast<size_t>(last - first) * sizeof(uint64_t));
}

void BatchPlan::Prepare(Worker* worker) {
  WorkerBatch& batch = worker->batch;
  const int64_t most = num_occurrences_;
  batch.keys = worker->keys.Reserve(most + kKeyPadding);
  batch.ids = worker->ids.Reserve(most + kOccurrencePadding);
  batch.scan_positions = worker->scan_positions.Reserve(most + kOccurrencePadding);
  batch.slots = worker->slots.Reserve(most);
  batch.missing = worker->missing.Reserve(most);
  batch.num_missing = 0;
  batch.num_reserved = 0;
  batch.id_mask = 0;
}

// Makes the id table as large as the batch before wanted it, or twice as large as it is.
void BatchPlan::GrowIdTable(Worker* worker, int32_t dim) {
  WorkerBatch& batch = worker->batch;
  const uint64_t entries =
      batch.id_mask != 0
          ? 2 * (batch.id_mask + 1)
          : PowerOfTwoFrom(std::max(kMinIdTable, static_cast<uint64_t>(4 * worker->last_unique)));
  batch.id_table = worker->id_table.Reserve(static_cast<int64_t>(entries));
  batch.id_mask = entries - 1;
  batch.most_unique = static_cast<int64_t>(entries - entries / 8);
  if (dim != 0) {
    batch.values = worker->values.Reserve(std::min(batch.most_unique, num_occurrences_) * dim);
  }
}

void BatchPlan::Finish(Worker* worker) {
  WorkerBatch& batch = worker->batch;
  worker->last_unique = batch.num_unique;
  batch.window_begin = 0;
  batch.window_end = batch.num_unique;
  std::memset(batch.keys + batch.num_unique, 0, kKeyPadding * sizeof(uint64_t));
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

bool BatchPlan::Matches(const uint64_t* keys, int64_t count) const {
  return count == num_occurrences_ &&
         std::memcmp(keys, keys_.data(), static_cast<size_t>(count) * sizeof(uint64_t)) == 0;
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
  for (int i = 0; i < num_workers_; ++i) {
    Worker& worker = workers_[i];
    worker.batch.values = worker.values.Reserve(worker.batch.num_unique * dim);
  }
}

void BatchPlan::PrepareSums(int32_t dim) {
  for (int i = 0; i < num_workers_; ++i) {
    Worker& worker = workers_[i];
    WorkerBatch& batch = worker.batch;
    const int64_t most_runs = batch.num_occurrences / kRunLength + 1;
    // Every hot key's last run may be set aside before it is full.
    batch.values = worker.values.Reserve((batch.num_unique + 2 * most_runs) * dim);
    batch.counts = worker.counts.Reserve(batch.num_unique);
    batch.youngest = worker.youngest.Reserve(batch.num_unique);
    batch.hot_ids = worker.hot_ids.Reserve(most_runs);
    batch.older = worker.older.Reserve(2 * most_runs);
  }
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
