// The batch loops compiled for AVX2.
#define HPS_BUILD build_avx2

#include "dram_cache/batch_updates_body.h"

HPS_DEFINE_BATCH_LOOPS(kAvx2Loops, "avx2")
