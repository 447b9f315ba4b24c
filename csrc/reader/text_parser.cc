// The queue of parsed blocks. Above it: csrc/bindings/reader.cc. Below it: the line parsers,
// AssembleBatch, ThreadPool.
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

}  // namespace

TextParser::TextParser(TextSchema schema, int num_threads)
    : schema_(std::move(schema)), features_(schema_.columns) {
  HPS_CHECK(num_threads >= 1);
  HPS_CHECK(!schema_.weighted() || schema_.num_dense == 0);
  if (num_threads > 1) pool_ = std::make_unique<ThreadPool>(num_threads);
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

size_t TextParser::Feed(const char* data, size_t size, bool at_end) {
  HPS_CHECK(size < (uint64_t{1} << 32));
  if (error_ != nullptr) return 0;
  if (!at_end) {
    const void* newline = size == 0 ? nullptr : memrchr(data, '\n', size);
    size = newline == nullptr ? 0 : static_cast<const char*>(newline) - data + 1;
  }
  const std::vector<size_t> ends = CutBlocks(data, size);
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
  const auto work = [&](int) {
    for (size_t i = next.fetch_add(1); i < ends.size(); i = next.fetch_add(1)) {
      const size_t begin = i == 0 ? 0 : ends[i - 1];
      Parse(data + begin, ends[i] - begin, blocks[i].get());
    }
  };
  if (pool_ != nullptr && ends.size() > 1) {
    pool_->Run(work);
  } else {
    work(0);
  }
  for (BlockPtr& block : blocks) Queue(std::move(block));
  return size;
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

TextBatch TextParser::Take(size_t count) {
  HPS_CHECK(count >= 1 && count <= num_ready_);
  std::vector<BlockSlice> slices;
  size_t left = count;
  size_t first = num_taken_;
  for (size_t i = 0; left > 0; ++i, first = 0) {
    const size_t taken = std::min(left, ready_[i]->num_examples - first);
    slices.push_back({ready_[i].get(), first, taken});
    left -= taken;
  }
  TextBatch batch;
  AssembleBatch(schema_, slices, pool_.get(), &batch);
  const BlockSlice& last = slices.back();
  const size_t example = last.first + last.count - 1;
  batch.file = last.block->file;
  batch.byte = last.block->first_byte + last.block->byte_ends[example];
  batch.line = last.block->first_line + last.block->line_ends[example];
  batch.num_bad = last.block->first_bad + last.block->bad_ends[example];
  num_ready_ -= count;
  num_taken_ = example + 1;
  const bool whole = num_taken_ == last.block->num_examples;
  for (size_t done = slices.size() - (whole ? 0 : 1); done > 0; --done) {
    free_.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  if (whole) num_taken_ = 0;
  return batch;
}

}  // namespace hps
