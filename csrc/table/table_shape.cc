// ChooseShape.
#include "table/table_shape.h"

namespace hps {
namespace {

constexpr int64_t kBucketsPerPartWanted = 32;  // fewer make parts of uneven load

}  // namespace

Status ChooseShape(int64_t capacity_bytes, int64_t row_bytes, TableOverhead overhead,
                   TableShape* shape) {
  const int64_t bucket_bytes = kBucketSlots * row_bytes + overhead.bucket_bytes;
  const int64_t buckets = (capacity_bytes - overhead.fixed_bytes) / bucket_bytes;
  if (buckets < kMinBucketsPerPart) {
    const int64_t least = kMinBucketsPerPart * bucket_bytes + overhead.fixed_bytes;
    return Status(StatusCode::kConfig, "a cache of " + std::to_string(capacity_bytes) +
                                           " bytes for rows of " + std::to_string(row_bytes) +
                                           " bytes is too small; the least is " +
                                           std::to_string(least) + " bytes");
  }
  int64_t parts = 1;
  int32_t bits = 0;
  while (parts < kMaxParts && buckets / (2 * parts) >= kBucketsPerPartWanted) {
    parts *= 2;
    ++bits;
  }
  *shape = TableShape{parts, buckets / parts, bits, row_bytes};
  return Status::Ok();
}

}  // namespace hps
