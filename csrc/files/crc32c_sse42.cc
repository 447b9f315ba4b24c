// CRC32C by the SSE4.2 instruction, three lanes at a time: it has a latency of three cycles and a
// throughput of one, so a single chain would leave two thirds of it idle.
//
// Above it: crc32c.cc, which calls it only where the processor has the instruction.
#include "files/crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>

#include <cstring>

namespace hps::crc32c {
namespace {

uint64_t LoadWord(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, 8);
  return word;
}

uint64_t FeedTail(uint64_t value, const char* data, size_t size) {
  for (; size >= 8; size -= 8, data += 8) value = _mm_crc32_u64(value, LoadWord(data));
  for (; size > 0; --size, ++data) {
    value = _mm_crc32_u8(static_cast<uint32_t>(value), static_cast<unsigned char>(*data));
  }
  return value;
}

uint32_t Extend(uint32_t seed, const void* bytes, size_t size) {
  const auto* data = static_cast<const char*>(bytes);
  uint64_t value = static_cast<uint32_t>(~seed);
  for (; size >= 3 * kLaneBytes; size -= 3 * kLaneBytes, data += 3 * kLaneBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      value = _mm_crc32_u64(value, LoadWord(data + i));
      second = _mm_crc32_u64(second, LoadWord(data + kLaneBytes + i));
      third = _mm_crc32_u64(third, LoadWord(data + 2 * kLaneBytes + i));
    }
    value = ShiftLane(static_cast<uint32_t>(value)) ^ second;
    value = ShiftLane(static_cast<uint32_t>(value)) ^ third;
  }
  return ~static_cast<uint32_t>(FeedTail(value, data, size));
}

// Pieces first .. first + 2, side by side.
void Three(const Crc32cPieces& batch, size_t first, uint32_t* checksums) {
  uint64_t value[3];
  const char* data[3];
  for (size_t lane = 0; lane < 3; ++lane) {
    value[lane] = static_cast<uint32_t>(~batch.seeds[first + lane]);
    data[lane] = batch.pieces[first + lane];
  }
  size_t at = 0;
  for (; at + 8 <= batch.size; at += 8) {
    for (size_t lane = 0; lane < 3; ++lane) {
      value[lane] = _mm_crc32_u64(value[lane], LoadWord(data[lane] + at));
    }
  }
  for (size_t lane = 0; lane < 3; ++lane) {
    const uint64_t fed = FeedTail(value[lane], data[lane] + at, batch.size - at);
    checksums[first + lane] = ~static_cast<uint32_t>(fed);
  }
}

void Many(const Crc32cPieces& batch, uint32_t* checksums) {
  const auto copy = [&batch](size_t piece) {
    if (batch.copies != nullptr) std::memcpy(batch.copies[piece], batch.pieces[piece], batch.size);
  };
  size_t i = 0;
  for (; i + 3 <= batch.count; i += 3) {
    Three(batch, i, checksums);
    for (size_t lane = 0; lane < 3; ++lane) copy(i + lane);
  }
  for (; i < batch.count; ++i) {
    checksums[i] = Extend(batch.seeds[i], batch.pieces[i], batch.size);
    copy(i);
  }
}

}  // namespace

const Form kSse42 = {"sse4.2", Extend, Many};

}  // namespace hps::crc32c
#endif
