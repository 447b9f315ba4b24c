// The loops over keys and gradients compiled for AVX2.
#define HPS_BUILD build_avx2

#include "batch/key_loops_body.h"

HPS_DEFINE_KEY_LOOPS(kAvx2KeyLoops, "avx2")
