// HostLanes: how row arithmetic walks the columns of a row on the host.
//
// Above it: optimizer.h. The device has its own walker with the same verbs (device_lanes.h), so
// that the text of an optimizer is one. `kDim` is the width if it is known at compile time, else 0.
// A walker offers
//     int size()                            the width
//     weights(row), state(row)              of a row as optimizers see it (FloatsOfRow)
//     as_read(out)                          out, to be set to what a row with such weights reads as
//     void each(f, float*... columns)       f(column d of each...) for every d; const ones are
//     read,
//                                           and so is a SummedColumn, which may be any of them
//     void set(float* column, f)            column[d] = f(d) for every d
//     void add_up(float* column, sums)      column[d] = the sum in column d of a SummedColumn
//     float sum(f, const float* column)     of f(column[d]): 16 lanes by d mod 16, then a fixed
//                                           tree; also of a SummedColumn
//     void scalar(f)                        f() by one lane; for what a row has once
//     void note(float)                      says what scalar() stores; a trial looks at it
//                                           (trial.h)
//     void columns(f)                       f(d) for every d, each by one lane
//     uint32_t fold(f)                      the sum of f(d) over all d
// A narrow row's walker is made of one of these: narrow_lanes.h.
#pragma once

#include "optimizer/summed_column.h"
#include "table/last_columns.h"
#include "table/row_layout.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int kSumLanes = 16;

using Lanes16 = float __attribute__((vector_size(64)));
using Lanes8 = float __attribute__((vector_size(32)));
using Lanes4 = float __attribute__((vector_size(16)));

template <int kDim>
struct HostLanes {
  static constexpr int kWidth = kDim;
  static constexpr bool kIsHost = true;
  int dim;

  int size() const { return kDim > 0 ? kDim : dim; }
  template <class Float>
  Float* weights(Float* row) const {
    return row + kRowHeaderFloats;
  }
  float* state(float* row) const { return row + kRowHeaderFloats + size(); }
  float* as_read(float* out) const { return out; }

  // Not unrolled: sixteen columns, written out one by one before the compiler looks for vectors,
  // would stay scalars, which takes up to 2.4 times as long.
  template <class Body, class... Columns>
  void each(Body body, Columns*... columns) const {
    const int count = size();
#if defined(__AVX512F__)
    if constexpr (kDim == 0) {
      const int whole = count / 16 * 16;
      for (int d = 0; d < whole; d += 16) EachLane<16>(body, (columns + d)...);
      ForLast(whole, count, [&](int d, LastColumns some) { EachOf(body, some, (columns + d)...); });
      return;
    }
#endif
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int d = 0; d < count; ++d) body(columns[d]...);
  }

  // With a SummedColumn among them: of a device's text, as the host runs it.
  template <class Body, class... Columns>
  void each(Body body, Columns... columns) const {
    for (int d = 0; d < size(); ++d) body(columns[d]...);
  }

  template <class Value>
  void set(float* column, Value value) const {
    const int count = size();
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int d = 0; d < count; ++d) column[d] = value(d);
  }

  template <class Source, class Weight>
  void add_up(float* column, SummedColumn<Source, Weight> terms) const {
    if constexpr (kDim > 0 && kDim <= 32) {
      float sums[kDim] = {};
      for (int64_t i = 0; i < terms.count; ++i) {
        const float* values = terms.source(i);
        const float factor = terms.weight(i);
        for (int d = 0; d < kDim; ++d) sums[d] += values[d] * factor;
      }
      __builtin_memcpy(column, sums, sizeof(sums));
    } else {
      set(column, [](int) { return 0.0f; });
      for (int64_t i = 0; i < terms.count; ++i) {
        const float factor = terms.weight(i);
        each([=](float& sum, float value) { sum += value * factor; }, column, terms.source(i));
      }
    }
  }

  template <class Body>
  void scalar(Body body) const {
    body();
  }

  void note(float) const {}

  template <class Body>
  void columns(Body body) const {
    const int count = size();
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int d = 0; d < count; ++d) body(d);
  }

  template <class Word>
  uint32_t fold(Word word) const {
    const int count = size();
    uint32_t total = 0;
#pragma GCC unroll 1
    for (int d = 0; d < count; ++d) total += word(d);
    return total;
  }

  // Every instruction set and the device add in this order, so they agree to the bit.
  template <class Term>
  float sum(Term term, const float* column) const {
    const int columns = size();
    const int whole = columns / kSumLanes * kSumLanes;
    Lanes16 lanes = {};
    for (int d = 0; d < whole; d += kSumLanes) {
      Lanes16 terms;
      for (int lane = 0; lane < kSumLanes; ++lane) terms[lane] = term(column[d + lane]);
      lanes += terms;
    }
#if defined(__AVX512F__)
    if (whole < columns) {
      const auto rest = static_cast<__mmask16>((1 << (columns - whole)) - 1);
      alignas(64) float last[kSumLanes];
      _mm512_store_ps(last, _mm512_maskz_loadu_ps(rest, column + whole));
      EachLane<kSumLanes>([term](float& value) { value = term(value); }, last);
      const auto before = reinterpret_cast<__m512>(lanes);
      lanes =
          reinterpret_cast<Lanes16>(_mm512_mask_add_ps(before, rest, before, _mm512_load_ps(last)));
    }
#else
    for (int lane = 0; lane < columns - whole; ++lane) lanes[lane] += term(column[whole + lane]);
#endif
    // Each step adds the upper half to the lower one.
    const Lanes8 eight = __builtin_shufflevector(lanes, lanes, 0, 1, 2, 3, 4, 5, 6, 7) +
                         __builtin_shufflevector(lanes, lanes, 8, 9, 10, 11, 12, 13, 14, 15);
    const Lanes4 four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                        __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    const float even = four[0] + four[2];
    const float odd = four[1] + four[3];
    return even + odd;
  }

  template <class Term, class Source, class Weight>
  float sum(Term term, SummedColumn<Source, Weight> column) const {
    float lanes[kSumLanes] = {};
    for (int d = 0; d < size(); ++d) lanes[d % kSumLanes] += term(column[d]);
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
  }

#if defined(__AVX512F__)

 private:
  template <int kLanes, class Body, class... Columns>
  static void EachLane(Body body, Columns*... columns) {
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int lane = 0; lane < kLanes; ++lane) body(columns[lane]...);
  }

  // Some columns in a register of their own; const ones stay as they are. A body works on all of
  // it: a trial is to find no more in the lanes behind the columns than in these.
  template <class Float>
  struct Held {
    Held(LastColumns some, Float* columns) : some_(some), columns_(columns) {
      VectorAt<Float4>(values) = some.LoadRepeated(columns);
    }
    void PutBack() const { Put(columns_); }
    alignas(16) float values[4];

   private:
    void Put(float* columns) const { some_.Store(VectorAt<Float4>(values), columns); }
    void Put(const float*) const {}

    const LastColumns some_;
    Float* const columns_;
  };

  template <class Body, class... Columns>
  static void EachOf(Body body, LastColumns some, Columns*... columns) {
    const auto run = [&](auto... held) {
      EachLane<4>(body, held.values...);
      (held.PutBack(), ...);
    };
    run(Held<Columns>(some, columns)...);
  }
#endif
};

// Calls body with the widths that are worth compiling for as constants, any other as 0.
template <class Body>
inline auto WithDim(int dim, Body body) {
  switch (dim) {
    case 8:
      return body(HostLanes<8>{dim});
    case 16:
      return body(HostLanes<16>{dim});
    case 32:
      return body(HostLanes<32>{dim});
    case 64:
      return body(HostLanes<64>{dim});
    case 128:
      return body(HostLanes<128>{dim});
    default:
      return body(HostLanes<0>{dim});
  }
}

}  // namespace HPS_BUILD
}  // namespace hps
