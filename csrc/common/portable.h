// What lets one text compile for the host (several instruction sets) and for the device.
//
// HPS_HD marks functions that both sides compile. HPS_BUILD is an inline namespace a build: code
// compiled for AVX-512 must never be merged by the linker with the same function compiled for plain
// x86-64, so every translation unit with its own flags sets its own name.
#pragma once

#if defined(__CUDACC_RTC__)
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
#else
#include <cstdint>
#endif

#if defined(__CUDACC__)
#define HPS_HD __host__ __device__ inline
#else
#define HPS_HD inline
#endif

// Before a loop that a device's compiler is not to unroll.
#if defined(__CUDACC__)
#define HPS_NOT_UNROLLED _Pragma("unroll 1")
#else
#define HPS_NOT_UNROLLED
#endif

// Members of types that all builds share must vanish into their callers: a copy left standing in
// one build could be linked into another.
#define HPS_HD_MEMBER HPS_HD __attribute__((always_inline))

#ifndef HPS_BUILD
#if defined(__CUDA_ARCH__)
#define HPS_BUILD build_device
#else
#define HPS_BUILD build_host
#endif
#endif
