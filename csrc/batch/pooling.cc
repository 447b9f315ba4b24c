// Bags in as many pieces as there are threads.
#include "batch/pooling.h"

#include <algorithm>
#include <cstring>

#include "common/float_mode.h"
#include "table/row_copy.h"

namespace hps {
namespace {

constexpr int64_t kWorkAPiece = 4096;  // occurrences and bags; below this one thread is faster

constexpr int64_t kFloatsAPiece = 1 << 17;

// The first bag of a piece: bags and occurrences before it are the piece's share of all.
int64_t FirstBag(const BagsView& bags, int64_t piece, int64_t num_pieces) {
  const int64_t num_bags = bags.num_bags();
  const int64_t wanted = (bags.offsets[num_bags] + num_bags) * piece / num_pieces;
  int64_t low = 0, high = num_bags;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (bags.offsets[middle] + middle < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Calls work(first bag, end bag) for pieces of the bags, in parallel where that pays.
template <class Work>
void ForPieces(const BagsView& bags, ThreadPool* pool, Work work) {
  const int64_t num_bags = bags.num_bags();
  const int64_t useful = 1 + (bags.offsets[num_bags] + num_bags) / kWorkAPiece;
  const int num_threads = pool == nullptr ? 1 : pool->num_threads();
  const int64_t num_pieces = std::min<int64_t>(num_threads, useful);
  if (num_pieces <= 1) {
    const DefaultFloatMode mode;  // the pool sees to it otherwise
    return work(int64_t{0}, num_bags);
  }
  pool->Run([&](int i) {
    if (i < num_pieces) work(FirstBag(bags, i, num_pieces), FirstBag(bags, i + 1, num_pieces));
  });
}

// Values are floats or Bfloat16s.
template <class Value>
void DivideTo(const Value* values, int64_t count, float divisor, float* out) {
  for (int64_t d = 0; d < count; ++d) out[d] = Widened(values[d]) / divisor;
}

}  // namespace

void SpreadLabels(const BagsView& bags, const uint8_t* labels, uint8_t* out) {
  const auto num_examples = static_cast<size_t>(bags.num_examples);
  for (int64_t feature = 0; feature < bags.num_features; ++feature) {
    const int64_t* const offsets = bags.offsets + feature * bags.num_examples;
    if (bags.are_single) {
      std::memcpy(out + offsets[0], labels, num_examples);
      continue;
    }
    for (int64_t example = 0; example < bags.num_examples; ++example) {
      const auto length = static_cast<size_t>(offsets[example + 1] - offsets[example]);
      std::memset(out + offsets[example], labels[example], length);
    }
  }
}

void CopyByBag(const float* gradients, int64_t num_examples, int64_t num_features, int64_t dim,
               ThreadPool* pool, float* out) {
  const auto row_bytes = static_cast<size_t>(dim) * sizeof(float);
  const int64_t num_bags = num_examples * num_features;
  const auto copy = [&](int64_t first, int64_t end) {
    for (int64_t bag = first; bag < end; ++bag) {
      const int64_t row = bag % num_examples * num_features + bag / num_examples;
      std::memcpy(out + bag * dim, gradients + row * dim, row_bytes);
    }
  };
  const int64_t num_pieces =
      std::min<int64_t>(pool->num_threads(), 1 + num_bags * dim / kFloatsAPiece);
  if (num_pieces == 1) return copy(0, num_bags);
  pool->Run([&](int i) {
    if (i < num_pieces) copy(num_bags * i / num_pieces, num_bags * (i + 1) / num_pieces);
  });
}

const float** Pooling::PrepareRows(int64_t count) {
  return rows_.Reserve(count + kOccurrencePadding);
}

void Pooling::Pool(const KeyLoops& loops, const BagsView& bags, int32_t dim, ThreadPool* pool,
                   OutputValues out) {
  const int64_t num_bags = bags.num_bags();
  if (num_bags == 0) return;
  const int64_t count = bags.offsets[num_bags];
  const float** rows = rows_.data();
  for (int64_t i = 0; count > 0 && i < kOccurrencePadding; ++i) rows[count + i] = rows[0];
  const RowsToPool args = {rows, bags, dim, out};
  ForPieces(bags, pool, [&](int64_t first, int64_t end) { loops.pool(args, first, end); });
}

GradientView Pooling::Spread(const BagsView& bags, GradientValues gradients, int32_t dim,
                             ThreadPool* pool) {
  if (bags.are_rows()) {
    const int64_t stride = bags.columns == nullptr ? dim : bags.stride;
    const int64_t first = bags.place(0, 0, dim);
    if (gradients.narrow != nullptr) {
      return {nullptr, nullptr, nullptr, stride, gradients.narrow + first};
    }
    return {gradients.wide + first, nullptr, nullptr, stride};
  }
  const int64_t num_bags = bags.num_bags();
  uint32_t* starts = starts_.Reserve(bags.offsets[num_bags]);
  float* divided = bags.is_mean ? divided_.Reserve(num_bags * dim) : nullptr;
  ForPieces(bags, pool, [&](int64_t first, int64_t end) {
    BagNumber number(bags, first);
    for (int64_t bag = first; bag < end; ++bag, number.Next()) {
      const int64_t begin = bags.offsets[bag], length = bags.offsets[bag + 1] - begin;
      const int64_t place = bags.place(number.feature, number.example, dim);
      const int64_t start = divided == nullptr ? place : bag * dim;
      std::fill_n(starts + begin, length, static_cast<uint32_t>(start));
      if (divided == nullptr) continue;
      const auto divisor = static_cast<float>(std::max<int64_t>(length, 1));
      if (gradients.narrow != nullptr) {
        DivideTo(gradients.narrow + place, dim, divisor, divided + start);
      } else {
        DivideTo(gradients.wide + place, dim, divisor, divided + start);
      }
    }
  });
  if (divided != nullptr) return {divided, starts, bags.weights, 0};
  return {gradients.wide, starts, bags.weights, 0, gradients.narrow};
}

}  // namespace hps
