// Scattered reads of one segment: close records share a read, each is checked and copied to its
// row.
//
// Above it: table_store. Below it: file_cache. Reads come from the page cache by pread, one after
// the other; this file is the one place where they would be issued in parallel.
#include <algorithm>

#include "ssd_store/table_store.h"

namespace hps {
namespace {

constexpr uint64_t kMostGapBytes = 2048;  // reading this much over costs less than another call
constexpr uint64_t kMostReadBytes = uint64_t{256} << 10;

Status CheckRecord(const Segment& segment, uint64_t segment_seed, uint64_t record, uint64_t key,
                   const char* bytes) {
  const uint32_t checksum = Crc32c(RecordSeed(segment_seed, record), bytes, segment.row_bytes);
  uint32_t stored = 0;
  std::memcpy(&stored, bytes + segment.row_bytes, sizeof(stored));
  const uint64_t offset = segment.info.RecordOffset(record, segment.row_bytes);
  if (stored != checksum) {
    return Corruption(segment.path, offset,
                      "the checksum of record " + std::to_string(record) + " is " +
                          std::to_string(checksum) + ", stored is " + std::to_string(stored));
  }
  if (RowKey(bytes) != key) {
    return Corruption(segment.path, offset,
                      "record " + std::to_string(record) + " has key " +
                          std::to_string(RowKey(bytes)) + ", key " + std::to_string(key) +
                          " expected");
  }
  return Status::Ok();
}

}  // namespace

Status FetchRecords(StoreContext* context, const Segment& segment, const WantedRecord* wanted,
                    uint64_t count, const uint64_t* keys, char* rows) {
  std::shared_ptr<File> file;
  HPS_RETURN_IF_ERROR(context->cache->Open(segment.info.number, segment.path, &file));
  const uint64_t stride = segment.stride();
  const uint64_t most_skipped = kMostGapBytes / stride + 1;
  const uint64_t most_records = std::max<uint64_t>(1, kMostReadBytes / stride);
  const std::unique_ptr<char[]> buffer(new char[most_records * stride]);
  const uint64_t segment_seed = SegmentSeed(segment.info.number);
  uint64_t bytes_read = 0;
  for (uint64_t first = 0; first < count;) {
    const uint64_t start = wanted[first].record;
    uint64_t end = first + 1;
    while (end < count && wanted[end].record - wanted[end - 1].record <= most_skipped &&
           wanted[end].record - start < most_records) {
      ++end;
    }
    const uint64_t size = (wanted[end - 1].record - start + 1) * stride;
    const uint64_t offset = segment.info.RecordOffset(start, segment.row_bytes);
    const Status read = file->Read(offset, size, buffer.get());
    if (read.code() == StatusCode::kCorruption) {
      return Status(read.code(), read.message() + " (records " + std::to_string(start) + " to " +
                                     std::to_string(wanted[end - 1].record) + ")");
    }
    HPS_RETURN_IF_ERROR(read);
    bytes_read += size;
    for (uint64_t i = first; i < end; ++i) {
      const char* record = buffer.get() + (wanted[i].record - start) * stride;
      const uint64_t row = wanted[i].row;
      HPS_RETURN_IF_ERROR(CheckRecord(segment, segment_seed, wanted[i].record, keys[row], record));
      std::memcpy(rows + row * segment.row_bytes, record, segment.row_bytes);
    }
    first = end;
  }
  context->bytes_read += bytes_read;
  return Status::Ok();
}

}  // namespace hps
