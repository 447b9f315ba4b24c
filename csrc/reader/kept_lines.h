// KeptLines: the lines of a piece of text that are examples of a sample, one after the other, and
// where each of them was.
//
// Whether a line is kept is told before it is parsed, by its label and a hash of its bytes, so that
// one that is not costs little, and is never found bad. Above it: TextParser, BatchLines. Below it:
// SampleRule, scan_text, common/hash.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reader/sample_rule.h"
#include "reader/text_schema.h"

namespace hps {

// Where a line that is kept ends, as bytes and lines up to and including it.
struct LineEnd {
  uint32_t text_byte;  // of the kept lines
  uint32_t byte;       // of the piece
  uint32_t line;       // of the piece, blank lines and those left out too
};

// Reused, so that the vectors keep their memory.
struct KeptLines {
  std::vector<char> text;  // the lines with their ends
  std::vector<LineEnd> ends;
  uint32_t num_lines = 0;  // of the piece

  size_t size() const { return ends.size(); }
};

// Fills `kept` with the lines of `data` (the last may lack its newline) that are not blank and that
// the rule keeps. A line whose label cannot be read counts as one that is no negative. size < 2^32.
// Thread-safe.
void KeepLines(TextFormat format, const SampleRule& rule, const char* data, size_t size,
               KeptLines* kept);

}  // namespace hps
