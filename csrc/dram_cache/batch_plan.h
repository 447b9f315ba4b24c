// BatchPlan: a batch's keys, deduplicated and divided over the workers, with their slots once
// found.
//
// Above it: dram_cache.cc and the bindings (a push reuses the plan of the pull before it). Below
// it: csrc/batch, which divides the keys; batch_loops.h, which works on its WorkerBatches. Owns all
// memory of a batch and keeps it for the next one. Not thread-safe; belongs to one cache at a time.
#pragma once

#include <algorithm>
#include <deque>

#include "batch/key_shares.h"
#include "batch/pooling.h"
#include "common/array.h"
#include "common/float_mode.h"
#include "common/thread_pool.h"
#include "dram_cache/batch_loops.h"

namespace hps {

class BatchPlan {
 public:
  enum class State {
    kKeys,      // deduplicated
    kFound,     // window looked up, some keys missing
    kReserved,  // window pinned, missing keys hold slots without rows
    kPinned,    // window pinned, every row in place
    kResolved,  // every key of the batch has a row; valid while the cache's epoch stands
    kEach,      // as kResolved of keys that were not numbered: each occurs once, its row is marked
                // as taken, and the gradients are the caller's, to be applied or abandoned next
  };

  BatchPlan() = default;
  BatchPlan(const BatchPlan&) = delete;
  BatchPlan& operator=(const BatchPlan&) = delete;

  // Copies keys[count] and has every worker deduplicate its share by deduplicate(its batch), which
  // returns false if it needs a larger id table. Each of the table's parts goes to one worker
  // whole. There is room for a value of `dim` floats a key.
  template <class Deduplicate>
  void Build(const uint64_t* keys, int64_t count, int64_t num_parts, int32_t dim, ThreadPool* pool,
             Deduplicate deduplicate) {
    Begin(count, num_parts, pool);
    shares_.ChooseOwners(keys);
    const auto work = [&](int i) {
      shares_.CopyKeys(i, keys);
      Prepare(i);
      WorkerBatch* batch = &workers_[i].batch;
      shares_.Number(i, batch, [&] {
        if (dim != 0) PrepareValues(i, std::min(batch->most_unique, num_occurrences()), dim);
        return deduplicate(batch);
      });
      batch->window_begin = 0;
      batch->window_end = batch->num_unique;
    };
    if (num_workers_ == 1) {
      const DefaultFloatMode mode;
      work(0);
    } else {
      pool->Run([&](int i) {
        if (i < num_workers_) work(i);
      });
    }
    CountUnique();
  }

  // As Build of the keys of another plan, which Build has made, by a copy of what that one came to.
  // False, and nothing is built, where they would be divided otherwise among the workers.
  bool BuildAs(const BatchPlan& other, int64_t num_parts, ThreadPool* pool);

  // True unless keys[count] probably repeat: by the last batch that was deduplicated, and by a
  // sample of this one.
  bool SeemDistinct(const uint64_t* keys, int64_t count) {
    return shares_.SeemDistinct(keys, count);
  }
  // Whether keys[count] are to be pulled without deduplicating them: neither the last batch that
  // was deduplicated nor a sample of this one repeats keys, and such a pull has not lately missed a
  // key, or come before a push, which needs them deduplicated after all. Counts the pulls.
  bool ChoosePullEach(const uint64_t* keys, int64_t count);
  // A plan for `count` keys is wanted: if as many were just pulled, they are probably the same, and
  // that pull had better deduplicated.
  void MissPulledEach(int64_t count);
  // Has every worker go through its share by pull(its batch): all keys of its parts, or, if rows
  // are only read, a piece of the batch. The plan is empty afterwards; returns how many keys were
  // missing.
  template <class Pull>
  int64_t PullEach(const uint64_t* keys, int64_t count, int64_t num_parts, bool only_reads,
                   ThreadPool* pool, Pull pull) {
    Begin(count, num_parts, pool);
    BeginPullEach(keys, only_reads);
    ForWorkers(pool, pull);
    return EndPullEach();
  }

  // Whether a push of keys[count] is to be looked up without numbering them: neither the last batch
  // that was numbered nor a sample of this one repeats keys, and such a look-up has not lately met
  // a key twice, or none. Counts the pushes.
  bool ChooseFindEach(const uint64_t* keys, int64_t count);
  // Has every worker go through its share by find(its batch), whose window is a piece of the
  // gradients [count, dim] meanwhile and which sets `result` to 0 if that is finite. True, and the
  // state is kEach, if all keys are here, each once. Else the rows found are still marked as taken.
  template <class Find>
  bool FindEach(const uint64_t* keys, int64_t count, int64_t num_parts, const float* gradients,
                int32_t dim, ThreadPool* pool, Find find) {
    Begin(count, num_parts, pool);
    BeginFindEach(keys, gradients, dim);
    ForWorkers(pool, find);
    return EndFindEach();
  }
  // Forgets the batch; nothing of it may be held.
  void Forget();
  // From the next batch on one worker has all of it, and works where it is called; or as many as
  // there are threads.
  void WorkAlone(bool is_alone) { is_alone_ = is_alone; }

  // True if keys[count] are this plan's, byte for byte.
  bool Matches(const uint64_t* keys, int64_t count) const { return shares_.Matches(keys, count); }

  // Runs task(worker) for each worker of this plan, in parallel where there are several.
  template <class Task>
  void ForWorkers(ThreadPool* pool, Task task) {
    if (num_workers_ <= 1) return ForWorkersInTurn(task);
    pool->Run([&](int i) {
      if (i < num_workers_) task(&workers_[i].batch);
    });
  }

  template <class Task>
  void ForWorkersInTurn(Task task) {
    const DefaultFloatMode mode;  // the pool, which this goes past, sees to it otherwise
    for (int i = 0; i < num_workers_; ++i) task(&workers_[i].batch);
  }

  // Runs task(worker, first) for each worker, `first` being where its part of the window begins in
  // the order of the window's unique keys.
  template <class Task>
  void ForWindow(ThreadPool* pool, Task task) {
    int64_t first = 0;
    ForWorkersInTurn([&](WorkerBatch* worker) {
      worker->result = first;
      first += worker->window_end - worker->window_begin;
    });
    ForWorkers(pool, [&](WorkerBatch* worker) { task(worker, worker->result); });
  }

  // The window becomes unique keys [first, first + count), counted over the workers in turn.
  void SetWindow(int64_t first, int64_t count);
  // Makes room for what reserve needs to know about the window's missing keys.
  void PrepareMissing();
  // Makes room for a value a key.
  void PrepareValues(int32_t dim);
  // Makes room for a sum a key, and for what summing needs besides.
  void PrepareSums(int32_t dim);
  // Counts each key's occurrences with label 1 of labels[count]; null: there are no labels.
  void CountClicks(const uint8_t* labels, ThreadPool* pool);
  // Pools the values of all keys of the batch into out [examples, features * dim].
  void PoolValues(const KeyLoops& loops, const BagsView& bags, int32_t dim, ThreadPool* pool,
                  OutputValues out) {
    Pool(loops, bags, dim, pool, out, nullptr, dim);
  }
  // The same of weights that are at `first` + slot * stride.
  void PoolSlots(const KeyLoops& loops, const BagsView& bags, int32_t dim, ThreadPool* pool,
                 OutputValues out, const float* first, int64_t stride) {
    Pool(loops, bags, dim, pool, out, first, stride);
  }
  // Gradients of bags as those of the occurrences; good until the next such call.
  GradientView Spread(const BagsView& bags, GradientValues gradients, int32_t dim,
                      ThreadPool* pool) {
    return pooling_.Spread(bags, gradients, dim, is_alone_ ? nullptr : pool);
  }
  // Makes room to list the window's fresh rows, to look their keys up in another table, and to
  // withhold some; none is withheld.
  void PrepareFresh();
  int64_t num_listed() const;
  // Nothing is withheld any more.
  void ReleaseWithheld() {
    ForWorkersInTurn([](WorkerBatch* worker) { worker->withheld = nullptr; });
  }
  // Groups occurrences by key, once a batch, for those who need it.
  void SortPositions(const BatchLoops& loops, ThreadPool* pool);

  // Keys of the batch [num_occurrences], a copy.
  const uint64_t* keys() const { return shares_.keys(); }
  int64_t num_occurrences() const { return shares_.num_occurrences(); }
  int64_t num_unique() const { return num_unique_; }
  // Keys that the last pull looked up: the unique ones, or all if it did not deduplicate.
  int64_t num_looked_up() const { return was_pulled_each_ ? num_pulled_each_ : num_unique_; }
  int64_t num_missing() const;
  int64_t window_size() const { return window_size_; }
  int64_t window_end() const { return window_first_ + window_size_; }
  void CopyUniqueKeys(uint64_t* keys) const;
  uint64_t UniqueKey(int64_t id) const;

  State state = State::kKeys;
  uint64_t epoch = 0;
  uint64_t growth = 0;           // how often the cache had grown when the slots were looked up
  Array<uint64_t> missing_keys;  // of the window, worker after worker
  Array<uint8_t> victims;        // dirty rows evicted by the last reserve
  int64_t num_victims = 0;
  uint32_t largest = 0;  // magnitude of the gradient sums, as bits; see KeyLoops

 private:
  void Pool(const KeyLoops& loops, const BagsView& bags, int32_t dim, ThreadPool* pool,
            OutputValues out, const float* first, int64_t stride);
  struct Worker {
    WorkerBatch batch = {};
    Array<uint32_t> starts, positions, missing, order;
    Array<int64_t> slots;
    Array<uint8_t> second_round, withheld;
    Array<uint32_t> fresh;
    Array<uint64_t> fresh_keys;
    Array<int64_t> beside;
    Array<Reservation> reservations;
    Array<float> values;
  };

  void Begin(int64_t count, int64_t num_parts, ThreadPool* pool);
  void Prepare(int worker);
  void PrepareValues(int worker, int64_t count, int32_t dim);
  void Empty();
  void BeginPullEach(const uint64_t* keys, bool only_reads);
  int64_t EndPullEach();
  void BeginFindEach(const uint64_t* keys, const float* gradients, int32_t dim);
  bool EndFindEach();
  void CountUnique();

  KeyShares shares_;
  Pooling pooling_;
  std::deque<Worker> workers_;  // the first num_workers_ are in use, the others keep their memory
  int num_workers_ = 0;
  int64_t num_parts_ = 0;  // of the table
  bool is_alone_ = false;
  int64_t num_unique_ = 0;
  int64_t window_first_ = 0;
  int64_t window_size_ = 0;
  bool is_sorted_ = false;
  bool was_pulled_each_ = false;
  int64_t num_pulled_each_ = 0;
  int pulls_to_wait_ = 0;   // before a pull may go without deduplicating again
  int pushes_to_wait_ = 0;  // before a push may
};

}  // namespace hps
