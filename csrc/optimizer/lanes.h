// HostLanes: how row arithmetic walks the columns of a row on the host.
//
// Above it: optimizer.h. The device has its own walker with the same two verbs, so that the text of
// an optimizer is one. `kDim` is the width if it is known at compile time, else 0.
#pragma once

#include "common/portable.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int kSumLanes = 16;

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
    float lanes[kSumLanes] = {};
    const int whole = columns / kSumLanes * kSumLanes;
    for (int d = 0; d < whole; d += kSumLanes) {
      for (int lane = 0; lane < kSumLanes; ++lane) lanes[lane] += term(d + lane);
    }
    for (int lane = 0; lane < columns - whole; ++lane) lanes[lane] += term(whole + lane);
    for (int width = kSumLanes / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    return lanes[0];
  }
};

}  // namespace HPS_BUILD
}  // namespace hps
