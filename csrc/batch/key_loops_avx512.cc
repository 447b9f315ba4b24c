// The loops over keys and gradients compiled for AVX-512.
#define HPS_BUILD build_avx512

#include "batch/key_loops_body.h"

HPS_DEFINE_KEY_LOOPS(kAvx512KeyLoops, "avx512")
