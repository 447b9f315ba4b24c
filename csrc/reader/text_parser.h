// TextParser: text goes in at one end in pieces of any size, batches come out at the other.
//
// Fed text is cut at line ends into blocks of about 128 KiB, which threads parse side by side; the
// blocks queue in the order of the text, so the number of threads shows in nothing but the speed.
// Of a sample each thread first takes the lines that are kept out of a block, and parses these.
// Above it: csrc/bindings/reader.cc (hps/reader/text_reader.py reads the files). Below it: the line
// parsers, AssembleBatch, ThreadPool. One thread at a time may call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "reader/example_block.h"
#include "reader/feature_index.h"
#include "reader/kept_lines.h"
#include "reader/text_batch.h"
#include "reader/text_schema.h"

namespace hps {

// The bad line that stopped a parser: its file, its number from 1, and what is wrong with it.
struct TextError {
  int64_t file = 0;
  uint64_t line = 0;
  std::string reason;
};

class TextParser {
 public:
  TextParser(TextSchema schema, int num_threads);
  // On the threads of a pool that others use, too, at other times.
  TextParser(TextSchema schema, std::shared_ptr<ThreadPool> pool);

  const TextSchema& schema() const { return schema_; }

  // What is fed next is file number `file` from byte `byte` on, where `line` lines come before it.
  void StartFile(int64_t file, uint64_t byte, uint64_t line);

  // Parses the whole lines in `data`, and the last without a newline if `at_end`; returns the bytes
  // taken, 0 if no line ends in it. The rest must be fed again with what follows it. `data` is not
  // kept. After an error nothing is taken. size < 2^32.
  size_t Feed(const char* data, size_t size, bool at_end);

  // Parses lines [from, to) of those kept of a piece, which begins where the file was started; the
  // schema keeps all. The places of examples and of an error are those in the piece.
  void FeedKept(const KeptLines& kept, size_t from, size_t to);

  // Examples parsed and not yet taken; those before the error, if there is one.
  size_t num_ready() const { return num_ready_; }
  // Bad lines skipped in all that was fed.
  uint64_t num_bad() const { return num_bad_; }
  // nullptr, or the bad line that follows the ready examples.
  const TextError* error() const { return error_.get(); }

  // Takes `count` <= num_ready() examples out of the queue. Of these the batch holds [first, last)
  // alone; its place is the one after all of them, unset if count is 0.
  TextBatch Take(size_t count, size_t first, size_t last);

 private:
  using BlockPtr = std::unique_ptr<ExampleBlock>;

  // Parses [ends[i - 1], ends[i]) of `data` for every i, which the threads share.
  std::vector<BlockPtr> ParseBlocks(const char* data, const std::vector<size_t>& ends);
  void Parse(const char* data, size_t size, ExampleBlock* block) const;
  // The same for lines that are kept alone; `kept` is scratch.
  void ParseKept(const char* data, size_t size, KeptLines* kept, ExampleBlock* block) const;
  void Queue(BlockPtr block);

  const TextSchema schema_;
  const FeatureIndex features_;
  const std::shared_ptr<ThreadPool> pool_;
  std::deque<BlockPtr> ready_;
  std::vector<BlockPtr> free_;
  std::vector<KeptLines> kept_;  // scratch of each thread, if lines are left out
  size_t num_taken_ = 0;         // examples taken of ready_.front()
  size_t num_ready_ = 0;
  uint64_t num_bad_ = 0;
  int64_t file_ = 0;
  uint64_t next_byte_ = 0;
  uint64_t next_line_ = 0;
  std::unique_ptr<TextError> error_;
};

}  // namespace hps
