// NarrowLanes: how row arithmetic walks rows whose weights are Bfloat16; the verbs of HostLanes.
//
// Above it: trial.h, the updates of dram_cache and gpu_cache. Below it: a walker of float rows
// (lanes.h, device_lanes.h), which it is made of; rounding.h, host_narrow_lanes.h. A weight is
// widened, the optimizer computes in float32, and what it leaves is rounded once. Nothing else
// differs: state stays float32.
//
// Rounding at random takes its bits from a hash of the table's stream, the key, the row before the
// update and the summed gradient. So it needs no generator, and a run repeats on any machine, in
// whatever tier the row is. The hash is a sum of one word a column, whose order is no matter.
#pragma once

#include "common/key_hash.h"
#include "optimizer/rounding.h"
#include "table/row_layout.h"

#if !defined(__CUDACC__)
#include "optimizer/host_narrow_lanes.h"  // left out of the kernels' text by this remark
#endif

namespace hps {

inline namespace HPS_BUILD {

// A float of a column that goes back as it is; a const one does not.
template <class Float>
struct HeldFloat {
  Float* at;
  float value;

  HPS_HD_MEMBER float kept() const { return value; }
  HPS_HD_MEMBER void store() const { StoreTo(at); }

 private:
  HPS_HD_MEMBER void StoreTo(float* dst) const { *dst = value; }
  HPS_HD_MEMBER void StoreTo(const float*) const {}
};

// A weight that is rounded when it goes back.
template <class Weight, Rounding kRounding>
struct HeldWeight {
  Weight* at;
  uint32_t random;
  float value;

  HPS_HD_MEMBER Bfloat16 rounded() const {
    if constexpr (kRounding == Rounding::kNearest) return Narrowed(value);
    return NarrowedBy(value, random);
  }
  HPS_HD_MEMBER float kept() const { return Widened(rounded()); }
  HPS_HD_MEMBER void store() const { StoreTo(at); }

 private:
  HPS_HD_MEMBER void StoreTo(Bfloat16* dst) const { *dst = rounded(); }
  HPS_HD_MEMBER void StoreTo(const Bfloat16*) const {}
};

// A float of an output that reads as a narrow weight does.
struct RoundedFloat {
  float value;
};

template <class Lanes, Rounding kRounding>
struct NarrowLanes {
  static constexpr int kWidth = Lanes::kWidth;
  Lanes lanes;
  uint64_t seed;  // of the row and its update: SeedOfUpdate

  HPS_HD_MEMBER int size() const { return lanes.size(); }
  HPS_HD_MEMBER Bfloat16* weights(float* row) const {
    return reinterpret_cast<Bfloat16*>(row + kRowHeaderFloats);
  }
  HPS_HD_MEMBER float* state(float* row) const {
    return row + kRowHeaderFloats + RowLayout::NarrowFloats(size());
  }

  HPS_HD_MEMBER RoundedFloat* as_read(float* out) const {
    return reinterpret_cast<RoundedFloat*>(out);
  }

  // body(held...) for every column: what it leaves in the values of `held` is not stored.
  template <class Body, class... Columns>
  HPS_HD_MEMBER void visit(Body body, Columns*... columns) const {
    const uint64_t row_seed = seed;
    lanes.columns([=](int d) { body(Hold(row_seed, columns, d)...); });
  }

  template <class Body, class... Columns>
  HPS_HD_MEMBER void each(Body body, Columns*... columns) const {
    if constexpr (Lanes::kIsHost) {
      EachOnHost(lanes, RoundingTag<kRounding>{seed}, body, columns...);
    } else {
      visit(
          [=](auto... held) {
            body(held.value...);
            (held.store(), ...);
          },
          columns...);
    }
  }

  template <class Value>
  HPS_HD_MEMBER void set(float* column, Value value) const {
    lanes.set(column, value);
  }
  template <class Value>
  HPS_HD_MEMBER void set(Bfloat16* column, Value value) const {
    lanes.columns([=](int d) { column[d] = Narrowed(value(d)); });
  }
  template <class Value>
  HPS_HD_MEMBER void set(RoundedFloat* column, Value value) const {
    lanes.columns([=](int d) { column[d].value = Widened(Narrowed(value(d))); });
  }

  template <class Term>
  HPS_HD_MEMBER float sum(Term term, const float* column) const {
    return lanes.sum(term, column);
  }
  // In no order that other builds keep, and on a device of this lane's columns alone: for terms
  // that are 0 or NaN.
  template <class Term>
  HPS_HD_MEMBER float sum(Term term, const Bfloat16* column) const {
    float total = 0;
    float* const into = &total;
    lanes.columns([=](int d) { *into += term(Widened(column[d])); });
    return total;
  }

  template <class Body>
  HPS_HD_MEMBER void scalar(Body body) const {
    lanes.scalar(body);
  }

  HPS_HD_MEMBER void note(float) const {}

 private:
  template <class Float>
  static HPS_HD_MEMBER HeldFloat<Float> Hold(uint64_t, Float* column, int d) {
    return {column + d, column[d]};
  }
  static HPS_HD_MEMBER HeldWeight<Bfloat16, kRounding> Hold(uint64_t seed, Bfloat16* column,
                                                            int d) {
    return {column + d, RandomOf(seed, d), Widened(column[d])};
  }
  static HPS_HD_MEMBER HeldWeight<const Bfloat16, kRounding> Hold(uint64_t, const Bfloat16* column,
                                                                  int d) {
    return {column + d, 0, Widened(column[d])};
  }
  static HPS_HD_MEMBER uint32_t RandomOf(uint64_t seed, int d) {
    if constexpr (kRounding == Rounding::kNearest) return 0;
    return RandomOfColumn(seed, d);
  }
};

// The sum of WordOfColumn over all columns.
template <class Lanes>
HPS_HD uint32_t FoldColumns(Lanes lanes, int64_t state_vectors, const Bfloat16* weights,
                            const float* state, const float* gradient) {
  if constexpr (Lanes::kIsHost) {
    return FoldOnHost(lanes, state_vectors, weights, state, gradient);
  } else {
    const int dim = lanes.size();
    return lanes.fold(
        [=](int d) { return WordOfColumn(d, dim, state_vectors, weights, state, gradient); });
  }
}

// What the rounding of one update comes from: `key_seed` is SeedOfKey's, the row is as it was
// before, but for the state of a fresh row, which has been started.
template <class Lanes>
HPS_HD uint64_t SeedOfUpdate(Lanes lanes, int64_t state_vectors, float* row, const float* gradient,
                             uint64_t key_seed) {
  const NarrowLanes<Lanes, Rounding::kNearest> narrow = {lanes, 0};
  const Bfloat16* const weights = narrow.weights(row);
  const float* const state = narrow.state(row);
  const uint32_t columns = FoldColumns(lanes, state_vectors, weights, state, gradient);
  const uint64_t scalars =
      static_cast<uint64_t>(BitsOf(row[kFirstScalar + 1])) << 32 | BitsOf(row[kFirstScalar]);
  return MixKey(key_seed + scalars * 0x9E3779B97F4A7C15ULL + columns * 0xD6E8FEB86659FD93ULL);
}

// Of a table's stream (InitializerSpec) and a key.
HPS_HD uint64_t SeedOfKey(uint64_t stream, uint64_t key) { return stream ^ MixKey(key); }

}  // namespace HPS_BUILD
}  // namespace hps
