// Pieces taken, filled and given back; the copy that computes a checksum on its way.
//
// Above it: log_buffer.h. Below it: crc32c.
#include "update_log/log_buffer.h"

#include <algorithm>
#include <cstddef>

#include "common/check.h"
#include "files/crc32c.h"

namespace hps {
namespace {

constexpr uint64_t kLargestPiece = uint64_t{1} << 20;  // half of what a core's cache has
constexpr uint64_t kSmallestPiece = 4096;
constexpr uint64_t kFewestPieces = 8;
// Copied and checked at a time: it stays in the nearest cache. Two rounds of the checksum's lanes.
constexpr uint64_t kStepBytes = 6 * crc32c::kLaneBytes;

// A header may lie across two pieces, but not each half of it.
struct HeaderPlace {
  char* first = nullptr;
  char* second = nullptr;
  void Put(const FrameHeader& header) const {
    static_assert(offsetof(FrameHeader, number) == kFrameAlignment);
    std::memcpy(first, &header, kFrameAlignment);
    std::memcpy(second, &header.number, kFrameAlignment);
  }
};

// Where the next bytes of a frame go.
class RoomCursor {
 public:
  explicit RoomCursor(const LogBuffer::Room& room)
      : room_(room), to_(room.tail), left_(room.tail_bytes) {}

  HeaderPlace SkipHeader() {
    char* const first = SkipHalf();
    return {first, SkipHalf()};
  }
  uint32_t Copy(const void* bytes, uint64_t size, uint32_t checksum) {
    const char* from = static_cast<const char*>(bytes);
    while (size > 0) {
      MoveOn();
      const uint64_t count = std::min({size, left_, kStepBytes});
      checksum = Crc32c(checksum, from, count);
      std::memcpy(to_, from, count);
      from += count;
      to_ += count;
      left_ -= count;
      size -= count;
    }
    return checksum;
  }

 private:
  char* SkipHalf() {
    MoveOn();
    char* const half = to_;
    to_ += kFrameAlignment;
    left_ -= kFrameAlignment;
    return half;
  }
  void MoveOn() {
    if (left_ > 0) return;
    to_ = room_.pieces[next_++].get();
    left_ = room_.piece_bytes;
  }

  const LogBuffer::Room& room_;
  char* to_;
  uint64_t left_;
  size_t next_ = 0;
};

}  // namespace

LogBuffer::LogBuffer(uint64_t bytes)
    : piece_bytes_(std::clamp(bytes / kFewestPieces / kSmallestPiece * kSmallestPiece,
                              kSmallestPiece, kLargestPiece)),
      num_pieces_(std::max<uint64_t>(bytes / piece_bytes_, 2)) {}

bool LogBuffer::HasRoom(uint64_t bytes, bool starts_file) const {
  const uint64_t tail = starts_file ? 0 : std::min(TailBytes(), bytes);
  const uint64_t needed = (bytes - tail + piece_bytes_ - 1) / piece_bytes_;
  return needed <= spare_.size() + (num_pieces_ - num_made_);
}

LogBuffer::Room LogBuffer::Take(LogPosition place, uint64_t bytes, bool starts_file) {
  HPS_CHECK(HasRoom(bytes, starts_file));
  Room room;
  room.place = place;
  room.starts_file = starts_file;
  room.piece_bytes = piece_bytes_;
  if (!starts_file && TailBytes() > 0) {
    room.tail = pieces_.back().memory.get() + pieces_.back().size;
    room.tail_bytes = std::min(TailBytes(), bytes);
  }
  for (uint64_t got = room.tail_bytes; got < bytes; got += piece_bytes_) {
    room.pieces.push_back(NewMemory());
  }
  return room;
}

std::unique_ptr<char[]> LogBuffer::NewMemory() {
  if (spare_.empty()) {
    ++num_made_;
    return std::unique_ptr<char[]>(new char[piece_bytes_]);
  }
  std::unique_ptr<char[]> memory = std::move(spare_.back());
  spare_.pop_back();
  return memory;
}

void LogBuffer::Add(Room room, uint64_t bytes) {
  if (room.tail_bytes > 0) pieces_.back().size += room.tail_bytes;
  uint64_t done = room.tail_bytes;
  for (std::unique_ptr<char[]>& memory : room.pieces) {
    const uint64_t size = std::min(piece_bytes_, bytes - done);
    const LogPosition place{room.place.first, room.place.offset + done};
    pieces_.push_back({std::move(memory), place, room.starts_file && done == 0, size, 0});
    done += size;
  }
}

bool LogBuffer::Remove(LogPosition place) {
  if (place < taken_) return false;
  size_t count = pieces_.size();
  while (count > 0 && place < pieces_[count - 1].place) --count;
  HPS_CHECK(count > 0);
  if (pieces_[count - 1].starts_file && pieces_[count - 1].place == place) return false;
  for (; pieces_.size() > count; pieces_.pop_back()) {
    spare_.push_back(std::move(pieces_.back().memory));
  }
  pieces_.back().size = place.offset - pieces_.back().place.offset;
  return true;
}

LogBuffer::Run LogBuffer::NextRun() {
  // The oldest may be written whole and wait for more, with a newer file's piece behind it.
  while (pieces_.size() > 1 && pieces_.front().num_written == pieces_.front().size) {
    spare_.push_back(std::move(pieces_.front().memory));
    pieces_.pop_front();
  }
  const Piece& piece = pieces_.front();
  HPS_CHECK(piece.num_written < piece.size);
  Run run;
  run.place = {piece.place.first, piece.place.offset + piece.num_written};
  run.starts_file = piece.starts_file && piece.num_written == 0;
  run.bytes = piece.memory.get() + piece.num_written;
  run.size = piece.size - piece.num_written;
  taken_ = {run.place.first, run.place.offset + run.size};
  return run;
}

void LogBuffer::Finish(const Run& run) {
  Piece& piece = pieces_.front();
  piece.num_written += run.size;
  if (piece.num_written < piece_bytes_) return;  // it may be filled further
  spare_.push_back(std::move(piece.memory));
  pieces_.pop_front();
}

void CopyFrame(const LogBuffer::Room& room, uint64_t number, uint32_t seed,
               const std::vector<LogPart>& parts) {
  FrameHeader header;
  header.number = number;
  for (const LogPart& part : parts) header.length += static_cast<uint32_t>(part.size);
  header.checksum = FrameHeaderChecksum(seed, header.length, number);
  RoomCursor cursor(room);
  HeaderPlace place = cursor.SkipHeader();
  for (const LogPart& part : parts) {
    header.checksum = cursor.Copy(part.bytes, part.size, header.checksum);
  }
  constexpr char kZeros[kFrameAlignment] = {};
  const uint64_t padding = FrameBytes(header.length) - kFrameHeaderBytes - header.length;
  header.checksum = cursor.Copy(kZeros, padding, header.checksum);
  place.Put(header);
}

void PutTakenBack(const LogBuffer::Room& room, uint64_t number, uint32_t seed) {
  const FrameHeader header{kTakenBack, FrameHeaderChecksum(seed, kTakenBack, number), number};
  RoomCursor(room).SkipHeader().Put(header);
}

}  // namespace hps
