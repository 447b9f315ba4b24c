// Bfloat16: the upper half of a float32.
//
// Above it: csrc/table, csrc/batch and what is above those. Below it: nothing. What is rounded to
// one goes to the nearest, and to the even one of two that are as near; NaN is 0x7fc0. (How that is
// done, sixteen at a time: csrc/table/row_copy.h.)
#pragma once

#include "common/portable.h"

namespace hps {

struct Bfloat16 {
  uint16_t bits;
};

}  // namespace hps
