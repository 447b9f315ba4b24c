// Which loops suit the processor.
#include "batch/key_loops.h"

namespace hps {

const KeyLoops* ChooseKeyLoops(const std::string& name) {
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (name == "plain") return &kPlainKeyLoops;
  if (name == "avx2") return has_avx2 ? &kAvx2KeyLoops : nullptr;
  if (name == "avx512") return has_avx512 ? &kAvx512KeyLoops : nullptr;
  if (name != "auto") return nullptr;
  return has_avx512 ? &kAvx512KeyLoops : has_avx2 ? &kAvx2KeyLoops : &kPlainKeyLoops;
}

}  // namespace hps
