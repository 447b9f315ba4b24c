// BatchLines: the lines of a batch, not parsed yet, so that only those of one part of it need be.
//
// Where several ranks read one log, each parses the lines of its own part of every batch; of the
// others' it finds the ends and no more. Every line that is not blank counts as an example, so a
// bad one must end the run: where bad lines are skipped, all must be parsed to be counted. Lines
// that a sample leaves out are neither counted nor held. Above it: csrc/bindings/reader.cc
// (hps/reader/part_parser.py). Below it: TextParser. One thread at a time may call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "reader/kept_lines.h"
#include "reader/text_parser.h"
#include "reader/text_schema.h"

namespace hps {

// A place between two lines of a log: the file, its bytes and its lines before the place.
struct LogPlace {
  int64_t file = 0;
  uint64_t byte = 0;
  uint64_t line = 0;
};

class BatchLines {
 public:
  explicit BatchLines(TextFormat format, SampleRule sample = {})
      : format_(format), sample_(sample) {}
  BatchLines(const BatchLines&) = delete;
  BatchLines& operator=(const BatchLines&) = delete;

  // What is fed next is file number `file` from byte `byte` on, where `line` lines come before it.
  void StartFile(int64_t file, uint64_t byte, uint64_t line) { next_ = {file, byte, line}; }

  // Copies the whole lines in `data`, and the last without a newline if `at_end`; returns the bytes
  // taken, 0 if no line ends in it. The rest must be fed again with what follows it. size < 2^32.
  size_t Feed(const char* data, size_t size, bool at_end);

  // Lines taken in, those that are blank or not kept left out, and not handed out yet.
  size_t num_ready() const { return num_ready_; }

  // Takes `count` lines, 1 <= count <= num_ready(), out of the queue and feeds lines [first, last)
  // of them to `parser`, which has no examples ready, skips no bad line and keeps all lines.
  // Returns the place after the last of the `count`. If one of the part's lines is bad,
  // parser->error() says so.
  LogPlace Take(size_t count, size_t first, size_t last, TextParser* parser);

 private:
  struct Piece {
    LogPlace start;
    KeptLines kept;  // of the text that was fed
  };

  const TextFormat format_;
  const SampleRule sample_;
  std::deque<std::unique_ptr<Piece>> ready_;
  std::vector<std::unique_ptr<Piece>> free_;  // keep their memory
  size_t num_taken_ = 0;                      // lines taken of ready_.front()
  size_t num_ready_ = 0;
  LogPlace next_;
};

}  // namespace hps
