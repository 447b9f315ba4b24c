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

// Indices [first, last] of a libsvm log and what they are: a column; from columns.size() on the
// dense value of the first index, the others' following it; or kPassedOver.
struct IndexRange {
  uint64_t first = 0;
  uint64_t last = 0;
  uint32_t target = 0;
};
inline constexpr uint32_t kPassedOver = ~uint32_t{0};

// How a line of slots that has no label is to be read.
enum class SlotLayout { kUnknown, kKeySlot, kSlotKey };

struct TextSchema {
  TextFormat format = TextFormat::kCriteo;
  std::vector<TextColumn> columns;
  std::vector<uint32_t> table_sizes;  // columns of each table
  uint32_t num_dense = 0;             // numbers a line must hold; those of fields if weighted()
  uint32_t num_categories = 0;        // criteo: categories a line must hold
  bool signed_log = false;            // criteo: missing and negative numbers are told from 0
  bool hash_keys = false;             // hash the raw text of a key even if it is a number
  bool skip_bad_lines = false;        // count a bad line and go on, instead of stopping at it
  bool refuse_unknown = false;        // a feature without a column makes its line bad
  SampleRule sample;                  // lines that are kept; others are not parsed

  std::vector<TextColumn> dense_fields;  // libffm: fields whose values are dense values, in order
  std::vector<IndexRange> index_ranges;  // libsvm: in ascending order; none: all is one feature
  bool needs_labels = true;              // else a line without a label has label 0; not of criteo
  SlotLayout layout = SlotLayout::kUnknown;  // slots: of a line without a label

  bool weighted() const { return format == TextFormat::kLibsvm || format == TextFormat::kLibffm; }
  // Every line has one key in each column, so keys need no offsets until they are a batch.
  bool fixed() const { return format == TextFormat::kCriteo; }
  // Tokens name the dense values that they hold; one that no token names is 0.
  bool names_dense() const { return weighted() && num_dense > 0; }

  // Whether the ranges are apart and in order, and every target is there.
  bool is_sound() const {
    if (format == TextFormat::kLibffm && dense_fields.size() != num_dense) return false;
    if (format != TextFormat::kLibffm && !dense_fields.empty()) return false;
    if (format != TextFormat::kLibsvm && !index_ranges.empty()) return false;
    if (format == TextFormat::kLibsvm && index_ranges.empty() && num_dense > 0) return false;
    const uint64_t num_targets = uint64_t{columns.size()} + num_dense;
    for (size_t i = 0; i < index_ranges.size(); ++i) {
      const IndexRange& range = index_ranges[i];
      if (range.first > range.last || (i > 0 && range.first <= index_ranges[i - 1].last)) {
        return false;
      }
      if (range.target == kPassedOver) continue;
      if (range.target >= num_targets) return false;
      const bool is_dense = range.target >= columns.size();
      if (is_dense && range.last - range.first >= num_targets - range.target) return false;
    }
    return true;
  }
};

}  // namespace hps
