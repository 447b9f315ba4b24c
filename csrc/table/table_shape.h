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

// How full a table may be before it grows, and by how much it grows then.
struct TableFill {
  int64_t fullest_permille;  // of the slots
  // A part that has by chance so many standard deviations more rows than others is no fuller than
  // this.
  int64_t crowded_permille;
  int64_t deviations;
  int64_t step_divisor;  // a step is this part of the table,
  bool doubles;          // and more while it is small
};
inline constexpr TableFill kUsualFill = {875, 1000, 6, 8, true};
// Of packed rows, which are to take little memory: an eighth of a large table's slots is empty once
// it has the rows that it expects, and 16 % after a step.
inline constexpr TableFill kPackedFill = {875, 930, 4, 24, false};

// The smallest step from `shape` towards `full` that has room for `rows` rows; `shape` itself if it
// has, `full` if none has.
TableShape ShapeForRows(const TableShape& shape, const TableShape& full, int64_t rows,
                        const TableFill& fill = kUsualFill);
// The smallest shape of all that has, of `shape` and larger ones.
TableShape LeastShapeForRows(const TableShape& shape, const TableShape& full, int64_t rows,
                             const TableFill& fill);

}  // namespace hps
