// SignedLog: the logarithm of dense values that keeps their sign, and what takes it back.
//
// Above it: criteo_parser.cc, dense_rules.cc, csrc/bindings/records.cc (hps/reader/dense.py): a
// number is the same dense value in every format. Below it: the C library.
#pragma once

#include <cmath>

namespace hps {

// log1p(x) of numbers from 0 on, -log1p(-x) below.
inline float SignedLog(double number) {
  return static_cast<float>(std::copysign(std::log1p(std::fabs(number)), number));
}

// The number of which SignedLog was taken, as far as a float tells it.
inline double OfSignedLog(float log) {
  const double wide = log;
  return std::copysign(std::expm1(std::fabs(wide)), wide);
}

}  // namespace hps
