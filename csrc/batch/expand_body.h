// The way of a share's values to every occurrence, compiled once an instruction set.
//
// Above it: key_loops_body.h; dram_cache's loops, which look rows up meanwhile. Below it:
// key_share.h, row_copy.h.
#pragma once

#include "batch/bags.h"
#include "batch/key_share.h"
#include "optimizer/lanes.h"
#include "table/row_copy.h"

namespace hps {
inline namespace HPS_BUILD {

// From floats to floats or Bfloat16s, or from these to floats.
template <int kDim, bool kStream, class Source, class Value>
inline void WriteRow(const Source* src, int dim, Value* dst) {
  if constexpr (kStream) {
    StreamColumns<kDim>(src, dst);
  } else {
    CopyColumns<kDim>(src, dim, dst);
  }
}

// A share's values, where they are collected as another type than float.
template <class Collected>
inline Collected* ValuesAs(const KeyShare& share) {
  return reinterpret_cast<Collected*>(share.values);
}

// Writes collected embeddings to all their positions. Rows lie scattered over the table, but
// collected they are few and dense; so the large output is written front to back, from values in a
// near cache. Keys are numbered in order of first occurrence: as soon as the first ids are
// collected, the batch can be expanded up to the first occurrence of the next one.
// Value and Collected are float or Bfloat16.
template <int kDim, bool kStream, class Value = float, class Collected = float>
class Expander {
 public:
  // Row i goes to out + i * stride.
  Expander(const KeyShare& share, int dim, Value* out, int64_t stride)
      : share_(share), any_dim_(dim), out_(out), stride_(stride) {}

  // Writes at most `most` rows, while the values of ids below `num_collected` are enough.
  void UpTo(int64_t num_collected, int64_t most) {
    constexpr int64_t kAhead = 16;
    constexpr int64_t kALine = 64 / sizeof(Collected);
    const int64_t dim = kDim > 0 ? kDim : any_dim_;
    const auto* const values = ValuesAs<Collected>(share_);
    const uint32_t* ids = share_.ids;
    int64_t i = next_;
    const int64_t left = share_.num_occurrences - i;
    const int64_t end = i + (left < most ? left : most);
    for (; i < end; ++i) {
      const int64_t id = ids[i] & ~kFirstOfKey;
      if (id >= num_collected) break;
      // What lies behind the last occurrence is left over from earlier batches, and harmless.
      const Collected* ahead = values + (ids[i + kAhead] & ~kFirstOfKey) * dim;
      for (int64_t d = 0; d < dim; d += kALine) __builtin_prefetch(ahead + d);
      WriteRow<kDim, kStream>(values + id * dim, any_dim_,
                              out_ + share_.scan_positions[i] * stride_);
    }
    next_ = i;
  }

  void Finish() {
    UpTo(share_.num_unique, share_.num_occurrences);
    Stop();
  }

  // Whatever was written can be seen, and written again, by others.
  void Stop() {
    if constexpr (kStream) EndStream();
  }

 private:
  const KeyShare& share_;
  const int any_dim_;
  Value* const out_;
  const int64_t stride_;
  int64_t next_ = 0;
};

template <bool kStream>
struct Streaming {
  static constexpr bool value = kStream;
};

// Calls body(lanes, streaming) as suits rows for `count` keys at out + i * stride.
template <class Value, class Body>
inline auto WithOutput(int32_t dim, int64_t count, const Value* out, int64_t stride, Body body) {
  constexpr int64_t kALine = 64 / sizeof(Value);
  const bool is_large = count * stride >= kStreamedFloats;  // with what others write between
  return WithDim(dim, [&](auto lanes) {
    constexpr int kWidth = decltype(lanes)::kWidth;
    if constexpr (kWidth % kALine == 0 && kWidth > 0) {
      const bool is_aligned = reinterpret_cast<uint64_t>(out) % 64 == 0 && stride % kALine == 0;
      if (is_large && is_aligned) return body(lanes, Streaming<true>{});
    }
    return body(lanes, Streaming<false>{});
  });
}

template <class Value>
inline void ExpandTo(const KeyShare& share, int32_t dim, int64_t count, Value* out,
                     int64_t stride) {
  WithOutput(dim, count, out, stride, [&](auto lanes, auto streaming) {
    constexpr bool kStream = decltype(streaming)::value;
    Expander<decltype(lanes)::kWidth, kStream, Value> expander(share, dim, out, stride);
    expander.Finish();
  });
}

inline void Expand(const KeyShare& share, int32_t dim, int64_t count, OutputRows out) {
  if (out.narrow != nullptr) {
    ExpandTo(share, dim, count, out.narrow, out.stride);
  } else {
    ExpandTo(share, dim, count, out.values, out.stride);
  }
}

}  // namespace HPS_BUILD
}  // namespace hps
