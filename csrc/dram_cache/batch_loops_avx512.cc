// The batch loops compiled for AVX-512.
#define HPS_BUILD build_avx512

#include "dram_cache/batch_updates_body.h"

HPS_DEFINE_BATCH_LOOPS(kAvx512Loops, "avx512")
