// What a kernel's text sees of a grid of emulated warps: where its lane is, and the warp
// primitives.
//
// Above it: kernels.cc, which is compiled with every access of memory instrumented. Below it:
// grid.cc, which runs the lanes.
#pragma once

#include <cstdint>
#include <cstring>

namespace grid {

struct Index {
  unsigned x;
};

Index Thread();
Index Block();
Index BlockSize();
Index GridSize();
// The lane begins an item of its kernel.
void BeginItem();
unsigned Ballot(unsigned members, bool vote);
uint64_t ShuffleBits(unsigned members, uint64_t bits, int lane, int width);
void SyncWarp(unsigned members);

template <class T>
inline T Shuffle(unsigned members, T value, int lane, int width) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = ShuffleBits(members, bits, lane, width);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

struct Kernel {
  const char* name;
  int64_t args_size;
  int num_lanes;  // of a group
  void (*run)(const void* args, int64_t count);
};

extern const Kernel kKernels[];
extern const int kNumKernels;

}  // namespace grid
