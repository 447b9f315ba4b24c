// DefaultFloatMode: the floating-point mode in which row arithmetic runs, whatever the caller's is.
//
// Above it: thread_pool, dram_cache. Below it: the processor. A caller may have set its thread to
// flush denormals (torch.set_flush_denormal does) or to round otherwise, and new threads inherit
// that; rows would then depend on who asked. The mode before it returns with the scope.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hps {

class DefaultFloatMode {
 public:
#if defined(__x86_64__)
  DefaultFloatMode() : before_(_mm_getcsr()) {
    if ((before_ & ~kStatusFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultFloatMode() {
    if ((before_ & ~kStatusFlags) != kDefault) _mm_setcsr(before_);
  }
#else
  DefaultFloatMode() {}
  ~DefaultFloatMode() {}
#endif
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kStatusFlags = 0x3f;
  static constexpr unsigned kDefault = 0x1f80;  // exceptions masked, to nearest, denormals kept
  const unsigned before_;
#endif
};

}  // namespace hps
