// ChooseLoops: which build of the batch loops runs on this processor.
//
// Above it: dram_cache.cc, csrc/sharding. Below it: batch_loops.h.
#pragma once

#include <string>

#include "dram_cache/batch_loops.h"

namespace hps {

// "auto", "avx512", "avx2" or "plain"; null if the name is unknown or the processor lacks it.
const BatchLoops* ChooseLoops(const std::string& instruction_set);

}  // namespace hps
