// GpuPlan: one batch of keys on the host build of gpu_cache: its arrays and how far it has come.
//
// Above it: gpu_cache.cc, the bindings. Below it: cache_args.h, whose BatchArgs it fills in;
// csrc/batch, which divides the keys over the threads. Owns all memory of a batch and keeps it for
// the next one. Not thread-safe; belongs to one cache at a time.
#pragma once

#include <vector>

#include "batch/key_loops.h"
#include "batch/key_shares.h"
#include "batch/pooling.h"
#include "gpu_cache/admission_kernels.h"
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

  // From the next batch on one thread has all of it, that of the caller; or as many as there are.
  void WorkAlone(bool is_alone) { is_alone_ = is_alone; }
  bool is_alone() const { return is_alone_; }
  // Takes a batch of `count` keys, whose copies and ids are not made yet, for so many threads.
  void Begin(int64_t count, int num_threads);
  // The shares of the batch, with room for their keys to be numbered together.
  JointIds PrepareJoin();
  // There are so many distinct keys.
  void SetNumUnique(int64_t num_unique);
  // Makes room to look up `count` keys; to reserve for those missing; for sums of `dim` floats.
  // Flags are ranked by their words, if that is wanted, else by sums.
  void PrepareFind(int64_t count, bool ranks_words = false);
  void PrepareReserve(bool ranks_words = false);
  float* ReserveSums(int64_t dim) { return sums_.Reserve(num_unique() * dim); }
  // Of narrow rows' weights as floats, [N, dim].
  float* ReserveWide(int64_t dim) { return wide_.Reserve(num_unique() * dim); }

  // True if keys[count] are this plan's, byte for byte.
  bool Matches(const uint64_t* keys, int64_t count) const { return shares_.Matches(keys, count); }

  const BatchArgs& batch() const { return batch_; }
  const uint64_t* keys() const { return shares_.keys(); }  // [num_occurrences], a copy
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
  KeyShares* shares() { return &shares_; }
  Pooling* pooling() { return &pooling_; }
  KeyShare* share(int owner) { return &owned_[static_cast<size_t>(owner)]; }
  const float* sums() const { return sums_.data(); }
  // Makes room to count the occurrences of each key, and those with label 1 if there are labels.
  void PrepareCounts(bool has_labels);
  uint32_t* shows() { return shows_.data(); }
  uint32_t* clicks() { return has_clicks_ ? clicks_.data() : nullptr; }

  // Makes room to list the window's fresh rows, to look their keys up in another table, and to
  // withhold some; none is withheld.
  void PrepareFresh();
  const FreshList& fresh() const { return fresh_; }
  // FlagFresh and ListFresh are done.
  void NoteListed() { num_listed_ = window_size() == 0 ? 0 : fresh_.ranks[window_size() - 1]; }
  int64_t num_listed() const { return num_listed_; }
  // As FreshList has it; null: the next update changes all rows.
  const uint8_t* withheld() const { return fresh_.withheld; }
  void ReleaseWithheld() { fresh_.withheld = nullptr; }

  void SetCulprit(uint32_t culprit) { numbers_.culprit = culprit; }
  void SetLargest(uint32_t largest) { numbers_.largest = largest; }
  // The reserve was cancelled: no victims are waiting.
  void ForgetVictims() { numbers_.num_victims = 0; }

  State state = State::kKeys;
  uint64_t epoch = 0;

 private:
  BatchNumbers numbers_ = {};
  BatchArgs batch_ = {};
  KeyShares shares_;
  Pooling pooling_;
  std::vector<KeyShare> owned_;  // one a thread
  Array<uint64_t> firsts_, unique_keys_, missing_keys_;
  Array<uint32_t> ranks_, inverse_, missing_, last_, shows_, clicks_;
  FreshList fresh_ = {};
  int64_t num_listed_ = 0;
  Array<int32_t> fresh_ranks_;
  Array<uint32_t> fresh_ids_;
  Array<uint64_t> fresh_keys_;
  Array<int64_t> beside_;
  Array<uint8_t> withheld_;
  bool has_clicks_ = false;
  bool is_alone_ = false;
  Array<uint32_t> missing_words_, missing_sums_, missing_word_ranks_, victim_word_ranks_;
  Array<uint32_t> links_, other_links_, entries_, victim_words_, victim_sums_;
  Array<int64_t> slots_;
  Array<uint8_t> pinned_, emptier_, victims_;
  Array<Reservation> reservations_;
  Array<float> sums_, wide_;
};

}  // namespace hps
