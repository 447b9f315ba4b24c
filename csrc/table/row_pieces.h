// Moving rows: sixteen bytes a lane where the addresses allow it, single floats where not.
//
// Above it: optimizer/device_lanes.h, the kernels of gpu_cache. Below it: nothing. Rows and images
// are multiples of 16 bytes; an embedding is one only if its width is a multiple of four.
#pragma once

#include "common/portable.h"

namespace hps {
inline namespace HPS_BUILD {

#if defined(__CUDACC__)
struct alignas(16) Piece {
  float at[4];
};
#else
struct __attribute__((may_alias, aligned(16))) Piece {
  float at[4];
};
#endif

HPS_HD Piece operator+(const Piece& left, const Piece& right) {
  return {{left.at[0] + right.at[0], left.at[1] + right.at[1], left.at[2] + right.at[2],
           left.at[3] + right.at[3]}};
}
HPS_HD Piece operator*(const Piece& piece, float factor) {
  return {{piece.at[0] * factor, piece.at[1] * factor, piece.at[2] * factor, piece.at[3] * factor}};
}
HPS_HD Piece operator/(const Piece& piece, float divisor) {
  return {
      {piece.at[0] / divisor, piece.at[1] / divisor, piece.at[2] / divisor, piece.at[3] / divisor}};
}

HPS_HD bool IsPieceAligned(const void* ptr) { return (reinterpret_cast<uint64_t>(ptr) & 15) == 0; }

HPS_HD Piece& PieceAt(void* ptr, int64_t i) { return static_cast<Piece*>(ptr)[i]; }
HPS_HD const Piece& PieceAt(const void* ptr, int64_t i) {
  return static_cast<const Piece*>(ptr)[i];
}

// Copies `bytes`, a multiple of 16, between addresses that are multiples of 16.
template <class Group>
HPS_HD void CopyRow(Group group, void* dst, const void* src, int64_t bytes) {
  group.copy(
      bytes / 16, [=](int64_t i) { return PieceAt(src, i); },
      [=](int64_t i, const Piece& piece) { PieceAt(dst, i) = piece; });
}

template <class Group>
HPS_HD void ZeroRow(Group group, void* dst, int64_t bytes) {
  group.for_each(bytes / 16, [=](int64_t i) { PieceAt(dst, i) = Piece{{0, 0, 0, 0}}; });
}

template <class Group>
HPS_HD void CopyFloats(Group group, float* dst, const float* src, int64_t count) {
  if (count % 4 == 0 && IsPieceAligned(dst) && IsPieceAligned(src)) {
    CopyRow(group, dst, src, 4 * count);
  } else {
    group.for_each(count, [=](int64_t d) { dst[d] = src[d]; });
  }
}

}  // namespace HPS_BUILD
}  // namespace hps
