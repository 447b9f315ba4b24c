// RowFetch: a batch's records from disk to the caller's rows.
//
// Above it: table_store. Below it: file_cache, file_system's batch reads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ssd_store/file_cache.h"
#include "ssd_store/segment.h"

namespace hps {

// A record that a batch wants: where it lies, and which row of the caller's it is.
struct WantedRecord {
  uint64_t record = 0;
  uint32_t segment = 0;  // ordinal within its table
  uint32_t row = 0;
};

struct FetchSource {
  FileSystem* files = nullptr;
  FileCache* cache = nullptr;
  std::vector<std::shared_ptr<const Segment>> segments;  // by ordinal; only the wanted ones are set
  int num_threads = 1;                                   // for a large batch
};

// Sorts by segment, then record.
void SortByPlace(std::vector<WantedRecord>* wanted);

// Reads the records, in any order, into the caller's rows (row_bytes apart); each is checked
// against its checksum and its key. kCorruption names file, offset and record. *bytes_read grows by
// what was read, gaps included. Thread-safe.
Status FetchRecords(const FetchSource& source, std::vector<WantedRecord> wanted,
                    const uint64_t* keys, char* rows, uint64_t* bytes_read);

}  // namespace hps
