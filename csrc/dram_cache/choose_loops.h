// LoopsLike: the batch loops of the same instruction set as some key loops.
//
// Above it: dram_cache.cc. Below it: batch_loops.h.
#pragma once

#include "batch/key_loops.h"
#include "dram_cache/batch_loops.h"

namespace hps {

const BatchLoops* LoopsLike(const KeyLoops* keys);

}  // namespace hps
