// What a table takes on disk: constants of the bound on space, and a row's part of it.
//
// Above it: table_store, compactor, and the bindings, which tell hps.plan. Below it: format.h.
#pragma once

#include "ssd_store/format.h"

namespace hps {

// Full segments that a table may take over the live rows' share.
inline constexpr uint64_t kSpareSegments = 4;
// A full segment is so much of a table's live rows, at least this, at most the store's
// segment_bytes.
inline constexpr uint64_t kSegmentShare = 4;
inline constexpr uint64_t kLeastSegmentBytes = uint64_t{8} << 20;

// Of a row of row_bytes: its record, and its key in the footer, where its period of death may be,
// too.
constexpr uint64_t RowSpace(uint64_t row_bytes, bool has_deaths = false) {
  return row_bytes + kChecksumBytes + sizeof(uint64_t) + (has_deaths ? kDeathBytes : 0);
}

}  // namespace hps
