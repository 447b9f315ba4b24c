// HostLanes: how row arithmetic walks the columns of a row on the host.
//
// Above it: optimizer.h. The device has its own walker with the same two verbs, so that the text of
// an optimizer is one. `kDim` is the width if it is known at compile time, else 0.
#pragma once

#include "common/portable.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int kSumLanes = 16;

using Lanes16 = float __attribute__((vector_size(64)));
using Lanes8 = float __attribute__((vector_size(32)));
using Lanes4 = float __attribute__((vector_size(16)));

template <int kDim>
struct HostLanes {
  static constexpr int kWidth = kDim;
  int dim;

  int size() const { return kDim > 0 ? kDim : dim; }

  // body(d) for every column; columns are independent of one another.
  template <class Body>
  void for_each(Body body) const {
    const int columns = size();
#pragma GCC ivdep
    for (int d = 0; d < columns; ++d) body(d);
  }

  // The sum of term(d) over the columns: 16 lanes by d mod 16, then a fixed tree. Every instruction
  // set and the device add in this order, so they agree to the bit.
  template <class Term>
  float sum(Term term) const {
    const int columns = size();
    const int whole = columns / kSumLanes * kSumLanes;
    Lanes16 lanes = {};
    for (int d = 0; d < whole; d += kSumLanes) {
      Lanes16 terms;
      for (int lane = 0; lane < kSumLanes; ++lane) terms[lane] = term(d + lane);
      lanes += terms;
    }
    for (int lane = 0; lane < columns - whole; ++lane) lanes[lane] += term(whole + lane);
    // Each step adds the upper half to the lower one.
    const Lanes8 eight = __builtin_shufflevector(lanes, lanes, 0, 1, 2, 3, 4, 5, 6, 7) +
                         __builtin_shufflevector(lanes, lanes, 8, 9, 10, 11, 12, 13, 14, 15);
    const Lanes4 four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                        __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    const float even = four[0] + four[2];
    const float odd = four[1] + four[3];
    return even + odd;
  }
};

}  // namespace HPS_BUILD
}  // namespace hps
