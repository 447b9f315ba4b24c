// ChangedKeys: the keys of a table that may differ between two checkpoints of one store.
//
// Above it: the Python wrapper, for what publishes changes. Below it: table_store, segment.
// Segments are immutable, so that what both checkpoints have in the same segments alone is the
// same.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "ssd_store/table_store.h"

namespace hps {

// Of the table as two readers have it open, sorted and each once: the keys that footers of segments
// name which one of the two has alone, and those of rows of `before` that die between the two
// periods. Rows that a compaction has moved are among them. Cost: reads these footers, and of
// tables with deaths those with a row that dies.
Status ChangedKeys(const TableStore& before, uint32_t before_period, const TableStore& after,
                   uint32_t after_period, FileCache* cache, std::vector<uint64_t>* keys);

}  // namespace hps
