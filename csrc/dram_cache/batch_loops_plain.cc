// The batch loops compiled for the instructions every x86-64 has.
#define HPS_BUILD build_plain

#include "dram_cache/batch_updates_body.h"

HPS_DEFINE_BATCH_LOOPS(kPlainLoops, "plain")
