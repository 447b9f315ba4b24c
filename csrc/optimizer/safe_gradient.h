// Which gradients cannot overflow: so that a step pays for a trial of its updates only where one
// might. docs/decisions/0017-updates-that-overflow.md derives the bounds.
//
// Above it: dram_cache.cc, batch_verbs_body.h, the bindings. Below it: optimizer.h, trial.h. Host
// only. Rests on one fact: a float32 that is finite stays so when a number below 2^103 is added,
// half a unit in the last place of the largest. So no bound on weights and accumulators is needed,
// only one on what a step adds.
#pragma once

#include <cmath>

#include "optimizer/initializer.h"
#include "optimizer/trial.h"

namespace hps {

// The largest magnitude of a summed gradient with which an update of a tame row leaves it finite
// and tame, as bits; 0 if every step must be tried. `lr` as the update gets it.
uint32_t SafeGradientBits(OptimizerKind kind, const OptimizerNumbers& numbers,
                          const InitializerSpec& initializer, float lr);

// True if every found one of row images[count, row_bytes] is tame: its weights are finite, its
// state is what the optimizer makes and within the bounds of trial.h.
bool AreTame(const RowLayout& layout, const uint8_t* images, int64_t count, const uint8_t* found);

}  // namespace hps
