// GpuPlan: one batch of keys on the host build of gpu_cache: its arrays and how far it has come.
//
// Above it: gpu_cache.cc, the bindings. Below it: cache_args.h, whose BatchArgs it fills in. Owns
// all memory of a batch and keeps it for the next one. Not thread-safe; belongs to one cache at a
// time.
#pragma once

#include "common/array.h"
#include "gpu_cache/host_shares.h"
#include "gpu_cache/kernels.h"

namespace hps {

class GpuPlan {
 public:
  enum class State {
    kKeys,      // deduplicated
    kFound,     // window looked up
    kReserved,  // window pinned, missing keys hold slots without rows
    kPinned,    // window pinned, every row in place
    kResolved,  // every key of the batch has a row; valid while the cache's epoch stands
  };

  GpuPlan() = default;
  GpuPlan(const GpuPlan&) = delete;
  GpuPlan& operator=(const GpuPlan&) = delete;

  // Makes room for a batch of `count` keys; returns where they go. The id table is not empty yet.
  uint64_t* SetSize(int64_t count);
  // Makes room to look up `count` keys; to reserve for those missing; for sums.
  void PrepareFind(int64_t count);
  void PrepareReserve();
  SumArgs PrepareSums(const CacheArgs& cache, const float* gradients);

  // True if keys[count] are this plan's, byte for byte.
  bool Matches(const uint64_t* keys, int64_t count) const;

  const BatchArgs& batch() const { return batch_; }
  int64_t num_occurrences() const { return batch_.num_occurrences; }
  int64_t num_unique() const { return numbers_.num_unique; }
  int64_t num_missing() const { return numbers_.num_missing; }
  int64_t num_victims() const { return numbers_.num_victims; }
  int64_t window_size() const { return numbers_.window_size; }
  const BatchNumbers& numbers() const { return numbers_; }
  const uint64_t* unique_keys() const { return batch_.unique_keys; }
  const uint64_t* missing_keys() const { return batch_.missing_keys; }
  const uint8_t* victims() const { return victims_.data(); }
  uint8_t* ReserveVictims(int64_t bytes) { return victims_.Reserve(bytes); }
  uint32_t* ReserveLast() { return last_.Reserve(num_unique()); }
  HostShares* shares() { return &shares_; }
  // Numbers of occurrences, an id and owner.
  uint32_t* ReserveCounts(int64_t count) { return counts_.Reserve(count); }
  float** ReserveFirstRuns() { return first_runs_.Reserve(num_unique()); }
  const float* sums() const { return sums_.data(); }

  // A key was refused or a window let go: no victims are waiting.
  void ForgetVictims() { numbers_.num_victims = 0; }
  void ForgetMissing() { numbers_.num_missing = 0; }

  State state = State::kKeys;
  uint64_t epoch = 0;

 private:
  struct Lists {
    Array<uint32_t> arrivals, starts, lengths, entries;

    BucketLists Reserve(int64_t count);
  };

  BatchNumbers numbers_ = {};
  BatchArgs batch_ = {};
  Array<uint64_t> keys_, unique_keys_, missing_keys_;
  Array<uint32_t> id_table_, places_, inverse_, missing_, run_ids_, last_, counts_;
  Array<int32_t> first_ranks_, missing_ranks_, victim_ranks_, hot_ranks_;
  Array<int64_t> slots_, starts_;
  Array<uint8_t> pinned_, emptier_, victims_;
  Array<Reservation> reservations_;
  Array<float> sums_, run_sums_;
  Lists first_lists_, other_lists_;
  Array<float*> first_runs_;
  HostShares shares_;
};

}  // namespace hps
