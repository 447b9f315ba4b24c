// TableBatch under the sanitizers: batches of tables of several widths, in pieces, from narrow and
// wide offsets, weighted or not, of keys of their own or of another table, on several threads;
// refused ones; rows that are missing; pins. Over dram_cache and over the host build of gpu_cache.
//
// Above it: CTest. Below it: csrc/table_batch. Rows and gradients are whole numbers of small size,
// so that sums are exact and can be foretold one by one; the bits of rounded ones are the Python
// tests' business.
#include "table_batch/table_batch.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "common/check.h"
#include "common/hash.h"
#include "dram_cache/dram_cache.h"
#include "gpu_cache/gpu_cache.h"

namespace hps {
namespace {

constexpr float kRate = 0.5f;
constexpr int64_t kNumKeys = 700;
constexpr int kUnweighted = -1;
constexpr int64_t kLengths[] = {0, 1, 2, 4};
const std::vector<int64_t> kDims = {1, 8, 16, 20, 64};

uint64_t KeyOf(int64_t number) { return MixKey(static_cast<uint64_t>(number) + 1); }

Status Open(const DramCacheOptions& options, ThreadPool* pool, std::unique_ptr<DramCache>* cache) {
  return DramCache::Open(options, pool, cache);
}
Status Open(const GpuCacheOptions& options, ThreadPool* pool, std::unique_ptr<GpuCache>* cache) {
  return GpuCache::Open(options, HostLauncher(pool), cache);
}

// A table of rows that hold whole numbers, and what its rows should be.
struct Table {
  explicit Table(int64_t dim) : dim(dim) {}
  virtual ~Table() = default;

  virtual std::unique_ptr<TableRows> rows_in_cache() = 0;
  virtual int64_t num_pins() const = 0;
  float* row(int64_t number) { return rows.data() + number * dim; }

  const int64_t dim;
  std::vector<float> rows;  // [kNumKeys, dim]
};

template <class Cache, class Plan, class Options>
struct TableOf final : Table {
  TableOf(int64_t dim, ThreadPool* pool) : Table(dim) {
    Options options;
    options.layout = {OptimizerKind::kSgd, dim};
    options.initializer = {InitializerKind::kConstant, 0.0f, 0.0f, 0};
    options.capacity_bytes = 1000 * (options.layout.row_bytes() + 5) + 65536;
    HPS_CHECK(Open(options, pool, &cache).ok());
    std::vector<uint64_t> keys;
    for (int64_t number = 0; number < kNumKeys; ++number) {
      keys.push_back(KeyOf(number));
      for (int64_t d = 0; d < dim; ++d) rows.push_back(static_cast<float>(number % 50 + d));
    }
    Plan plan;
    cache->MakePlan(keys.data(), kNumKeys, &plan);
    const int64_t missing = cache->Find(&plan, 0, -1);
    HPS_CHECK(missing == kNumKeys && cache->Reserve(&plan));
    const std::vector<uint8_t> found(static_cast<size_t>(missing));
    const std::vector<uint8_t> images(static_cast<size_t>(missing * options.layout.row_bytes()));
    cache->Fill(&plan, images.data(), found.data(), kRate, true);
    cache->Assign(&plan, rows.data(), nullptr, nullptr, kRate);
    cache->Release(&plan);
  }

  std::unique_ptr<TableRows> rows_in_cache() override {
    return std::make_unique<RowsIn<Cache, Plan>>(cache.get());
  }
  int64_t num_pins() const override {
    if constexpr (std::is_same_v<Cache, DramCache>) {
      return cache->num_pins();
    } else {
      return cache->count(kCountPins);
    }
  }

  std::unique_ptr<Cache> cache;
};

using DramTable = TableOf<DramCache, BatchPlan, DramCacheOptions>;
using GpuTable = TableOf<GpuCache, GpuPlan, GpuCacheOptions>;

// One table's features: numbers of keys, and bags of 0, 1, 2 or 4 of them.
struct Features {
  Features(int64_t num_bags, bool is_single, bool is_weighted, std::mt19937* generator) {
    const int64_t num_others = (*generator)() % 3;  // keys of other tables come first
    for (int64_t i = 0; i < num_others; ++i) Add(0, is_weighted ? 9 : kUnweighted);
    offsets.push_back(num_others);
    for (int64_t bag = 0; bag < num_bags; ++bag) {
      const int64_t length = is_single ? 1 : kLengths[(*generator)() % 4];
      for (int64_t i = 0; i < length; ++i) {
        Add(static_cast<int64_t>((*generator)() % kNumKeys),
            is_weighted ? static_cast<int>((*generator)() % 3) : kUnweighted);
      }
      offsets.push_back(static_cast<int64_t>(numbers.size()));
      narrow.push_back(static_cast<int32_t>(offsets[static_cast<size_t>(bag)]));
    }
    narrow.push_back(static_cast<int32_t>(offsets.back()));
  }

  void Add(int64_t number, int weight) {
    numbers.push_back(number);
    keys.push_back(KeyOf(number));
    if (weight != kUnweighted) weights.push_back(static_cast<float>(weight));
  }

  // Bags [first, end) as a piece of their own.
  TablePiece Piece(int64_t first, int64_t end, bool is_narrow) const {
    TablePiece piece = {};
    piece.keys = keys.data() + offsets[static_cast<size_t>(first)];
    piece.count = offsets[static_cast<size_t>(end)] - offsets[static_cast<size_t>(first)];
    piece.is_narrow = is_narrow;
    piece.offsets = is_narrow ? static_cast<const void*>(narrow.data() + first)
                              : static_cast<const void*>(offsets.data() + first);
    piece.num_bags = end - first;
    const float* own = weights.data() + offsets[static_cast<size_t>(first)];
    piece.weights = weights.empty() ? nullptr : own;
    return piece;
  }
  float WeightOf(size_t i) const { return weights.empty() ? 1.0f : weights[i]; }

  std::vector<int64_t> numbers, offsets;
  std::vector<int32_t> narrow;
  std::vector<uint64_t> keys;
  std::vector<float> weights;
};

class Lab {
 public:
  Lab(int threads, bool is_gpu) : pool_(threads), generator_(static_cast<uint32_t>(threads)) {
    std::vector<std::unique_ptr<TableRows>> rows;
    for (const int64_t dim : kDims) {
      if (is_gpu) {
        tables_.push_back(std::make_unique<GpuTable>(dim, &pool_));
      } else {
        tables_.push_back(std::make_unique<DramTable>(dim, &pool_));
      }
      rows.push_back(tables_.back()->rows_in_cache());
    }
    batch_ = std::make_unique<TableBatch>(std::move(rows), &counts_);
  }

  // A step of `num_examples`, pinned or not, whose outputs and rows are as foretold.
  void Step(int64_t num_examples, bool is_pinned) {
    Draw(num_examples);
    batch_->Begin(pieces_, num_examples);
    // Unused columns stay what they are: features end before the row does.
    std::vector<float> out(static_cast<size_t>(num_examples * width_), -1.0f);
    if (is_pinned) {
      batch_->Hold();
      batch_->Pool(places_, width_, {out.data()});
    } else {
      batch_->Pull(places_, width_, {out.data()});
      batch_->Find();
    }
    for (size_t table = 0; table < tables_.size(); ++table) {
      HPS_CHECK(batch_->num_missing(table) == 0);
      HPS_CHECK(!batch_->is_refused(table));
    }
    HPS_CHECK(out == Expected());
    const std::vector<float> rates(tables_.size(), kRate);
    std::vector<float> gradients(out.size());
    for (float& value : gradients) value = static_cast<float>(generator_() % 5) * 4.0f;
    batch_->Sum(places_, width_, {gradients.data()}, nullptr, rates);
    for (size_t table = 0; table < tables_.size(); ++table) HPS_CHECK(batch_->culprit(table) < 0);
    batch_->Apply(rates);
    if (is_pinned) batch_->Release();
    StepRows(gradients);
    for (const auto& table : tables_) HPS_CHECK(table->num_pins() == 0);
  }

  // What is not to be looked up is refused, and no other table is touched by that.
  void Refuse() {
    Draw(6);
    std::vector<int64_t> falling(features_[1]->offsets);
    std::swap(falling.front(), falling.back());
    falling.front() += 1;
    pieces_[1][0].offsets = falling.data();
    pieces_[1][0].is_narrow = false;
    std::vector<float> infinite(features_[2]->numbers.size() + 1,
                                std::numeric_limits<float>::infinity());
    pieces_[2][0].weights = infinite.data();
    batch_->Begin(pieces_, 6);
    std::vector<float> out(static_cast<size_t>(6 * width_));
    batch_->Pull(places_, width_, {out.data()});
    HPS_CHECK(!batch_->is_refused(0));
    HPS_CHECK(batch_->is_refused(1));
    const bool has_weight = pieces_[2][0].count > 0;
    HPS_CHECK(batch_->is_refused(2) == has_weight);
    HPS_CHECK(!batch_->is_refused(3));
  }

  // A key that is nowhere is missing in its own table alone, and nothing of that table is pinned.
  void Miss() {
    Draw(40);
    Features strange(40, true, false, &generator_);
    strange.keys[17] = KeyOf(kNumKeys + 5);
    pieces_[3] = {strange.Piece(0, 40, false)};
    places_[3].columns.resize(1);
    batch_->Begin(pieces_, 40);
    batch_->Hold();
    for (size_t table = 0; table < tables_.size(); ++table) {
      HPS_CHECK(batch_->num_missing(table) == (table == 3));
      HPS_CHECK((tables_[table]->num_pins() > 0) ==
                (table != 3 && batch_->rows(table)->num_unique() > 0));
    }
    batch_->Release();
    for (const auto& table : tables_) HPS_CHECK(table->num_pins() == 0);
  }

 private:
  // Features of all tables, in pieces, their columns in an order that is not the tables'.
  void Draw(int64_t num_examples) {
    features_.clear();
    pieces_.clear();
    places_.clear();
    width_ = 3;  // columns before the first feature
    num_examples_ = num_examples;
    for (size_t table = 0; table < tables_.size(); ++table) {
      if (table == 4 && generator_() % 2 == 0) {  // the very keys of another table
        features_.push_back(features_[3]);
        pieces_.push_back(pieces_[3]);
        places_.push_back(places_[3]);
        continue;
      }
      const int64_t count = 1 + static_cast<int64_t>(generator_() % 3);
      const bool is_weighted = table == 2;
      features_.push_back(std::make_shared<Features>(count * num_examples, table == 0 && count == 1,
                                                     is_weighted, &generator_));
      places_.push_back({table == 1, std::vector<int64_t>(static_cast<size_t>(count))});
      std::vector<TablePiece> own;
      const int64_t first = generator_() % 2 == 0 ? count : 1;  // one piece, or several
      own.push_back(features_.back()->Piece(0, first * num_examples, table % 2 == 0));
      for (int64_t feature = first; feature < count; ++feature) {
        own.push_back(features_.back()->Piece(feature * num_examples, (feature + 1) * num_examples,
                                              feature % 2 == 0));
      }
      pieces_.push_back(own);
    }
    for (size_t i = tables_.size(); i > 0; --i) {
      for (int64_t& column : places_[i - 1].columns) {
        column = width_;
        width_ += tables_[i - 1]->dim;
      }
    }
  }

  // Calls visit(table, bag's value [dim] in the row of its example, first, end).
  template <class Visit>
  void ForBags(float* values, Visit visit) {
    for (size_t table = 0; table < tables_.size(); ++table) {
      const Features& features = *features_[table];
      for (size_t bag = 0; bag + 1 < features.offsets.size(); ++bag) {
        const auto feature = static_cast<int64_t>(bag) / num_examples_;
        const auto example = static_cast<int64_t>(bag) % num_examples_;
        const int64_t column = places_[table].columns[static_cast<size_t>(feature)];
        visit(table, values + example * width_ + column, static_cast<size_t>(features.offsets[bag]),
              static_cast<size_t>(features.offsets[bag + 1]));
      }
    }
  }

  float DivisorOf(size_t table, size_t first, size_t end) const {
    return places_[table].is_mean && end > first ? static_cast<float>(end - first) : 1.0f;
  }

  std::vector<float> Expected() {
    std::vector<float> out(static_cast<size_t>(num_examples_ * width_), -1.0f);
    ForBags(out.data(), [&](size_t table, float* value, size_t first, size_t end) {
      for (int64_t d = 0; d < tables_[table]->dim; ++d) {
        float sum = 0;
        for (size_t i = first; i < end; ++i) {
          sum +=
              tables_[table]->row(features_[table]->numbers[i])[d] * features_[table]->WeightOf(i);
        }
        value[d] = sum / DivisorOf(table, first, end);
      }
    });
    return out;
  }

  void StepRows(std::vector<float> gradients) {
    ForBags(gradients.data(), [&](size_t table, float* value, size_t first, size_t end) {
      for (size_t i = first; i < end; ++i) {
        float* row = tables_[table]->row(features_[table]->numbers[i]);
        const float weight = features_[table]->WeightOf(i);
        for (int64_t d = 0; d < tables_[table]->dim; ++d) {
          row[d] -= kRate * (value[d] / DivisorOf(table, first, end) * weight);
        }
      }
    });
  }

  ThreadPool pool_;
  std::mt19937 generator_;
  std::vector<std::unique_ptr<Table>> tables_;
  TableCounts counts_{std::size(kDims)};
  std::unique_ptr<TableBatch> batch_;
  std::vector<std::shared_ptr<Features>> features_;
  std::vector<std::vector<TablePiece>> pieces_;
  std::vector<FeaturePlaces> places_;
  int64_t width_ = 0;
  int64_t num_examples_ = 0;
};

}  // namespace
}  // namespace hps

int main() {
  for (const bool is_gpu : {false, true}) {
    for (const int threads : {1, 2, 3}) {
      hps::Lab lab(threads, is_gpu);
      for (const int64_t num_examples : {1, 7, 300, 3000}) {
        lab.Step(num_examples, false);
        lab.Step(num_examples, true);
      }
      lab.Refuse();
      lab.Miss();
      lab.Step(50, true);
    }
  }
  std::puts("table batch: ok");
  return 0;
}
