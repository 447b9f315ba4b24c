// LoopsLike.
#include "dram_cache/choose_loops.h"

namespace hps {

const BatchLoops* LoopsLike(const KeyLoops* keys) {
  if (keys == &kAvx512KeyLoops) return &kAvx512Loops;
  return keys == &kAvx2KeyLoops ? &kAvx2Loops : &kPlainLoops;
}

}  // namespace hps
