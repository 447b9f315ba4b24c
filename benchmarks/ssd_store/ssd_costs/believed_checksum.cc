// What is in the place of records' checksums in one library of this benchmark: none is
// computed, and the one that is stored is believed. hps has no such thing.
//
// Above it: row_store.cc without checksums (checksum_cost.py). It takes the place of
// record_checksum.cc, which the linker leaves out, since all that is asked of it is here. Four
// bytes behind each row are read, which are its checksum on disk, and part of nothing in an append.
#include <cstring>

#include "ssd_store/segment.h"

namespace hps {

void RecordChecksums(const Segment& segment, const uint64_t*, const char* const* rows,
                     char* const* copies, uint64_t count, uint32_t* checksums) {
  for (uint64_t i = 0; i < count; ++i) {
    if (copies != nullptr) std::memcpy(copies[i], rows[i], segment.row_bytes);
    std::memcpy(&checksums[i], rows[i] + segment.row_bytes, sizeof(checksums[i]));
  }
}

}  // namespace hps
