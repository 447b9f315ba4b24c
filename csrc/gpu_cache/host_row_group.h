// HostRowGroup: the lane group of size one with the width of rows known when compiled;
// HostStreamGroup: the same for rows that go to an output past the caches.
//
// Above it: gpu_cache's host build. Below it: table/host_group.h, table/row_copy.h,
// optimizer/lanes.h.
#pragma once

#include "optimizer/lanes.h"
#include "table/host_group.h"
#include "table/row_copy.h"
#include "table/row_pieces.h"

namespace hps {
inline namespace HPS_BUILD {

template <int kDim>
struct HostRowGroup : HostGroup {};

template <int kDim>
inline HostLanes<kDim> LanesOf(HostRowGroup<kDim>, int dim) {
  return {dim};
}

inline HostLanes<0> LanesOf(HostGroup, int dim) { return {dim}; }

template <int kDim>
struct HostStreamGroup : HostRowGroup<kDim> {};

template <int kDim>
inline void CopyFloats(HostRowGroup<kDim>, float* dst, const float* src, int64_t count) {
  CopyColumns<kDim>(src, static_cast<int>(count), dst);
}

template <int kDim>
inline void CopyFloats(HostStreamGroup<kDim>, float* dst, const float* src, int64_t) {
  StreamColumns<kDim>(src, dst);
}

template <int kDim>
inline void CopyFloats(HostRowGroup<kDim>, float* dst, const Bfloat16* src, int64_t count) {
  CopyColumns<kDim>(src, static_cast<int>(count), dst);
}

template <int kDim>
inline void CopyFloats(HostStreamGroup<kDim>, float* dst, const Bfloat16* src, int64_t) {
  StreamColumns<kDim>(src, dst);
}

// True if rows of kDim floats that are written one after the other, from `out` on, can go past the
// caches. What one row leaves of a line the next one fills, so only the stores' own alignment
// counts: an array of numpy's, which seldom starts with a line, will do.
template <int kDim>
inline bool CanStreamInOrder(const float* out) {
#if defined(__AVX512F__)
  constexpr uint64_t kAlignment = 64;
#elif defined(__AVX2__)
  constexpr uint64_t kAlignment = 32;
#else
  constexpr uint64_t kAlignment = 16;
#endif
  return kDim % 16 == 0 && reinterpret_cast<uint64_t>(out) % kAlignment == 0;
}

// What a thread does behind its last item.
inline void EndItems(HostGroup) {}

template <int kDim>
inline void EndItems(HostStreamGroup<kDim>) {
  EndStream();
}

}  // namespace HPS_BUILD
}  // namespace hps
