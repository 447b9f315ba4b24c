// RecordMarks: 64 bits of the caller's for each of some records of a table, in memory.
//
// Above it: the Python wrapper, for what publishes changes: a mark stands for a row as it was
// published, so that it need not be read again to be compared. Below it: table_store's places. Of
// records of immutable segments, whose numbers are never used again, so that a mark is right for as
// long as it is kept. For one thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ssd_store/table_store.h"

namespace hps {

class RecordMarks {
 public:
  // Not 0, which is a record without a mark. Equal rows have equal marks; of two others that one
  // compares, the marks are equal with a chance of 2^-64.
  static uint64_t Of(const void* row, uint64_t size);

  // False if there is no memory for them: some may be noted then, which does no harm.
  bool Note(const RecordPlace* places, uint64_t count, const uint64_t* marks);
  // marks[i] is 0 where nothing is known.
  void Find(const RecordPlace* places, uint64_t count, uint64_t* marks) const;
  // Forgets the records of all segments but these, by number.
  void Keep(const std::vector<uint64_t>& segments);
  uint64_t memory_bytes() const;

 private:
  std::unordered_map<uint64_t, std::vector<uint64_t>> segments_;  // by record
};

}  // namespace hps
