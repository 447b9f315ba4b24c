// TableScan: see scan.h.
//
// Above it: scan.h. Below it: segment, file_cache.
#include "ssd_store/scan.h"

#include <algorithm>
#include <cstring>

namespace hps {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

}  // namespace

Status TableScan::ReadPiece() {
  const Segment& segment = *snapshot_.parts[part_].segment;
  const uint64_t num_records = snapshot_.parts[part_].live.size() * 64;
  // The bitmap's length is rounded up; the last live record bounds what may be read.
  uint64_t end =
      std::min(num_records, next_record_ + std::max<uint64_t>(1, kPieceBytes / segment.stride()));
  const auto is_live = [&](uint64_t record) {
    return (snapshot_.parts[part_].live[record / 64] >> (record % 64) & 1) != 0;
  };
  while (next_record_ < end && !is_live(next_record_)) ++next_record_;
  piece_first_ = next_record_;
  next_record_ = end;
  while (end > piece_first_ && !is_live(end - 1)) --end;
  piece_end_ = end;
  if (piece_end_ == piece_first_) return Status::Ok();
  std::shared_ptr<File> file;
  HPS_RETURN_IF_ERROR(cache_->Open(segment.info.number, segment.path, &file));
  piece_.resize((piece_end_ - piece_first_) * segment.stride());
  HPS_RETURN_IF_ERROR(file->Read(segment.info.RecordOffset(piece_first_, segment.row_bytes),
                                 piece_.size(), piece_.data()));
  return CheckRecords(segment, piece_first_, piece_end_ - piece_first_, piece_.data());
}

Status TableScan::Next(char* rows, uint64_t capacity, uint64_t* count, RecordPlace* places) {
  *count = 0;
  while (part_ < snapshot_.parts.size() && *count < capacity) {
    TableSnapshot::Part& part = snapshot_.parts[part_];
    const Segment& segment = *part.segment;
    if (piece_first_ == piece_end_) {
      if (next_record_ >= part.live.size() * 64) {
        part = TableSnapshot::Part();
        ++part_;
        next_record_ = 0;
      } else {
        HPS_RETURN_IF_ERROR(ReadPiece());
      }
      continue;
    }
    const char* record =
        piece_.data() + piece_.size() - (piece_end_ - piece_first_) * segment.stride();
    if ((part.live[piece_first_ / 64] >> (piece_first_ % 64) & 1) != 0) {
      std::memcpy(rows + *count * segment.row_bytes, record, segment.row_bytes);
      if (places != nullptr) places[*count] = {segment.info.number, piece_first_};
      ++*count;
    }
    ++piece_first_;
  }
  return Status::Ok();
}

}  // namespace hps
