// NarrowGroup: a lane group that works on rows whose weights are Bfloat16; and what the bodies of
// kernels ask of a group so that one text does for both kinds of rows.
//
// Above it: the kernels' headers that touch weights (moves.h, updates.h); the host build, which
// wraps the groups of its launcher. Below it: optimizer/narrow_lanes.h, row_pieces.h. The kernels
// of a CUDA device are compiled for plain groups alone.
#pragma once

#include "gpu_cache/cache_args.h"
#include "optimizer/narrow_lanes.h"
#include "table/row_pieces.h"

namespace hps {
inline namespace HPS_BUILD {

template <class Group>
struct NarrowGroup : Group {
  Rounding rounding;  // of updates

  HPS_HD_MEMBER NarrowGroup(Group group, Rounding how) : Group(group), rounding(how) {}
  HPS_HD_MEMBER const Group& plain() const { return *this; }
};

template <class Group>
HPS_HD auto LanesOf(NarrowGroup<Group> group, int dim) {
  using Lanes = decltype(LanesOf(group.plain(), dim));
  return NarrowLanes<Lanes, Rounding::kNearest>{LanesOf(group.plain(), dim), 0};
}

// The weights of a row, as they are kept.
template <class Group>
HPS_HD const float* WeightsOf(Group, const CacheArgs& cache, int64_t slot) {
  return WeightsAt(cache, slot);
}
template <class Group>
HPS_HD const Bfloat16* WeightsOf(NarrowGroup<Group>, const CacheArgs& cache, int64_t slot) {
  return reinterpret_cast<const Bfloat16*>(WeightsAt(cache, slot));
}

// Four neighbouring weights as floats.
HPS_HD const Piece& WidePiece(const float* weights, int64_t i) { return PieceAt(weights, i); }
HPS_HD Piece WidePiece(const Bfloat16* weights, int64_t i) {
  const Bfloat16* const four = weights + 4 * i;
  return {{Widened(four[0]), Widened(four[1]), Widened(four[2]), Widened(four[3])}};
}

template <class Group>
HPS_HD void CopyFloats(Group group, float* dst, const Bfloat16* src, int64_t count) {
  group.for_each(count, [=](int64_t d) { dst[d] = Widened(src[d]); });
}
template <class Group>
HPS_HD void CopyFloats(NarrowGroup<Group> group, float* dst, const Bfloat16* src, int64_t count) {
  CopyFloats(group.plain(), dst, src, count);
}

// Calls body(lanes) for one update of a row by its key's summed gradient; `lanes` are LanesOf.
template <class Group, class Lanes, class Sum, class Body>
HPS_HD void WithRounding(Group, const CacheArgs&, Lanes lanes, int64_t, Sum, Body body) {
  body(lanes);
}
template <class Group, class Lanes, class Body>
HPS_HD void WithRounding(NarrowGroup<Group> group, const CacheArgs& cache, Lanes lanes,
                         int64_t slot, const float* gradient, Body body) {
  if (group.rounding == Rounding::kNearest) return body(lanes);
  const uint64_t seed = SeedOfKey(cache.initializer.stream, KeyAt(cache.table, slot));
  const int64_t vectors = RowLayout{cache.kind}.state_vectors();
  using Inner = decltype(lanes.lanes);
  body(NarrowLanes<Inner, Rounding::kStochastic>{
      lanes.lanes, SeedOfUpdate(lanes.lanes, vectors, FloatsAt(cache, slot), gradient, seed)});
}

}  // namespace HPS_BUILD
}  // namespace hps
