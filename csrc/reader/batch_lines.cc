// Lines counted before they are parsed. Above it: csrc/bindings/reader.cc. Below it: KeepLines,
// TextParser.
#include "reader/batch_lines.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace hps {
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
  KeepLines(format_, sample_, data, size, &piece->kept);
  next_.byte += size;
  next_.line += piece->kept.num_lines;
  num_ready_ += piece->kept.size();
  if (piece->kept.size() == 0) {
    free_.push_back(std::move(piece));
  } else {
    ready_.push_back(std::move(piece));
  }
  return size;
}

LogPlace BatchLines::Take(size_t count, size_t first, size_t last, TextParser* parser) {
  HPS_CHECK(count >= 1 && count <= num_ready_ && first <= last && last <= count);
  HPS_CHECK(parser->num_ready() == 0 && !parser->schema().skip_bad_lines);
  HPS_CHECK(parser->schema().sample.keeps_all());
  LogPlace place;
  for (size_t passed = 0; passed < count;) {
    const Piece& piece = *ready_.front();
    const size_t taken = std::min(count - passed, piece.kept.size() - num_taken_);
    const size_t from = std::clamp(first, passed, passed + taken) - passed;
    const size_t to = std::clamp(last, passed, passed + taken) - passed;
    parser->StartFile(piece.start.file, piece.start.byte, piece.start.line);
    parser->FeedKept(piece.kept, num_taken_ + from, num_taken_ + to);
    passed += taken;
    num_taken_ += taken;
    place = piece.start;
    place.byte += piece.kept.ends[num_taken_ - 1].byte;
    place.line += piece.kept.ends[num_taken_ - 1].line;
    if (num_taken_ == piece.kept.size()) {
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
