// What the processor offers, asked once a cache.
#include "dram_cache/choose_loops.h"

namespace hps {

const BatchLoops* ChooseLoops(const std::string& instruction_set) {
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (instruction_set == "plain") return &kPlainLoops;
  if (instruction_set == "avx2") return has_avx2 ? &kAvx2Loops : nullptr;
  if (instruction_set == "avx512") return has_avx512 ? &kAvx512Loops : nullptr;
  if (instruction_set != "auto") return nullptr;
  return has_avx512 ? &kAvx512Loops : has_avx2 ? &kAvx2Loops : &kPlainLoops;
}

}  // namespace hps
