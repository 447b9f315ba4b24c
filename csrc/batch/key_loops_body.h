// The text that key_loops_{plain,avx2,avx512}.cc compile.
//
// Above it: these. Below it: numbering_body.h, joint_ids_body.h, gradient_sums_body.h,
// expand_body.h, pooling_body.h.
#pragma once

#include "batch/expand_body.h"
#include "batch/gradient_sums_body.h"
#include "batch/joint_ids_body.h"
#include "batch/numbering_body.h"
#include "batch/pooling_body.h"

// Defines the function table of the including translation unit.
#define HPS_DEFINE_KEY_LOOPS(variable, label)                                 \
  namespace hps {                                                             \
  const KeyLoops variable = {                                                 \
      label,       Deduplicate,   MarkFirsts, RankFirsts, Join, SumGradients, \
      FindLargest, FindNotFinite, Expand,     Point,      Pool};              \
  }
