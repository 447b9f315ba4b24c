// Assembly of batches: a copy of runs where every line has one key in each column, a counting sort
// by (feature, example) elsewhere. The sort is stable: within a bag keys stay in the order of the
// line. Above it: TextParser. Below it: ExampleBlock, ThreadPool.
#include "reader/text_batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace hps {
namespace {

void CopyExamples(const TextSchema& schema, const std::vector<BlockSlice>& slices,
                  TextBatch* batch) {
  batch->labels.Allocate(batch->num_examples);
  batch->dense.Allocate(batch->num_examples * schema.num_dense);
  float* labels = batch->labels.data.get();
  float* dense = batch->dense.data.get();
  for (const BlockSlice& slice : slices) {
    labels = std::copy_n(slice.block->labels.data() + slice.first, slice.count, labels);
    if (schema.num_dense == 0) continue;
    dense = std::copy_n(slice.block->dense.data() + slice.first * schema.num_dense,
                        slice.count * schema.num_dense, dense);
  }
}

// Copies one column of a fixed format.
void CopyColumn(const std::vector<BlockSlice>& slices, size_t column, uint64_t* keys) {
  for (const BlockSlice& slice : slices) {
    const uint64_t* src = slice.block->keys.data() + column * slice.block->capacity + slice.first;
    keys = std::copy_n(src, slice.count, keys);
  }
}

void AssembleFixed(const TextSchema& schema, const std::vector<BlockSlice>& slices,
                   ThreadPool* pool, TextBatch* batch) {
  const size_t num_examples = batch->num_examples;
  for (size_t t = 0; t < batch->tables.size(); ++t) {
    TableIds& table = batch->tables[t];
    table.keys.Allocate(schema.table_sizes[t] * num_examples);
    table.offsets.Allocate(table.keys.size + 1);
  }
  const size_t num_threads = pool == nullptr ? 1 : static_cast<size_t>(pool->num_threads());
  const auto copy = [&](int worker) {
    size_t column = 0;
    for (size_t t = 0; t < batch->tables.size(); ++t) {
      TableIds& table = batch->tables[t];
      for (size_t f = 0; f < schema.table_sizes[t]; ++f, ++column) {
        if (column % num_threads != static_cast<size_t>(worker)) continue;
        CopyColumn(slices, column, table.keys.data.get() + f * num_examples);
        int64_t* offsets = table.offsets.data.get() + f * num_examples;
        std::iota(offsets, offsets + num_examples, static_cast<int64_t>(f * num_examples));
      }
      if (worker == 0) table.offsets.data[table.keys.size] = static_cast<int64_t>(table.keys.size);
    }
  };
  if (pool == nullptr) {
    copy(0);
  } else {
    pool->Run(copy);
  }
}

// The range of a block's keys that a slice holds.
std::pair<size_t, size_t> KeyRange(const BlockSlice& slice) {
  const std::vector<uint64_t>& ends = slice.block->key_ends;
  const size_t begin = slice.first == 0 ? 0 : ends[slice.first - 1];
  return {begin, slice.count == 0 ? begin : ends[slice.first + slice.count - 1]};
}

// Which table a column belongs to, and which bag its example 0 has there.
struct ColumnPlace {
  uint32_t table;
  size_t first_bag;
};

// Calls visit(place, example, block, key) for every key of the slices in the order of the text.
template <typename Visit>
void VisitKeys(const std::vector<BlockSlice>& slices, const std::vector<ColumnPlace>& places,
               Visit visit) {
  size_t example = 0;
  for (const BlockSlice& slice : slices) {
    const ExampleBlock& block = *slice.block;
    size_t key = KeyRange(slice).first;
    for (size_t i = slice.first; i < slice.first + slice.count; ++i, ++example) {
      for (; key < block.key_ends[i]; ++key) visit(places[block.columns[key]], example, block, key);
    }
  }
}

void AssembleRagged(const TextSchema& schema, const std::vector<BlockSlice>& slices,
                    TextBatch* batch) {
  const size_t num_examples = batch->num_examples;
  std::vector<ColumnPlace> places;
  // offsets[bag + 2] counts the bag's keys first; summed up, offsets[bag + 1] is where the bag
  // begins, and each key put into it moves that on, so that it ends as where the bag ends.
  std::vector<int64_t*> offsets;
  for (size_t t = 0; t < batch->tables.size(); ++t) {
    const size_t num_bags = schema.table_sizes[t] * num_examples;
    batch->tables[t].offsets.Allocate(num_bags + 2);
    offsets.push_back(batch->tables[t].offsets.data.get());
    std::fill_n(offsets.back(), num_bags + 2, 0);
    for (size_t f = 0; f < schema.table_sizes[t]; ++f) {
      places.push_back({static_cast<uint32_t>(t), f * num_examples});
    }
  }
  VisitKeys(slices, places,
            [&](const ColumnPlace& place, size_t example, const ExampleBlock&, size_t) {
              ++offsets[place.table][place.first_bag + example + 2];
            });
  for (TableIds& table : batch->tables) {
    int64_t* first = table.offsets.data.get();
    std::partial_sum(first, first + table.offsets.size, first);
    table.keys.Allocate(static_cast<size_t>(first[table.offsets.size - 1]));
    if (schema.weighted()) table.weights.Allocate(table.keys.size);
    --table.offsets.size;
  }
  VisitKeys(slices, places,
            [&](const ColumnPlace& place, size_t example, const ExampleBlock& block, size_t key) {
              TableIds& table = batch->tables[place.table];
              const int64_t dst = offsets[place.table][place.first_bag + example + 1]++;
              table.keys.data[dst] = block.keys[key];
              if (table.weights.data != nullptr) table.weights.data[dst] = block.weights[key];
            });
}

}  // namespace

void AssembleBatch(const TextSchema& schema, const std::vector<BlockSlice>& slices,
                   ThreadPool* pool, TextBatch* batch) {
  batch->num_examples = 0;
  for (const BlockSlice& slice : slices) batch->num_examples += slice.count;
  batch->tables.clear();
  batch->tables.resize(schema.table_sizes.size());
  CopyExamples(schema, slices, batch);
  if (schema.fixed()) {
    AssembleFixed(schema, slices, pool, batch);
  } else {
    AssembleRagged(schema, slices, batch);
  }
}

}  // namespace hps
