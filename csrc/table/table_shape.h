// ChooseShape: how many buckets and parts a table has for a budget of bytes; and how many of them
// it uses for the rows it has.
//
// Above it: dram_cache, gpu_cache. Below it: table_view.h. Two caches of the same shape take the
// same slots for the same verbs, whatever memory they lie in.
#pragma once

#include "common/status.h"
#include "table/table_view.h"

namespace hps {

// What a table needs beside its rows.
struct TableOverhead {
  int64_t bucket_bytes = 0;  // for every bucket
  int64_t fixed_bytes = 0;   // once, with all that rounding may lose
};

inline constexpr int64_t kBucketMarkBytes =
    kBucketSlots * (1 + static_cast<int64_t>(sizeof(SlotMark)) + 1) + 1;

// The largest table that fits into `capacity_bytes`; kConfig, with the least that would do, if none
// does.
Status ChooseShape(int64_t capacity_bytes, int64_t row_bytes, TableOverhead overhead,
                   TableShape* shape);

// The shape that an empty table of at most `full` begins with: a few MiB, or all of `full`.
TableShape FirstShape(const TableShape& full);

// The smallest step from `shape` towards `full` that has room for `rows` rows; `shape` itself if it
// has, `full` if none has. A large table grows by an eighth, a small one doubles.
TableShape ShapeForRows(const TableShape& shape, const TableShape& full, int64_t rows);

}  // namespace hps
