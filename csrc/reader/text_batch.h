// TextBatch: examples of one or more blocks as the arrays of a batch, feature-major.
//
// Above it: TextParser, csrc/bindings/reader.cc, which hands the arrays on without a copy.
// Below it: ExampleBlock, ThreadPool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/thread_pool.h"
#include "reader/example_block.h"
#include "reader/text_schema.h"

namespace hps {

// A plain array that is not set to zero before it is filled.
template <typename T>
struct Array {
  std::unique_ptr<T[]> data;
  size_t size = 0;

  void Allocate(size_t count) {
    data.reset(new T[count]);
    size = count;
  }
};

// Bag f * B + b of the table holds keys [offsets[f * B + b], offsets[f * B + b + 1]).
struct TableIds {
  Array<uint64_t> keys;    // [L]
  Array<int64_t> offsets;  // [F * B + 1]
  Array<float> weights;    // [L], or null in formats without weights
};

struct TextBatch {
  size_t num_examples = 0;
  Array<float> labels;  // [B]
  Array<float> dense;   // [B, number of dense]
  std::vector<TableIds> tables;
  // The place after the last example: file, bytes and lines of it, bad lines since the parser
  // began.
  int64_t file = 0;
  uint64_t byte = 0;
  uint64_t line = 0;
  uint64_t num_bad = 0;
};

// Examples [first, first + count) of a block.
struct BlockSlice {
  const ExampleBlock* block;
  size_t first;
  size_t count;
};

// Copies the slices, in their order, into the arrays of `batch`. `pool` may be null.
void AssembleBatch(const TextSchema& schema, const std::vector<BlockSlice>& slices,
                   ThreadPool* pool, TextBatch* batch);

}  // namespace hps
