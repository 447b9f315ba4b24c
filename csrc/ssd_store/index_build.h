// BuildIndex: a table's KeyIndex from the footers of a checkpoint's segments, by several threads.
//
// Above it: table_load. Below it: key_index, segment, thread_pool. Footers are read in large
// pieces, several at once; the keys of a batch of pieces are sorted by shard, then each shard takes
// its keys in the order of their entries, by one thread. So the index is the same, byte for byte,
// for any number of threads. Locations must ascend with the order of entries, as Load deals them
// out: an entry is older than another exactly if its location is smaller, and a tombstone takes
// what lies before it. Beside the index it holds under a byte a key: batches grow with the table.
#pragma once

#include <memory>
#include <vector>

#include "common/thread_pool.h"
#include "ssd_store/table_store.h"

namespace hps {

struct IndexSources {
  StoreContext* context = nullptr;
  const TableSchema* schema = nullptr;
  std::vector<std::shared_ptr<Segment>> segments;  // in order of their entries, chunks dealt out
  const std::vector<ChunkPlace>* chunks = nullptr;
  uint64_t num_rows = 0;  // expected, for the size of the index
};

// Fills an empty index and every segment's `live`. Each segment's header, length and footer are
// checked; the first damage in the order of segments is returned, by name. ENOMEM when the index
// gets no memory.
Status BuildIndex(const IndexSources& sources, ThreadPool* pool, KeyIndex* index);

}  // namespace hps
