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

inline constexpr int kMostColumns = 64;  // of a width that is not known when compiled: at a time
inline constexpr int kMostLevels = 26;   // a batch has fewer than 2^31 occurrences

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

  void AddOlder(const float* older, float* sum) const {
    const int columns = kDim > 0 ? kDim : width_;
    int d = 0;
    for (; d + 16 <= columns; d += 16) Sixteen(sum + d) = Sixteen(older + d) + Sixteen(sum + d);
    for (; d < columns; ++d) sum[d] = older[d] + sum[d];
  }

  void SumRun(int64_t first, int64_t end, float* sum) const {
    if constexpr (kDim > 0 && kDim % 16 == 0) {
      constexpr int kVectors = kDim / 16;
      Float16 sums[kVectors];
      const float* const start = Row(first);
      AskAhead(first);
      for (int v = 0; v < kVectors; ++v) sums[v] = Term(start + 16 * v, first);
      for (int64_t i = first + 1; i < end; ++i) {
        const float* const row = Row(i);
        AskAhead(i);
        for (int v = 0; v < kVectors; ++v) sums[v] += Term(row + 16 * v, i);
      }
      for (int v = 0; v < kVectors; ++v) Sixteen(sum + 16 * v) = sums[v];
    } else {
      const float* const start = Row(first);
      for (int d = 0; d < width_; ++d) sum[d] = OneTerm(start[d], first);
      for (int64_t i = first + 1; i < end; ++i) {
        const float* const row = Row(i);
        for (int d = 0; d < width_; ++d) sum[d] += OneTerm(row[d], i);
      }
    }
  }

  // Behind the last occurrence is one that may be asked for, too.
  void AskAhead(int64_t i) const {
    const float* const ahead = Row(i + kOccurrencePadding / 2);
    for (int d = 0; d < kDim; d += 16) __builtin_prefetch(ahead + d);
  }

  Float16 Term(const float* values, int64_t i) const {
    if constexpr (kWeighted) return Sixteen(values) * weights_[i];
    return Sixteen(values);
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
      for (int64_t column = 0; column < args.dim; column += kMostColumns) {
        const int64_t left = args.dim - column;
        const int width = static_cast<int>(left < kMostColumns ? left : kMostColumns);
        PoolColumns<0, kWeighted>(args, first_bag, end_bag, column, width);
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
inline void Point(const KeyShare& share, int32_t dim, int number, int num_shares,
                  const float** rows) {
  const int64_t count = share.num_occurrences;
  const int64_t begin = count * number / num_shares;
  const auto point = [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t id = share.ids[i] & ~kFirstOfKey;
      rows[share.scan_positions[i]] = share.values + id * dim;
    }
  };
  point(begin, count);
  point(0, begin);
}

}  // namespace HPS_BUILD
}  // namespace hps
