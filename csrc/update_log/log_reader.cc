// Reading frames through a window that moves over the file. A frame that is cut short or has a
// wrong checksum ends the reading here; whether it is torn or damaged is for log_scan.cc to tell.
//
// Above it: log_reader.h. Below it: log_format, files/file_system and crc32c.
#include "update_log/log_reader.h"

#include <algorithm>

#include "files/crc32c.h"

namespace hps {
namespace {

constexpr uint64_t kWindowBytes = uint64_t{1} << 20;

FrameHeader HeaderAt(const char* bytes) {
  FrameHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  return header;
}

}  // namespace

Status LogReader::Open(FileSystem* files, const std::string& path, uint64_t first,
                       bool* has_header) {
  HPS_RETURN_IF_ERROR(files->Open(path, OpenMode::kRead, &file_));
  HPS_RETURN_IF_ERROR(file_->Size(&size_));
  loaded_from_ = loaded_to_ = 0;
  const uint64_t header_bytes = std::min(size_, kLogFileHeaderBytes);
  HPS_RETURN_IF_ERROR(Load(0, header_bytes));
  const uint32_t newer = NewerLogVersion({Bytes(0), header_bytes});
  if (newer != 0) return NewerVersion(path, newer, kLogVersion, kLogVersion);
  *has_header = DecodeLogFileHeader({Bytes(0), header_bytes}, &header_) && header_.first == first;
  seed_ = LogFileSeed(header_.identity, first);
  offset_ = last_record_ = kLogFileHeaderBytes;
  next_number_ = first;
  return Status::Ok();
}

Status LogReader::Next(bool* is_found) {
  while (true) {
    FrameHeader header;
    HPS_RETURN_IF_ERROR(ReadFrame(&header, is_found));
    if (!*is_found) return Status::Ok();
    const uint64_t end = offset_ + FrameBytes(header.length);
    if (!IsTakenBack(end, header.number)) {
      number_ = next_number_++;
      payload_ = {Bytes(offset_) + kFrameHeaderBytes, header.length};
      frame_ = last_record_ = offset_;
      offset_ = end;
      return Status::Ok();
    }
    offset_ = last_record_ = end + kFrameHeaderBytes;
  }
}

Status LogReader::ReadFrame(FrameHeader* header, bool* is_whole) {
  *is_whole = false;
  torn_bytes_ = 0;
  if (size_ < offset_ + kFrameHeaderBytes) return Status::Ok();
  HPS_RETURN_IF_ERROR(Load(offset_, kFrameHeaderBytes));
  *header = HeaderAt(Bytes(offset_));
  if (header->number != next_number_ || header->length == kTakenBack) return Status::Ok();
  const uint64_t bytes = FrameBytes(header->length);
  torn_bytes_ = std::min(bytes, size_ - offset_);
  if (bytes > size_ - offset_) return Status::Ok();
  // With the frame that follows, which may take this one back.
  HPS_RETURN_IF_ERROR(Load(offset_, std::min(bytes + kFrameHeaderBytes, size_ - offset_)));
  const uint32_t checksum =
      FrameHeaderChecksum(FrameSeed(seed_, offset_), header->length, header->number);
  *is_whole = Crc32c(checksum, Bytes(offset_) + kFrameHeaderBytes, bytes - kFrameHeaderBytes) ==
              header->checksum;
  return Status::Ok();
}

bool LogReader::IsTakenBack(uint64_t place, uint64_t number) const {
  if (size_ < place + kFrameHeaderBytes) return false;
  const FrameHeader header = HeaderAt(Bytes(place));
  return header.length == kTakenBack && header.number == number &&
         header.checksum == FrameHeaderChecksum(FrameSeed(seed_, place), kTakenBack, number);
}

Status LogReader::Load(uint64_t offset, uint64_t size) {
  if (loaded_from_ <= offset && offset + size <= loaded_to_) return Status::Ok();
  const uint64_t wanted = std::min(std::max(size, kWindowBytes), size_ - offset);
  const bool overlaps = loaded_from_ <= offset && offset < loaded_to_;
  const uint64_t kept = overlaps ? loaded_to_ - offset : 0;
  if (wanted > capacity_) {
    std::unique_ptr<char[]> larger(new char[wanted]);
    if (kept > 0) std::memcpy(larger.get(), Bytes(offset), kept);
    memory_ = std::move(larger);
    capacity_ = wanted;
  } else if (kept > 0) {
    std::memmove(memory_.get(), Bytes(offset), kept);
  }
  loaded_from_ = offset;
  loaded_to_ = offset;  // nothing counts as loaded if the read fails
  HPS_RETURN_IF_ERROR(file_->Read(offset + kept, wanted - kept, memory_.get() + kept));
  loaded_to_ = offset + wanted;
  return Status::Ok();
}

}  // namespace hps
