// Relaxed atomic operations, one text for host and device.
//
// Above it: gpu_cache. Below it: the compiler's builtins. A verb's threads need atomicity, seldom
// ordering: what one kernel wrote is read by the next one, and kernels follow each other. The
// device has no atomics on single bytes, so those go through the word that holds the byte.
#pragma once

#include "common/portable.h"

namespace hps {
inline namespace HPS_BUILD {

#if defined(__CUDA_ARCH__)
using AtomicWord = unsigned long long;  // what CUDA's 64-bit atomics take
#endif

template <class T>
HPS_HD T AtomicLoad(const T* ptr) {
#if defined(__CUDA_ARCH__)
  return *const_cast<const volatile T*>(ptr);
#else
  return __atomic_load_n(ptr, __ATOMIC_RELAXED);
#endif
}

template <class T>
HPS_HD void AtomicStore(T* ptr, T value) {
#if defined(__CUDA_ARCH__)
  *const_cast<volatile T*>(ptr) = value;
#else
  __atomic_store_n(ptr, value, __ATOMIC_RELAXED);
#endif
}

// Adds; returns what was there before.
HPS_HD uint32_t AtomicAdd(uint32_t* ptr, uint32_t amount) {
#if defined(__CUDA_ARCH__)
  return atomicAdd(ptr, amount);
#else
  return __atomic_fetch_add(ptr, amount, __ATOMIC_RELAXED);
#endif
}

HPS_HD void AtomicAdd(int64_t* ptr, int64_t amount) {
#if defined(__CUDA_ARCH__)
  atomicAdd(reinterpret_cast<AtomicWord*>(ptr), static_cast<AtomicWord>(amount));
#else
  __atomic_fetch_add(ptr, amount, __ATOMIC_RELAXED);
#endif
}

// Adds one; returns what was there before. Unlike the others it orders memory: what a lane has
// written before it arrives is there for those who find it arrived.
HPS_HD uint32_t AtomicArrive(uint32_t* ptr) {
#if defined(__CUDA_ARCH__)
  __threadfence();
  const uint32_t before = atomicAdd(ptr, 1u);
  __threadfence();
  return before;
#else
  return __atomic_fetch_add(ptr, 1u, __ATOMIC_ACQ_REL);
#endif
}

// Stores `wanted`; returns what was there before.
HPS_HD uint32_t AtomicExchange(uint32_t* ptr, uint32_t wanted) {
#if defined(__CUDA_ARCH__)
  return atomicExch(ptr, wanted);
#else
  return __atomic_exchange_n(ptr, wanted, __ATOMIC_RELAXED);
#endif
}

// Stores `wanted` where `expected` stands; returns what was there before.
HPS_HD uint32_t AtomicExchangeIf(uint32_t* ptr, uint32_t expected, uint32_t wanted) {
#if defined(__CUDA_ARCH__)
  return atomicCAS(ptr, expected, wanted);
#else
  __atomic_compare_exchange_n(ptr, &expected, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
#endif
}

// Stores `value` if it is smaller; returns what was there before.
HPS_HD uint32_t AtomicMin(uint32_t* ptr, uint32_t value) {
#if defined(__CUDA_ARCH__)
  return atomicMin(ptr, value);
#else
  uint32_t before = AtomicLoad(ptr);
  while (value < before) {
    const uint32_t found = AtomicExchangeIf(ptr, before, value);
    if (found == before) break;
    before = found;
  }
  return before;
#endif
}

HPS_HD void AtomicMax(uint32_t* ptr, uint32_t value) {
#if defined(__CUDA_ARCH__)
  atomicMax(ptr, value);
#else
  uint32_t before = AtomicLoad(ptr);
  while (value > before) {
    const uint32_t found = AtomicExchangeIf(ptr, before, value);
    if (found == before) return;
    before = found;
  }
#endif
}

// Replaces a byte by change(byte), which may be asked several times; returns the byte before.
template <class Change>
HPS_HD uint8_t AtomicChange(uint8_t* ptr, Change change) {
  const auto address = reinterpret_cast<uint64_t>(ptr);
  auto* word = reinterpret_cast<uint32_t*>(address & ~uint64_t{3});
  const int shift = static_cast<int>(address & 3) * 8;  // both sides are little-endian
  uint32_t before = AtomicLoad(word);
  for (;;) {
    const auto byte = static_cast<uint8_t>(before >> shift);
    const uint32_t wanted = (before & ~(uint32_t{255} << shift)) | uint32_t{change(byte)} << shift;
    if (wanted == before) return byte;
    const uint32_t found = AtomicExchangeIf(word, before, wanted);
    if (found == before) return byte;
    before = found;
  }
}

}  // namespace HPS_BUILD
}  // namespace hps
