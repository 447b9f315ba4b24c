// GpuPlan's memory.
#include "gpu_cache/gpu_plan.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace hps {

void GpuPlan::Begin(int64_t count, int num_threads) {
  HPS_CHECK(state != State::kReserved && state != State::kPinned);
  // Empty until it is made: there may be no memory for it.
  state = State::kKeys;
  numbers_ = {};
  batch_ = {};
  batch_.numbers = &numbers_;
  fresh_ = {};
  num_listed_ = 0;
  shares_.Begin(count, kNumSubparts, num_threads);
  batch_.inverse = inverse_.Reserve(count);
  batch_.num_occurrences = count;
  owned_.assign(static_cast<size_t>(shares_.num_owners()), KeyShare{});
}

JointIds GpuPlan::PrepareJoin() {
  JointIds joint = {};
  joint.num_shares = shares_.num_owners();
  joint.num_words = num_occurrences() / 64 + 1;
  joint.firsts = firsts_.Reserve((joint.num_shares + 1) * joint.num_words);
  joint.all_firsts = joint.firsts + joint.num_shares * joint.num_words;
  joint.ranks = ranks_.Reserve(joint.num_words);
  joint.inverse = batch_.inverse;
  return joint;
}

void GpuPlan::SetNumUnique(int64_t num_unique) {
  batch_.unique_keys = unique_keys_.Reserve(num_unique);
  batch_.slots = slots_.Reserve(num_unique);
  numbers_.num_unique = num_unique;
}

void GpuPlan::PrepareFind(int64_t count, bool ranks_words) {
  const int64_t words = NumFlagWords(count), sums = NumFlagSums(count);
  batch_.missing_flags = {missing_words_.Reserve(words), missing_sums_.Reserve(sums),
                          ranks_words ? missing_word_ranks_.Reserve(words + 1) : nullptr};
  std::fill_n(batch_.missing_flags.words, words, 0);
  std::fill_n(batch_.missing_flags.sums, sums, 0);
  batch_.missing = missing_.Reserve(count);
  batch_.missing_keys = missing_keys_.Reserve(count);
}

void GpuPlan::PrepareCounts(bool has_labels) {
  shows_.Reserve(num_unique());
  has_clicks_ = has_labels;
  if (has_labels) clicks_.Reserve(num_unique());
}

void GpuPlan::PrepareFresh() {
  const int64_t window = window_size();
  fresh_ = {fresh_ranks_.Reserve(window), fresh_ids_.Reserve(window), fresh_keys_.Reserve(window),
            beside_.Reserve(window), withheld_.Reserve(num_unique())};
  num_listed_ = 0;
  if (num_unique() > 0) std::memset(fresh_.withheld, 0, static_cast<size_t>(num_unique()));
}

void GpuPlan::PrepareReserve(bool ranks_words) {
  const int64_t count = num_missing();
  batch_.pinned = pinned_.Reserve(num_unique());
  batch_.reservations = reservations_.Reserve(count);
  batch_.emptier = emptier_.Reserve(count);
  batch_.links = links_.Reserve(count);
  batch_.other_links = other_links_.Reserve(count);
  batch_.entries = entries_.Reserve(count);
  const int64_t words = NumFlagWords(count);
  batch_.victims = {victim_words_.Reserve(words), victim_sums_.Reserve(NumFlagSums(count)),
                    ranks_words ? victim_word_ranks_.Reserve(words + 1) : nullptr};
}

}  // namespace hps
