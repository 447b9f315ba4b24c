// Changes: where a table may differ between two checkpoints of one store.
//
// Above it: the Python wrapper, for what publishes changes. Below it: table_store, scan, segment.
// Segments are immutable, so that what both checkpoints have in the same segments alone is the
// same.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "ssd_store/table_store.h"

namespace hps {

// A table as one of two readers has it open, and the period of its checkpoint.
struct TableAtCheckpoint {
  const TableStore* table = nullptr;
  uint32_t period = 0;
};

struct Changes {
  // Of the later checkpoint: the rows that lie in segments which it has alone. A compaction may
  // have moved them there as they were.
  TableSnapshot rows;
  // Sorted, each once: the keys that may have gone, and whatever else lies otherwise in the two;
  // none of `rows`.
  std::vector<uint64_t> others;
};

// Cost: reads the footers of segments that one of the two has alone, and of tables with deaths
// those with a row that dies between the two periods.
Status FindChanges(const TableAtCheckpoint& before, const TableAtCheckpoint& after,
                   FileCache* cache, Changes* changes);

}  // namespace hps
