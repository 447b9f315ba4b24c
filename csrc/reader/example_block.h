// ExampleBlock: the examples of one piece of text, parsed, before they are cut into batches.
//
// Above it: TextParser's queue, AssembleBatch. Below it: the line parsers, which fill it. A block
// is filled by one thread, then only read. Blocks are reused, so vectors keep their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hps {

struct ExampleBlock {
  size_t num_examples = 0;
  std::vector<float> labels;  // [n]
  std::vector<float> dense;   // [n, number of dense]

  // Fixed formats: keys[column * capacity + example]. Others: all keys in the order of the text,
  // with the column of each, and example e owns [key_ends[e - 1], key_ends[e]).
  size_t capacity = 0;
  std::vector<uint64_t> keys;
  std::vector<uint32_t> columns;
  std::vector<float> weights;  // empty in formats without weights
  std::vector<uint64_t> key_ends;

  // Where each example's line ends: bytes, lines and bad lines of the block up to and including it.
  std::vector<uint32_t> byte_ends;
  std::vector<uint32_t> line_ends;
  std::vector<uint32_t> bad_ends;

  uint64_t num_bytes = 0;
  uint64_t num_lines = 0;
  uint64_t num_bad = 0;
  std::vector<uint32_t> separators;  // scratch of the criteo parser
  std::vector<uint32_t> newlines;
  std::vector<uint32_t> newline_tabs;

  // The bad line that ended the block, counted from 1 within it; 0 is none.
  uint64_t error_line = 0;
  std::string error;

  // Where the block lies in the log; set when it joins the queue.
  int64_t file = 0;
  uint64_t first_byte = 0;
  uint64_t first_line = 0;
  uint64_t first_bad = 0;

  void Clear() {
    num_examples = 0;
    num_bytes = num_lines = num_bad = error_line = 0;
    error.clear();
    labels.clear();
    dense.clear();
    columns.clear();
    weights.clear();
    key_ends.clear();
    byte_ends.clear();
    line_ends.clear();
    bad_ends.clear();
  }

  // Ends an example whose line is the block's line number `line` (from 1) and ends at `byte`.
  void EndLine(size_t byte, uint64_t line) {
    byte_ends.push_back(static_cast<uint32_t>(byte));
    line_ends.push_back(static_cast<uint32_t>(line));
    bad_ends.push_back(static_cast<uint32_t>(num_bad));
    ++num_examples;
  }

  // Takes a bad line; false if the block ends there.
  bool BadLine(uint64_t line, bool skip, std::string&& reason) {
    if (skip) {
      ++num_bad;
      return true;
    }
    error_line = line;
    error = std::move(reason);
    return false;
  }
};

}  // namespace hps
