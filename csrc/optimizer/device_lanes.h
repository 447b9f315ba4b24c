// DeviceLanes: how row arithmetic walks the columns of a row on a device; the verbs of HostLanes.
//
// Above it: the kernels of gpu_cache. Below it: table/device_group.h. Four lanes work on a row: its
// 16 lanes of a sum are then four registers of each, in the order of columns that the sum demands,
// and many rows are under way in a warp. Where the width is a multiple of four, a lane takes four
// neighbouring columns at a time; all columns then start at multiples of 16 bytes.
#pragma once

#include "optimizer/lanes.h"
#include "table/device_group.h"
#include "table/row_pieces.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int kRowLanes = 4;

// Pieces of a column in registers, kStep floats apart; those that may change go back to memory.
template <class Column, int kPieces, int kStep>
struct HeldColumns {
  Column* ptr;
  Piece pieces[kPieces];

  explicit HPS_HD_MEMBER HeldColumns(Column* column) : ptr(column) {
    for (int i = 0; i < kPieces; ++i) pieces[i] = PieceAt(column + i * kStep, 0);
  }
  HPS_HD_MEMBER float& at(int i, int j) { return pieces[i].at[j]; }
  HPS_HD_MEMBER float at(int i, int j) const { return pieces[i].at[j]; }
  HPS_HD_MEMBER void store() const { StoreTo(ptr); }

 private:
  HPS_HD_MEMBER void StoreTo(float* column) const {
    for (int i = 0; i < kPieces; ++i) PieceAt(column + i * kStep, 0) = pieces[i];
  }
  HPS_HD_MEMBER void StoreTo(const float*) const {}
};

template <class Source, class Weight, int kPieces, int kStep>
struct HeldSums {
  Piece pieces[kPieces];

  explicit HPS_HD_MEMBER HeldSums(SummedColumn<Source, Weight> column) {
    column.template add_up<kPieces, kStep>(pieces);
  }
  HPS_HD_MEMBER float at(int i, int j) const { return pieces[i].at[j]; }
  HPS_HD_MEMBER void store() const {}
};

template <int kPieces, int kStep, class Column>
HPS_HD HeldColumns<Column, kPieces, kStep> HeldOf(Column* column) {
  return HeldColumns<Column, kPieces, kStep>(column);
}
template <int kPieces, int kStep, class Source, class Weight>
HPS_HD HeldSums<Source, Weight, kPieces, kStep> HeldOf(SummedColumn<Source, Weight> column) {
  return HeldSums<Source, Weight, kPieces, kStep>(column);
}

template <int kSize>
struct DeviceLanes {
  static constexpr int kWidth = 0;
  static constexpr bool kIsHost = false;
  DeviceGroup<kSize> group;
  int dim;

  HPS_HD_MEMBER int size() const { return dim; }
  template <class Float>
  HPS_HD_MEMBER Float* weights(Float* row) const {
    return row + kRowHeaderFloats;
  }
  HPS_HD_MEMBER float* state(float* row) const { return row + kRowHeaderFloats + dim; }
  HPS_HD_MEMBER float* as_read(float* out) const { return out; }

  template <class Body, class... Columns>
  HPS_HD_MEMBER void each(Body body, Columns... columns) const {
    if (dim % 4 == 0) {
      int d = 4 * group.lane();
      // Two pieces at once: the second one's loads do not wait for the first one's stores.
      for (; d + kStep < dim; d += 2 * kStep) {
        Hold<2>(body, HeldOf<2, kStep>(columns + d)...);
      }
      if (d < dim) Hold<1>(body, HeldOf<1, kStep>(columns + d)...);
    } else {
      for (int d = group.lane(); d < dim; d += kSize) body(columns[d]...);
    }
  }

  template <class Value>
  HPS_HD_MEMBER void set(float* column, Value value) const {
    if (dim % 4 == 0 && IsPieceAligned(column)) {
      for (int d = 4 * group.lane(); d < dim; d += 4 * kSize) {
        PieceAt(column + d, 0) = Piece{{value(d), value(d + 1), value(d + 2), value(d + 3)}};
      }
    } else {
      for (int d = group.lane(); d < dim; d += kSize) column[d] = value(d);
    }
  }

  template <class Source, class Weight>
  HPS_HD_MEMBER void add_up(float* column, SummedColumn<Source, Weight> sums) const {
    if (dim % 4 == 0) {
      int d = 4 * group.lane();
      for (; d + kStep < dim; d += 2 * kStep) Store<2>(column + d, sums + d);
      if (d < dim) Store<1>(column + d, sums + d);
    } else {
      for (int d = group.lane(); d < dim; d += kSize) column[d] = sums[d];
    }
  }

  // All lanes have read what the body may change.
  template <class Body>
  HPS_HD_MEMBER void scalar(Body body) const {
    group.sync();
    group.elect(body);
  }

  HPS_HD_MEMBER void note(float) const {}

  template <class Body>
  HPS_HD_MEMBER void columns(Body body) const {
    for (int d = group.lane(); d < dim; d += kSize) body(d);
  }

  template <class Word>
  HPS_HD_MEMBER uint32_t fold(Word word) const {
    uint32_t total = 0;
    for (int d = group.lane(); d < dim; d += kSize) total += word(d);
    for (int step = 1; step < kSize; step *= 2) total += group.shuffle(total, group.lane() ^ step);
    return total;
  }

  template <class Term, class Column>
  HPS_HD_MEMBER float sum(Term term, Column column) const {
    static_assert(kSize == kRowLanes);
    float sums[4] = {};
    if (dim % 4 == 0) {
      // sums[j] is the lane 4 * lane() + j of the sixteen.
      for (int d = 4 * group.lane(); d < dim; d += kSumLanes) {
        const auto held = HeldOf<1, kStep>(AsRead(column) + d);
        for (int j = 0; j < 4; ++j) sums[j] += term(held.at(0, j));
      }
      for (int j = 0; j < 4; ++j) sums[j] += group.shuffle(sums[j], group.lane() ^ 2);
      for (int j = 0; j < 4; ++j) sums[j] += group.shuffle(sums[j], group.lane() ^ 1);
      return (sums[0] + sums[2]) + (sums[1] + sums[3]);
    }
    // sums[j] is the lane lane() + 4 * j of the sixteen.
    for (int first = group.lane(); first < dim; first += kSumLanes) {
      for (int j = 0; j < 4; ++j) {
        if (first + 4 * j < dim) sums[j] += term(column[first + 4 * j]);
      }
    }
    float four = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    four += group.shuffle(four, group.lane() ^ 2);
    return four + group.shuffle(four, group.lane() ^ 1);
  }

 private:
  static constexpr int kStep = 4 * kSize;

  template <int kPieces, class Sums>
  static HPS_HD_MEMBER void Store(float* column, Sums sums) {
    Piece pieces[kPieces];
    sums.template add_up<kPieces, kStep>(pieces);
    for (int k = 0; k < kPieces; ++k) PieceAt(column + k * kStep, 0) = pieces[k];
  }

  template <int kPieces, class Body, class... Held>
  static HPS_HD_MEMBER void Hold(Body body, Held... held) {
    for (int i = 0; i < kPieces; ++i) {
      for (int j = 0; j < 4; ++j) body(held.at(i, j)...);
    }
    (held.store(), ...);
  }
};

template <int kSize>
HPS_HD DeviceLanes<kSize> LanesOf(DeviceGroup<kSize> group, int dim) {
  return {group, dim};
}

}  // namespace HPS_BUILD
}  // namespace hps
