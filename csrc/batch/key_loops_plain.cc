// The loops over keys and gradients compiled for the instructions every x86-64 has.
#define HPS_BUILD build_plain

#include "batch/key_loops_body.h"

HPS_DEFINE_KEY_LOOPS(kPlainKeyLoops, "plain")
