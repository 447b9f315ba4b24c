// ChooseShape.
#include "table/table_shape.h"

#include <algorithm>
#include <cmath>

namespace hps {
namespace {

constexpr int64_t kBucketsPerPartWanted = 32;  // fewer make parts of uneven load

// Memory that is no matter: tables begin with the first, and double up to the second. Beyond eight
// times the second they grow by an eighth.
constexpr int64_t kFirstBytes = int64_t{4} << 20;
constexpr int64_t kDoubledBytes = int64_t{32} << 20;

int64_t BytesPerBucketOfAll(const TableShape& shape) {
  return shape.num_parts * (kBucketSlots * shape.row_bytes + kBucketMarkBytes);
}

// How many rows a table takes without a row having to give way: most of its slots, and of small
// parts less, since by chance some get more rows than others.
int64_t Room(const TableShape& shape, const TableFill& fill) {
  const int64_t slots = shape.buckets_per_part * kBucketSlots;
  const double spread =
      static_cast<double>(fill.deviations) * std::sqrt(static_cast<double>(slots));
  const int64_t crowded = slots * fill.crowded_permille / 1000 - static_cast<int64_t>(spread);
  return shape.num_parts * std::min(slots * fill.fullest_permille / 1000, crowded);
}

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

TableShape FirstShape(const TableShape& full) {
  TableShape shape = full;
  const int64_t wanted = std::max(kMinBucketsPerPart, kFirstBytes / BytesPerBucketOfAll(full));
  shape.buckets_per_part = std::min(full.buckets_per_part, wanted);
  return shape;
}

TableShape ShapeForRows(const TableShape& shape, const TableShape& full, int64_t rows,
                        const TableFill& fill) {
  TableShape larger = shape;
  int64_t& buckets = larger.buckets_per_part;
  const int64_t most_doubled = fill.doubles ? kDoubledBytes / BytesPerBucketOfAll(full) : 0;
  while (buckets < full.buckets_per_part && Room(larger, fill) < rows) {
    const int64_t doubled = std::min(buckets, most_doubled);
    buckets += std::max<int64_t>({doubled, buckets / fill.step_divisor, 1});
    buckets = std::min(buckets, full.buckets_per_part);
  }
  return larger;
}

TableShape LeastShapeForRows(const TableShape& shape, const TableShape& full, int64_t rows,
                             const TableFill& fill) {
  TableShape least = shape;
  int64_t above = full.buckets_per_part;
  while (least.buckets_per_part < above) {
    TableShape middle = least;
    middle.buckets_per_part += (above - least.buckets_per_part) / 2;
    if (Room(middle, fill) < rows) {
      least.buckets_per_part = middle.buckets_per_part + 1;
    } else {
      above = middle.buckets_per_part;
    }
  }
  return least;
}

}  // namespace hps
