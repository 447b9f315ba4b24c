// TextSchema: what a text log's lines hold and which of it the tables ask for.
//
// Above it: the line parsers. Below it: SampleRule. hps/reader/schema.py makes it from the tables'
// features; it never changes once a parser has it, so that threads share it freely.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reader/sample_rule.h"

namespace hps {

// What stands for a missing number where it is told from 0: log1p of no whole number, nor minus it.
inline constexpr float kMissingDense = -0.5F;

enum class TextFormat { kCriteo, kLibsvm, kLibffm, kSlots };

// A feature that some table takes. Columns are in the order of the tables, and within a table in
// the order of its features, so that a table owns one range of columns.
struct TextColumn {
  std::string name;
  uint64_t seed = 0;   // of the key hash
  uint32_t index = 0;  // criteo: which category of the line, from 0; else unused
};

struct TextSchema {
  TextFormat format = TextFormat::kCriteo;
  std::vector<TextColumn> columns;
  std::vector<uint32_t> table_sizes;  // columns of each table
  uint32_t num_dense = 0;             // numbers a line must hold; 0 if weighted()
  uint32_t num_categories = 0;        // criteo: categories a line must hold
  bool signed_log = false;            // criteo: missing and negative numbers are told from 0
  bool hash_keys = false;             // hash the raw text of a key even if it is a number
  bool skip_bad_lines = false;        // count a bad line and go on, instead of stopping at it
  bool refuse_unknown = false;        // a feature without a column makes its line bad
  SampleRule sample;                  // lines that are kept; others are not parsed

  bool weighted() const { return format == TextFormat::kLibsvm || format == TextFormat::kLibffm; }
  // Every line has one key in each column, so keys need no offsets until they are a batch.
  bool fixed() const { return format == TextFormat::kCriteo; }
};

}  // namespace hps
