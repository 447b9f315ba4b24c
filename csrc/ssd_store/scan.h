// TableScan: every row that was live when the scan began, once, in pieces, in the order of the
// disk.
//
// Above it: bindings. Below it: table_store's snapshot. What is appended or erased while it runs
// does not change what it gives; its segments stay until it is gone. For one thread.
#pragma once

#include "ssd_store/table_store.h"

namespace hps {

class TableScan {
 public:
  TableScan(FileCache* cache, TableSnapshot snapshot)
      : cache_(cache), snapshot_(std::move(snapshot)) {}

  // Fills up to `capacity` rows, and where they lie, if there are `places`; *count is 0 at the end.
  Status Next(char* rows, uint64_t capacity, uint64_t* count, RecordPlace* places = nullptr);
  uint64_t num_rows() const { return snapshot_.num_rows; }
  uint32_t row_bytes() const { return snapshot_.row_bytes; }

 private:
  Status ReadPiece();

  FileCache* cache_;
  TableSnapshot snapshot_;
  size_t part_ = 0;
  uint64_t next_record_ = 0;  // of the part; where the next piece starts
  std::vector<char> piece_;   // records [piece_first_, piece_end_) of the part
  uint64_t piece_first_ = 0;
  uint64_t piece_end_ = 0;
};

}  // namespace hps
