// Gradient sums of a share's keys, compiled once an instruction set: front to back through the
// batch, each occurrence into its key's run.
//
// Above it: key_loops.h. Below it: key_share.h, row_copy.h. A device sums run by run instead, at
// random places of the gradients (csrc/gpu_cache/updates.h), which a thread of the host would have
// to wait for. The order of additions is the same: occurrences in order within runs of kRunLength,
// run sums as a binary counter combines them.
#pragma once

#include "batch/key_loops.h"
#include "optimizer/binary_counter.h"
#include "optimizer/lanes.h"
#include "table/row_copy.h"

namespace hps {
inline namespace HPS_BUILD {

// The runs of a share's hot keys: those of at least kRunLength occurrences. A run that is full is
// set aside and combined with the key's earlier ones as a binary counter does: neighbours of equal
// size, and at the end leftovers youngest to oldest. What is set aside of a key is chained from the
// youngest on.
template <int kDim>
class HotKeys {
 public:
  HotKeys(KeyShare* share, int dim) : share_(share), dim_(kDim > 0 ? kDim : dim) {
    share->num_hot = 0;
  }

  // The key's run with the number `run`, counted from 1, is full, or its last.
  void SetAside(uint32_t id, uint32_t run) {
    if (run == 1) {
      share_->hot_ids[share_->num_hot++] = id;
      share_->youngest[id] = kNoRun;
    }
    uint32_t number = num_aside_++;
    CopyColumns<kDim>(SumOf(id), static_cast<int>(dim_), Aside(number));
    __builtin_memset(SumOf(id), 0, static_cast<uint64_t>(dim_) * sizeof(float));
    for (uint32_t carry = run; (carry & 1) == 0; carry >>= 1) number = CombineYoungest(id, number);
    share_->older[number] = share_->youngest[id];
    share_->youngest[id] = number;
  }

  // Leaves each hot key's whole sum where the others have theirs.
  void Finish() {
    for (int64_t i = 0; i < share_->num_hot; ++i) {
      const uint32_t id = share_->hot_ids[i];
      const uint32_t count = share_->counts[id];
      if (count % kRunLength != 0) SetAside(id, count / kRunLength + 1);
      uint32_t run = share_->youngest[id];
      CopyColumns<kDim>(Aside(run), static_cast<int>(dim_), SumOf(id));
      while ((run = share_->older[run]) != kNoRun) {
        AddColumns<kDim>(SumOf(id), Aside(run), static_cast<int>(dim_));
      }
    }
  }

 private:
  float* SumOf(uint32_t id) const { return share_->values + id * dim_; }
  float* Aside(uint32_t number) const { return share_->aside + number * dim_; }

  // Adds the newest number, which nothing follows, to the key's youngest; returns that one.
  uint32_t CombineYoungest(uint32_t id, uint32_t newest) {
    const uint32_t youngest = share_->youngest[id];
    AddColumns<kDim>(Aside(youngest), Aside(newest), static_cast<int>(dim_));
    share_->youngest[id] = share_->older[youngest];
    if (newest == num_aside_ - 1) --num_aside_;
    return youngest;
  }

  KeyShare* const share_;
  const int64_t dim_;
  uint32_t num_aside_ = 0;
};

// Adds every occurrence's gradient to its key's sum, from +0. Gradients of occurrences are read
// once, so they are asked for past the caches, which the sums and the rows need. `from` are the
// view's values, float or Bfloat16.
template <int kDim, bool kOfBags, bool kWeighted, class Value>
inline void SumRuns(int any_dim, KeyShare* share, const GradientView& gradients,
                    const Value* from) {
  constexpr int64_t kALine = 64 / sizeof(Value);
  // Some 100 lines, as far as they pay off on Zen 5: narrow rows need more occurrences for them.
  constexpr int64_t kAhead = kDim > 0 && kDim <= 16 ? kOccurrencePadding : kOccurrencePadding / 2;
  const int64_t dim = kDim > 0 ? kDim : any_dim;
  float* values = share->values;
  uint32_t* counts = share->counts;
  const uint32_t* ids = share->ids;
  const uint32_t* positions = share->scan_positions;
  const auto gradient_at = [&](uint32_t position) {
    return from + (kOfBags ? gradients.starts[position] : position * gradients.stride);
  };
  const int64_t num_occurrences = share->num_occurrences;
  __builtin_memset(counts, 0, static_cast<uint64_t>(share->num_ids) * sizeof(uint32_t));
  HotKeys<kDim> hot_keys(share, any_dim);
  for (int64_t i = 0; i < num_occurrences; ++i) {
    // What is behind the last occurrence is 0, and harmless.
    const Value* gradient = gradient_at(positions[i + kAhead]);
    const float* sum = values + (ids[i + kAhead] & ~kFirstOfKey) * dim;
    for (int64_t d = 0; d < dim; d += 16) __builtin_prefetch(sum + d, 1);
    for (int64_t d = 0; d < dim; d += kALine) __builtin_prefetch(gradient + d, 0, kOfBags ? 3 : 0);
    const uint32_t id = ids[i] & ~kFirstOfKey;
    const float weight = kWeighted ? gradients.weights[positions[i]] : 1.0f;
    AddToSum<kDim, kWeighted>(ids[i] != id, values + id * dim, gradient_at(positions[i]), weight,
                              any_dim);
    const uint32_t count = ++counts[id];
    if (count % kRunLength == 0) [[unlikely]]
      hot_keys.SetAside(id, count / kRunLength);
  }
  hot_keys.Finish();
}

template <class Value>
inline void SumFrom(KeyShare* share, int32_t dim, const GradientView& gradients,
                    const Value* from) {
  WithDim(dim, [&](auto lanes) {
    constexpr int kDim = decltype(lanes)::kWidth;
    const bool is_weighted = gradients.weights != nullptr;
    if (gradients.starts == nullptr) {
      is_weighted ? SumRuns<kDim, false, true>(dim, share, gradients, from)
                  : SumRuns<kDim, false, false>(dim, share, gradients, from);
    } else {
      is_weighted ? SumRuns<kDim, true, true>(dim, share, gradients, from)
                  : SumRuns<kDim, true, false>(dim, share, gradients, from);
    }
  });
}

inline void SumGradients(KeyShare* share, int32_t dim, const GradientView& gradients) {
  if (gradients.narrow != nullptr) {
    SumFrom(share, dim, gradients, gradients.narrow);
  } else {
    SumFrom(share, dim, gradients, gradients.values);
  }
}

// x - x is 0, or NaN if x is not finite.
inline bool AreFinite(const float* values, int64_t count) {
  Float16 poison = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) poison += Sixteen(values + i) - Sixteen(values + i);
  float total = 0;
  for (int lane = 0; lane < 16; ++lane) total += poison[lane];
  for (; i < count; ++i) total += values[i] - values[i];
  return total == 0.0f;
}

// As integers without the sign, which are ordered as the magnitudes are; NaN is above infinity.
inline uint32_t FindLargest(const float* values, int64_t count) {
  constexpr uint32_t kNoSign = 0x7fffffff;
  uint32_t largest[16] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, values[i + lane]) & kNoSign;
      largest[lane] = largest[lane] < bits ? bits : largest[lane];
    }
  }
  for (; i < count; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, values[i]) & kNoSign;
    largest[0] = largest[0] < bits ? bits : largest[0];
  }
  uint32_t most = 0;
  for (const uint32_t bits : largest) most = most < bits ? bits : most;
  return most;
}

inline int64_t FindNotFinite(const float* values, int64_t count, int32_t dim) {
  if (AreFinite(values, count * dim)) return -1;
  int64_t id = 0;
  while (AreFinite(values + id * dim, dim)) ++id;
  return id;
}

}  // namespace HPS_BUILD
}  // namespace hps
