// LogBuffer: what was appended and is not written yet, in pieces of equal size.
//
// Above it: update_log. Below it: log_format, crc32c. A piece that was written is the first to be
// used again, so a log whose writer keeps up stays within few pieces, which a processor's cache
// holds; memory grows up to the limit only while the writer is behind. Every method needs its
// owner's lock; bytes are copied into a Room, and written from a Run, without it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "update_log/log_format.h"

namespace hps {

struct LogPart {
  const void* bytes = nullptr;
  uint64_t size = 0;
};

class LogBuffer {
 public:
  // Memory for one frame that is not in the log yet: the rest of the newest piece, then new ones.
  struct Room {
    LogPosition place;
    bool starts_file = false;
    char* tail = nullptr;
    uint64_t tail_bytes = 0;
    std::vector<std::unique_ptr<char[]>> pieces;
    uint64_t piece_bytes = 0;
  };
  // The oldest bytes that are not written.
  struct Run {
    LogPosition place;
    bool starts_file = false;
    const char* bytes = nullptr;
    uint64_t size = 0;
  };

  explicit LogBuffer(uint64_t bytes);

  // The largest frame for which there is room once all before it is written.
  uint64_t largest_frame() const { return (num_pieces_ - 1) * piece_bytes_; }
  bool HasRoom(uint64_t bytes, bool starts_file) const;
  // Room at `place`, where HasRoom was true; whole pieces if a file starts with the frame.
  Room Take(LogPosition place, uint64_t bytes, bool starts_file);
  // What was copied into the room is the newest frame.
  void Add(Room room, uint64_t bytes);
  // Takes the newest frame, which begins at `place`, out again; false if the writer has begun with
  // it, or if it starts a file.
  bool Remove(LogPosition place);

  // For the writer, one run at a time; there must be bytes that are not written.
  Run NextRun();
  void Finish(const Run& run);

 private:
  struct Piece {
    std::unique_ptr<char[]> memory;
    LogPosition place;  // of its first byte
    bool starts_file = false;
    uint64_t size = 0;
    uint64_t num_written = 0;
  };

  uint64_t TailBytes() const { return pieces_.empty() ? 0 : piece_bytes_ - pieces_.back().size; }
  std::unique_ptr<char[]> NewMemory();

  uint64_t piece_bytes_ = 0;
  uint64_t num_pieces_ = 0;
  uint64_t num_made_ = 0;
  std::vector<std::unique_ptr<char[]>> spare_;
  std::deque<Piece> pieces_;  // oldest first; only the newest may have room
  LogPosition taken_;         // all below is written, or in the writer's run
};

// Copies a frame of `parts` into its room, with its checksum, which starts from `seed`.
void CopyFrame(const LogBuffer::Room& room, uint64_t number, uint32_t seed,
               const std::vector<LogPart>& parts);
// The same of the frame that takes record `number` back.
void PutTakenBack(const LogBuffer::Room& room, uint64_t number, uint32_t seed);

}  // namespace hps
