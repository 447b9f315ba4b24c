// SummedColumn: a column of sums that lies nowhere: each is added up where it is read.
//
// Above it: lanes.h and device_lanes.h, whose walkers take one in place of a column that is only
// read. Below it: table/row_pieces.h. A sum starts with +0 and takes its terms in order, so that it
// has the same bits however often and by whichever lane it is read.
#pragma once

#include "table/row_pieces.h"

namespace hps {
inline namespace HPS_BUILD {

// column[d] = 0 + source(0)[d] * weight(0) + ..., of `count` terms.
template <class Source, class Weight>
struct SummedColumn {
  Source source;  // source(i): const float*, the columns of term i
  Weight weight;
  int64_t count;
  bool are_aligned;  // sources begin at multiples of 16 bytes
  int64_t first;     // column

  HPS_HD_MEMBER SummedColumn operator+(int64_t columns) const {
    return {source, weight, count, are_aligned, first + columns};
  }

  HPS_HD_MEMBER float operator[](int64_t d) const {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += source(i)[first + d] * weight(i);
    return sum;
  }

  // The first four columns, and those kStep, 2 * kStep ... behind: where a source lies is asked
  // once for all.
  template <int kPieces, int kStep>
  HPS_HD_MEMBER void add_up(Piece* pieces) const {
    for (int k = 0; k < kPieces; ++k) pieces[k] = Piece{{0, 0, 0, 0}};
    for (int64_t i = 0; i < count; ++i) {
      const float* const from = source(i) + first;
      const float factor = weight(i);
      for (int k = 0; k < kPieces; ++k) {
        pieces[k] = pieces[k] + PieceFrom(from + k * kStep) * factor;
      }
    }
  }

 private:
  HPS_HD_MEMBER Piece PieceFrom(const float* from) const {
    if (are_aligned) return PieceAt(from, 0);
    return {{from[0], from[1], from[2], from[3]}};
  }
};

template <class Source, class Weight>
HPS_HD SummedColumn<Source, Weight> SumTerms(int64_t count, Source source, Weight weight,
                                             bool are_aligned) {
  return {source, weight, count, are_aligned, 0};
}

// A column that is only read.
HPS_HD const float* AsRead(const float* column) { return column; }
template <class Source, class Weight>
HPS_HD SummedColumn<Source, Weight> AsRead(SummedColumn<Source, Weight> column) {
  return column;
}

}  // namespace HPS_BUILD
}  // namespace hps
