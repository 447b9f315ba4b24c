// The calls that -fsanitize=thread puts before every access of memory, answered here and not by its
// library.
//
// Above it: the compiler, in kernels.cc. Below it: accesses.h. An atomic operation is done after it
// was noted, so that others may come right before it.
#include "accesses.h"

using grid::kAtomic;
using grid::kRead;
using grid::kWrite;
using grid::NoteAccess;

#define HPS_PLACE __builtin_return_address(0)

#define HPS_PLAIN(bytes)                                                                   \
  void __tsan_read##bytes(void* at) { NoteAccess(kRead, at, bytes, HPS_PLACE); }           \
  void __tsan_write##bytes(void* at) { NoteAccess(kWrite, at, bytes, HPS_PLACE); }         \
  void __tsan_unaligned_read##bytes(void* at) { NoteAccess(kRead, at, bytes, HPS_PLACE); } \
  void __tsan_unaligned_write##bytes(void* at) { NoteAccess(kWrite, at, bytes, HPS_PLACE); }

#define HPS_CHANGE(bits, T, verb)                                  \
  T __tsan_atomic##bits##_##verb(volatile T* at, T value, int) {   \
    NoteAccess(kAtomic, const_cast<T*>(at), sizeof(T), HPS_PLACE); \
    return __atomic_##verb(at, value, __ATOMIC_RELAXED);           \
  }

#define HPS_ATOMIC(bits, T)                                                                      \
  T __tsan_atomic##bits##_load(const volatile T* at, int) {                                      \
    NoteAccess(kRead, const_cast<const T*>(at), sizeof(T), HPS_PLACE);                           \
    return __atomic_load_n(at, __ATOMIC_RELAXED);                                                \
  }                                                                                              \
  void __tsan_atomic##bits##_store(volatile T* at, T value, int) {                               \
    NoteAccess(kWrite, const_cast<T*>(at), sizeof(T), HPS_PLACE);                                \
    __atomic_store_n(at, value, __ATOMIC_RELAXED);                                               \
  }                                                                                              \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* at, T* expected, T wanted, int, \
                                                     int) {                                      \
    NoteAccess(kAtomic, const_cast<T*>(at), sizeof(T), HPS_PLACE);                               \
    return __atomic_compare_exchange_n(at, expected, wanted, false, __ATOMIC_RELAXED,            \
                                       __ATOMIC_RELAXED);                                        \
  }                                                                                              \
  T __tsan_atomic##bits##_exchange(volatile T* at, T value, int) {                               \
    NoteAccess(kAtomic, const_cast<T*>(at), sizeof(T), HPS_PLACE);                               \
    return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);                                     \
  }                                                                                              \
  HPS_CHANGE(bits, T, fetch_add)                                                                 \
  HPS_CHANGE(bits, T, fetch_sub)                                                                 \
  HPS_CHANGE(bits, T, fetch_or)                                                                  \
  HPS_CHANGE(bits, T, fetch_and)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void* at, long size) { NoteAccess(kRead, at, size, HPS_PLACE); }
void __tsan_write_range(void* at, long size) { NoteAccess(kWrite, at, size, HPS_PLACE); }
HPS_PLAIN(1)
HPS_PLAIN(2)
HPS_PLAIN(4)
HPS_PLAIN(8)
HPS_PLAIN(16)
HPS_ATOMIC(8, unsigned char)
HPS_ATOMIC(16, unsigned short)
HPS_ATOMIC(32, unsigned)
HPS_ATOMIC(64, unsigned long)

}  // extern "C"
