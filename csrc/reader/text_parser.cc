// The queue of parsed blocks. Above it: csrc/bindings/reader.cc. Below it: the line parsers,
// KeepLines, AssembleBatch, ThreadPool.
#include "reader/text_parser.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "reader/criteo_parser.h"
#include "reader/token_parser.h"

namespace hps {
namespace {

// A block's text, index and keys stay in a core's L2 cache.
constexpr size_t kBlockBytes = 128 * 1024;

// The ends of blocks within the whole lines of `data`.
std::vector<size_t> CutBlocks(const char* data, size_t size) {
  std::vector<size_t> ends;
  for (size_t begin = 0; begin < size;) {
    const size_t least = std::min(begin + kBlockBytes, size);
    const void* newline =
        least == size ? nullptr : std::memchr(data + least - 1, '\n', size - least + 1);
    begin = newline == nullptr ? size : static_cast<const char*>(newline) - data + 1;
    ends.push_back(begin);
  }
  return ends;
}

// Turns the places of a block that was parsed from kept lines, the first of which has number
// `first`, into those of the piece that the lines are of: from the end of the line before on.
// Returns the number of the line after the block's last.
size_t RestorePlaces(const KeptLines& kept, size_t first, ExampleBlock* block) {
  const uint32_t first_byte = first == 0 ? 0 : kept.ends[first - 1].byte;
  const uint32_t first_line = first == 0 ? 0 : kept.ends[first - 1].line;
  for (size_t i = 0; i < block->num_examples; ++i) {
    const size_t line = first + block->line_ends[i] - 1;
    block->byte_ends[i] = kept.ends[line].byte - first_byte;
    block->line_ends[i] = kept.ends[line].line - first_line;
  }
  if (block->error_line != 0) {
    block->error_line = kept.ends[first + block->error_line - 1].line - first_line;
  }
  const size_t end = first + block->num_lines;
  if (end > first) {
    block->num_bytes = kept.ends[end - 1].byte - first_byte;
    block->num_lines = kept.ends[end - 1].line - first_line;
  }
  return end;
}

// What a token's name can be of: the columns, then the dense fields.
std::vector<TextColumn> NamesOf(const TextSchema& schema) {
  std::vector<TextColumn> names = schema.columns;
  names.insert(names.end(), schema.dense_fields.begin(), schema.dense_fields.end());
  return names;
}

}  // namespace

TextParser::TextParser(TextSchema schema, int num_threads)
    : TextParser(std::move(schema), std::make_shared<ThreadPool>(num_threads)) {}

TextParser::TextParser(TextSchema schema, std::shared_ptr<ThreadPool> pool)
    : schema_(std::move(schema)), features_(NamesOf(schema_)), pool_(std::move(pool)) {
  HPS_CHECK(schema_.is_sound());
  kept_.resize(static_cast<size_t>(pool_->num_threads()));
}

void TextParser::StartFile(int64_t file, uint64_t byte, uint64_t line) {
  file_ = file;
  next_byte_ = byte;
  next_line_ = line;
}

void TextParser::Parse(const char* data, size_t size, ExampleBlock* block) const {
  if (schema_.format == TextFormat::kCriteo) {
    ParseCriteo(schema_, data, size, block);
  } else {
    ParseTokens(schema_, features_, data, size, block);
  }
}

void TextParser::ParseKept(const char* data, size_t size, KeptLines* kept,
                           ExampleBlock* block) const {
  KeepLines(schema_.format, schema_.sample, data, size, kept);
  Parse(kept->text.data(), kept->text.size(), block);
  RestorePlaces(*kept, 0, block);
  block->num_bytes = size;  // also what comes after the last line that is kept
  block->num_lines = kept->num_lines;
}

std::vector<TextParser::BlockPtr> TextParser::ParseBlocks(const char* data,
                                                          const std::vector<size_t>& ends) {
  std::vector<BlockPtr> blocks(ends.size());
  for (BlockPtr& block : blocks) {
    if (free_.empty()) {
      block = std::make_unique<ExampleBlock>();
    } else {
      block = std::move(free_.back());
      free_.pop_back();
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&](int worker) {
    for (size_t i = next.fetch_add(1); i < ends.size(); i = next.fetch_add(1)) {
      const size_t begin = i == 0 ? 0 : ends[i - 1];
      if (schema_.sample.keeps_all()) {
        Parse(data + begin, ends[i] - begin, blocks[i].get());
      } else {
        ParseKept(data + begin, ends[i] - begin, &kept_[worker], blocks[i].get());
      }
    }
  };
  if (ends.size() > 1) {
    pool_->Run(work);
  } else {
    work(0);
  }
  return blocks;
}

size_t TextParser::Feed(const char* data, size_t size, bool at_end) {
  HPS_CHECK(size < (uint64_t{1} << 32));
  if (error_ != nullptr) return 0;
  if (!at_end) {
    const void* newline = size == 0 ? nullptr : memrchr(data, '\n', size);
    size = newline == nullptr ? 0 : static_cast<const char*>(newline) - data + 1;
  }
  for (BlockPtr& block : ParseBlocks(data, CutBlocks(data, size))) Queue(std::move(block));
  return size;
}

void TextParser::FeedKept(const KeptLines& kept, size_t from, size_t to) {
  HPS_CHECK(from <= to && to <= kept.size() && schema_.sample.keeps_all());
  if (error_ != nullptr || from == to) return;
  const size_t begin = from == 0 ? 0 : kept.ends[from - 1].text_byte;
  const char* data = kept.text.data() + begin;
  next_byte_ += from == 0 ? 0 : kept.ends[from - 1].byte;
  next_line_ += from == 0 ? 0 : kept.ends[from - 1].line;
  size_t line = from;
  for (BlockPtr& block : ParseBlocks(data, CutBlocks(data, kept.ends[to - 1].text_byte - begin))) {
    if (error_ == nullptr) line = RestorePlaces(kept, line, block.get());
    Queue(std::move(block));
  }
}

void TextParser::Queue(BlockPtr block) {
  if (error_ != nullptr) {
    free_.push_back(std::move(block));
    return;
  }
  block->file = file_;
  block->first_byte = next_byte_;
  block->first_line = next_line_;
  block->first_bad = num_bad_;
  next_byte_ += block->num_bytes;
  next_line_ += block->num_lines;
  num_bad_ += block->num_bad;
  num_ready_ += block->num_examples;
  if (block->error_line != 0) {
    error_ = std::make_unique<TextError>(
        TextError{file_, block->first_line + block->error_line, std::move(block->error)});
  }
  if (block->num_examples == 0) {
    free_.push_back(std::move(block));
  } else {
    ready_.push_back(std::move(block));
  }
}

TextBatch TextParser::Take(size_t count, size_t first, size_t last) {
  HPS_CHECK(count <= num_ready_ && first <= last && last <= count);
  TextBatch batch;
  std::vector<BlockSlice> slices;
  size_t num_done = 0;  // blocks of which all examples are taken
  for (size_t passed = 0; passed < count;) {
    const ExampleBlock& block = *ready_[num_done];
    const size_t taken = std::min(count - passed, block.num_examples - num_taken_);
    const size_t from = std::clamp(first, passed, passed + taken) - passed;
    const size_t to = std::clamp(last, passed, passed + taken) - passed;
    if (from < to) slices.push_back({&block, num_taken_ + from, to - from});
    passed += taken;
    num_taken_ += taken;
    batch.file = block.file;
    batch.byte = block.first_byte + block.byte_ends[num_taken_ - 1];
    batch.line = block.first_line + block.line_ends[num_taken_ - 1];
    batch.num_bad = block.first_bad + block.bad_ends[num_taken_ - 1];
    if (num_taken_ == block.num_examples) {
      ++num_done;
      num_taken_ = 0;
    }
  }
  AssembleBatch(schema_, slices, pool_.get(), &batch);
  num_ready_ -= count;
  for (; num_done > 0; --num_done) {
    free_.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  return batch;
}

}  // namespace hps
