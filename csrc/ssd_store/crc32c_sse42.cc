// CRC32C by the SSE4.2 instruction, three lanes at a time: it has a latency of three cycles and a
// throughput of one, so a single chain would leave two thirds of it idle.
//
// Above it: crc32c.cc, which calls it only where the processor has the instruction.
#include "ssd_store/crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>

#include <cstring>

namespace hps::crc32c {
namespace {

uint64_t LoadWord(const unsigned char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, 8);
  return word;
}

uint64_t FeedTail(uint64_t value, const unsigned char* data, size_t size) {
  for (; size >= 8; size -= 8, data += 8) value = _mm_crc32_u64(value, LoadWord(data));
  for (; size > 0; --size, ++data) value = _mm_crc32_u8(static_cast<uint32_t>(value), *data);
  return value;
}

// Three pieces side by side; place(i) is where piece i starts.
template <typename Place>
void Many(Place place, size_t size, size_t count, const uint32_t* seeds, uint32_t* checksums) {
  size_t i = 0;
  for (; i + 3 <= count; i += 3) {
    const unsigned char* data[3] = {place(i), place(i + 1), place(i + 2)};
    uint64_t first = static_cast<uint32_t>(~seeds[i]);
    uint64_t second = static_cast<uint32_t>(~seeds[i + 1]);
    uint64_t third = static_cast<uint32_t>(~seeds[i + 2]);
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
      first = _mm_crc32_u64(first, LoadWord(data[0] + at));
      second = _mm_crc32_u64(second, LoadWord(data[1] + at));
      third = _mm_crc32_u64(third, LoadWord(data[2] + at));
    }
    checksums[i] = ~static_cast<uint32_t>(FeedTail(first, data[0] + at, size - at));
    checksums[i + 1] = ~static_cast<uint32_t>(FeedTail(second, data[1] + at, size - at));
    checksums[i + 2] = ~static_cast<uint32_t>(FeedTail(third, data[2] + at, size - at));
  }
  for (; i < count; ++i) {
    checksums[i] =
        ~static_cast<uint32_t>(FeedTail(static_cast<uint32_t>(~seeds[i]), place(i), size));
  }
}

}  // namespace

bool HasHardware() { return __builtin_cpu_supports("sse4.2") != 0; }

uint32_t ExtendHardware(uint32_t seed, const void* bytes, size_t size) {
  const auto* data = static_cast<const unsigned char*>(bytes);
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

void ManyHardware(const void* bytes, size_t stride, size_t size, size_t count,
                  const uint32_t* seeds, uint32_t* checksums) {
  const auto* data = static_cast<const unsigned char*>(bytes);
  Many([=](size_t piece) { return data + piece * stride; }, size, count, seeds, checksums);
}

void ManyHardware(const char* const* pieces, size_t size, size_t count, const uint32_t* seeds,
                  uint32_t* checksums) {
  Many([=](size_t piece) { return reinterpret_cast<const unsigned char*>(pieces[piece]); }, size,
       count, seeds, checksums);
}

}  // namespace hps::crc32c
#endif
