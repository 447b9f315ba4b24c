// The checksums of records: CRC32C from a seed that is the record's place.
//
// Above it: segment.h. Below it: format, crc32c. By itself in a file, so that a benchmark can put
// another in its place.
#include <algorithm>

#include "ssd_store/segment.h"

namespace hps {

void RecordChecksums(const Segment& segment, const uint64_t* numbers, const char* const* rows,
                     char* const* copies, uint64_t count, uint32_t* checksums) {
  constexpr uint64_t kSeedsAtOnce = 128;
  const uint64_t segment_seed = SegmentSeed(segment.info.number);
  uint32_t seeds[kSeedsAtOnce];
  for (uint64_t first = 0; first < count; first += kSeedsAtOnce) {
    const uint64_t size = std::min(kSeedsAtOnce, count - first);
    for (uint64_t i = 0; i < size; ++i) seeds[i] = RecordSeed(segment_seed, numbers[first + i]);
    Crc32cMany({.pieces = rows + first,
                .copies = copies == nullptr ? nullptr : copies + first,
                .seeds = seeds,
                .size = segment.row_bytes,
                .count = size},
               checksums + first);
  }
}

}  // namespace hps
