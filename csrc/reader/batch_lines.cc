// Lines counted before they are parsed. Above it: csrc/bindings/reader.cc. Below it: TextParser.
#include "reader/batch_lines.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "reader/scan_text.h"

namespace hps {
namespace {

// True for a line that the parsers pass over; `line` is without its newline.
inline bool IsPassedOver(TextFormat format, std::string_view line) {
  if (!line.empty() && static_cast<unsigned char>(line.front()) > ' ') return false;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return format == TextFormat::kCriteo ? line.empty() : IsBlank(line);
}

}  // namespace

size_t BatchLines::Feed(const char* data, size_t size, bool at_end) {
  HPS_CHECK(size < (uint64_t{1} << 32));
  if (!at_end) {
    const void* newline = size == 0 ? nullptr : memrchr(data, '\n', size);
    size = newline == nullptr ? 0 : static_cast<const char*>(newline) - data + 1;
  }
  if (size == 0) return 0;
  std::unique_ptr<Piece> piece;
  if (free_.empty()) {
    piece = std::make_unique<Piece>();
  } else {
    piece = std::move(free_.back());
    free_.pop_back();
  }
  piece->start = next_;
  piece->text.assign(data, data + size);
  piece->byte_ends.clear();
  piece->line_ends.clear();
  uint32_t num_lines = 0;
  for (size_t begin = 0; begin < size;) {
    const void* newline = std::memchr(data + begin, '\n', size - begin);
    const size_t end = newline == nullptr ? size : static_cast<const char*>(newline) - data;
    const size_t next = newline == nullptr ? size : end + 1;
    ++num_lines;
    if (!IsPassedOver(format_, std::string_view(data + begin, end - begin))) {
      piece->byte_ends.push_back(static_cast<uint32_t>(next));
      piece->line_ends.push_back(num_lines);
    }
    begin = next;
  }
  next_.byte += size;
  next_.line += num_lines;
  num_ready_ += piece->byte_ends.size();
  if (piece->byte_ends.empty()) {
    free_.push_back(std::move(piece));
  } else {
    ready_.push_back(std::move(piece));
  }
  return size;
}

void BatchLines::Parse(const Piece& piece, size_t from, size_t to, TextParser* parser) {
  if (from == to) return;
  const size_t byte = from == 0 ? 0 : piece.byte_ends[from - 1];
  const size_t line = from == 0 ? 0 : piece.line_ends[from - 1];
  parser->StartFile(piece.start.file, piece.start.byte + byte, piece.start.line + line);
  parser->Feed(piece.text.data() + byte, piece.byte_ends[to - 1] - byte, /*at_end=*/true);
}

LogPlace BatchLines::Take(size_t count, size_t first, size_t last, TextParser* parser) {
  HPS_CHECK(count >= 1 && count <= num_ready_ && first <= last && last <= count);
  HPS_CHECK(parser->num_ready() == 0 && !parser->schema().skip_bad_lines);
  LogPlace place;
  for (size_t passed = 0; passed < count;) {
    const Piece& piece = *ready_.front();
    const size_t taken = std::min(count - passed, piece.byte_ends.size() - num_taken_);
    const size_t from = std::clamp(first, passed, passed + taken) - passed;
    const size_t to = std::clamp(last, passed, passed + taken) - passed;
    Parse(piece, num_taken_ + from, num_taken_ + to, parser);
    passed += taken;
    num_taken_ += taken;
    place = piece.start;
    place.byte += piece.byte_ends[num_taken_ - 1];
    place.line += piece.line_ends[num_taken_ - 1];
    if (num_taken_ == piece.byte_ends.size()) {
      free_.push_back(std::move(ready_.front()));
      ready_.pop_front();
      num_taken_ = 0;
    }
  }
  num_ready_ -= count;
  HPS_CHECK(parser->error() != nullptr || parser->num_ready() == last - first);
  return place;
}

}  // namespace hps
