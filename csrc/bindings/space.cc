// What a table's rows take in each tier, by the tiers' own constants: for hps.plan, which sizes
// machines before there is a store.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "bindings/translate.h"
#include "gpu_cache/table_memory.h"
#include "ssd_store/key_index.h"
#include "ssd_store/space.h"
#include "table/table_shape.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace hps {
namespace {

// Large enough that what a table needs once is nothing beside it.
constexpr int64_t kLargeCache = int64_t{1} << 40;

std::map<std::string, double> SpaceOf(int64_t row_bytes) {
  if (row_bytes <= 0 || row_bytes % 16 != 0) {
    throw nb::value_error("space_of: row_bytes must be a positive multiple of 16");
  }
  TableMemory gpu;
  ThrowIfError(TableMemory::Plan(kLargeCache, row_bytes, &gpu));
  const double mark_bytes = static_cast<double>(kBucketMarkBytes) / kBucketSlots;
  const double fullest = static_cast<double>(KeyIndex::kFullestPercent) / 100.0;
  const double entry_bytes = static_cast<double>(KeyIndex::kEntryBytes);
  return {
      {"dram_slot_bytes", static_cast<double>(row_bytes) + mark_bytes},
      {"gpu_slot_bytes",
       static_cast<double>(gpu.bytes) / static_cast<double>(gpu.shape.num_slots())},
      {"ssd_row_bytes", static_cast<double>(RowSpace(static_cast<uint64_t>(row_bytes)))},
      {"index_bytes_least", entry_bytes / fullest},
      {"index_bytes_most", entry_bytes / fullest * KeyIndex::kGrowthPercent / 100.0},
      {"spare_segments", static_cast<double>(kSpareSegments)},
      {"segment_share", static_cast<double>(kSegmentShare)},
      {"least_segment_bytes", static_cast<double>(kLeastSegmentBytes)},
  };
}

}  // namespace

void BindSpace(nb::module_& module) { module.def("space_of", &SpaceOf, "row_bytes"_a); }

}  // namespace hps
