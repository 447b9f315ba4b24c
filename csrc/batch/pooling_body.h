// Sums of bags, compiled once an instruction set: rows that lie anywhere, into one row a bag.
//
// Above it: key_loops.h. Below it: bags.h, key_share.h, row_copy.h. A bag's rows are added in order
// within runs of kRunLength, and run sums as a binary counter combines them, column by column: what
// is added first is the first row itself, so that a bag of one is a copy.
#pragma once

#include "batch/key_loops.h"
#include "optimizer/binary_counter.h"
#include "optimizer/lanes.h"
#include "table/row_copy.h"

namespace hps {
inline namespace HPS_BUILD {

// Of a width that is not known when compiled: so many columns at a time, or what is left if it is
// no more than kMostColumns, for a last column alone would cost a pass of its own.
inline constexpr int kColumnsAtATime = 64;
inline constexpr int kMostColumns = 80;
inline constexpr int kMostLevels = 26;  // a batch has fewer than 2^31 occurrences

// Sums over columns [column, column + width) of rows; `width` is kDim if that is known.
template <int kDim, bool kWeighted>
class BagSum {
 public:
  BagSum(const float* const* rows, const float* weights, int64_t column, int width)
      : rows_(rows), weights_(weights), column_(column), width_(kDim > 0 ? kDim : width) {}

  // Of occurrences [first, end), one at least, into sum.
  void Of(int64_t first, int64_t end, float* sum) const {
    if (end - first <= kRunLength) return SumRun(first, end, sum);
    alignas(64) float levels[kMostLevels][kDim > 0 ? kDim : kMostColumns];
    for (uint32_t num_runs = 0;; ++num_runs) {
      SumRun(first, end - first < kRunLength ? end : first + kRunLength, sum);
      int level = 0;
      while (level < kMostLevels - 1 && (num_runs >> level & 1) != 0) {
        AddOlder(levels[level++], sum);
      }
      first += kRunLength;
      if (first < end) {
        CopyColumns<kDim>(sum, width_, levels[level]);
        continue;
      }
      while (++level < kMostLevels) {  // what is left over is older, and oldest at the end
        if ((num_runs >> level & 1) != 0) AddOlder(levels[level], sum);
      }
      return;
    }
  }

 private:
  const float* Row(int64_t i) const { return rows_[i] + column_; }

  void AddOlder(const float* older, float* sum) const { AddColumns<kDim>(sum, older, width_); }

  void SumRun(int64_t first, int64_t end, float* sum) const {
    if constexpr (kDim >= 16) {
      return SumVectors<Float16, (kDim + 15) / 16>(first, end, sum);
    } else if constexpr (kDim > 0) {
      return SumVectors<Float8, (kDim + 7) / 8>(first, end, sum);
    }
    switch (width_ < 4 ? 0 : width_ < 8 ? -1 : width_ < 16 ? -2 : (width_ + 15) / 16) {
      case 0:
        return SumSingly(first, end, sum);
      case -1:
        return SumVectors<Float4, 2>(first, end, sum);
      case -2:
        return SumVectors<Float8, 2>(first, end, sum);
      case 1:
        return SumVectors<Float16, 1>(first, end, sum);
      case 2:
        return SumVectors<Float16, 2>(first, end, sum);
      case 3:
        return SumVectors<Float16, 3>(first, end, sum);
      case 4:
        return SumVectors<Float16, 4>(first, end, sum);
      default:
        static_assert(kMostColumns <= 5 * 16);
        return SumVectors<Float16, 5>(first, end, sum);
    }
  }

  // In so many registers, the last of which overlaps the one before it where columns do not come
  // out even: both have the same sums there.
  template <class Vector, int kVectors>
  void SumVectors(int64_t first, int64_t end, float* sum) const {
    constexpr int kLanes = sizeof(Vector) / sizeof(float);
    const int width = kDim > 0 ? kDim : width_;
    const auto column = [=](int v) { return v < kVectors - 1 ? v * kLanes : width - kLanes; };
    Vector sums[kVectors];
    const float* const start = Row(first);
    AskAhead(first, width);
    for (int v = 0; v < kVectors; ++v) sums[v] = Term<Vector>(start + column(v), first);
    for (int64_t i = first + 1; i < end; ++i) {
      const float* const row = Row(i);
      AskAhead(i, width);
      for (int v = 0; v < kVectors; ++v) sums[v] += Term<Vector>(row + column(v), i);
    }
    for (int v = 0; v < kVectors; ++v) VectorAt<Vector>(sum + column(v)) = sums[v];
  }

  void SumSingly(int64_t first, int64_t end, float* sum) const {
    const float* const start = Row(first);
    for (int d = 0; d < width_; ++d) sum[d] = OneTerm(start[d], first);
    for (int64_t i = first + 1; i < end; ++i) {
      const float* const row = Row(i);
      for (int d = 0; d < width_; ++d) sum[d] += OneTerm(row[d], i);
    }
  }

  // Behind the last occurrence is one that may be asked for, too.
  // Rows of a table begin anywhere in a line.
  void AskAhead(int64_t i, int width) const {
    // As for sums: narrow rows need more occurrences until one has come.
    const float* const ahead = Row(i + (width <= 32 ? kOccurrencePadding : kOccurrencePadding / 2));
    for (int d = 0; d < width; d += 16) __builtin_prefetch(ahead + d);
    if (width > 16) __builtin_prefetch(ahead + width - 1);
  }

  template <class Vector>
  Vector Term(const float* values, int64_t i) const {
    if constexpr (kWeighted) return VectorAt<Vector>(values) * weights_[i];
    return VectorAt<Vector>(values);
  }

  float OneTerm(float value, int64_t i) const {
    if constexpr (kWeighted) return value * weights_[i];
    return value;
  }

  const float* const* const rows_;
  const float* const weights_;
  const int64_t column_;
  const int width_;
};

inline void DivideColumns(int64_t count, int width, float* sum) {
  const auto divisor = static_cast<float>(count);
  int d = 0;
  for (; d + 16 <= width; d += 16) Sixteen(sum + d) = Sixteen(sum + d) / divisor;
  for (; d < width; ++d) sum[d] /= divisor;
}

template <int kDim, bool kWeighted>
inline void PoolColumns(const RowsToPool& args, int64_t first_bag, int64_t end_bag, int64_t column,
                        int width) {
  const BagsView& bags = args.bags;
  const BagSum<kDim, kWeighted> sum_of(args.rows, bags.weights, column, width);
  const int64_t dim = kDim > 0 ? kDim : args.dim;
  alignas(64) float sum[kDim > 0 ? kDim : kMostColumns];  // to be rounded
  BagNumber number(bags, first_bag);
  for (int64_t bag = first_bag; bag < end_bag; ++bag, number.Next()) {
    const int64_t place = bags.place(number.feature, number.example, dim) + column;
    Bfloat16* const narrow = args.out.narrow;
    float* const out = narrow == nullptr ? args.out.wide + place : sum;
    const int64_t first = bags.offsets[bag], end = bags.offsets[bag + 1];
    if (first == end) {
      __builtin_memset(out, 0, static_cast<uint64_t>(width) * sizeof(float));
    } else {
      sum_of.Of(first, end, out);
      if (bags.is_mean && end - first > 1) DivideColumns(end - first, width, out);
    }
    if (narrow != nullptr) CopyColumns<kDim>(sum, width, narrow + place);
  }
}

template <bool kWeighted>
inline void PoolWith(const RowsToPool& args, int64_t first_bag, int64_t end_bag) {
  WithDim(args.dim, [&](auto lanes) {
    constexpr int kDim = decltype(lanes)::kWidth;
    if constexpr (kDim > 0) {
      PoolColumns<kDim, kWeighted>(args, first_bag, end_bag, 0, kDim);
    } else {
      for (int64_t column = 0; column < args.dim;) {
        const int64_t left = args.dim - column;
        const int width = static_cast<int>(left <= kMostColumns ? left : kColumnsAtATime);
        PoolColumns<0, kWeighted>(args, first_bag, end_bag, column, width);
        column += width;
      }
    }
  });
}

inline void Pool(const RowsToPool& args, int64_t first_bag, int64_t end_bag) {
  if (args.bags.weights == nullptr) {
    PoolWith<false>(args, first_bag, end_bag);
  } else {
    PoolWith<true>(args, first_bag, end_bag);
  }
}

// Where the value of each of the share's occurrences is. Shares begin at different places of the
// batch, for two that wrote side by side would wait for each other's cache lines.
inline void Point(const KeyShare& share, const ValuePlaces& places, int number, int num_shares,
                  const float** rows) {
  const int64_t count = share.num_occurrences;
  const int64_t begin = count * number / num_shares;
  const auto point = [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t id = share.ids[i] & ~kFirstOfKey;
      const int64_t place = places.slots == nullptr ? id : places.slots[id];
      rows[share.scan_positions[i]] = places.first + place * places.stride;
    }
  };
  point(begin, count);
  point(0, begin);
}

}  // namespace HPS_BUILD
}  // namespace hps
