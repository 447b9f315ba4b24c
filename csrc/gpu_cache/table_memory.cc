// TableMemory's plan.
#include "gpu_cache/table_memory.h"

namespace hps {
namespace {

constexpr int64_t kUnit = 256;
constexpr int64_t kListBytes = 2 * static_cast<int64_t>(sizeof(uint32_t));
constexpr int64_t kCounterBytes = kNumCounterWords * static_cast<int64_t>(sizeof(int64_t));

int64_t RoundUp(int64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

}  // namespace

Status TableMemory::Plan(int64_t capacity_bytes, int64_t row_bytes, TableMemory* memory) {
  const TableOverhead overhead = {kBucketMarkBytes + kListBytes,
                                  kCounterBytes + 4 * kUnit};  // roundings, and the clock
  TableMemory plan;
  HPS_RETURN_IF_ERROR(ChooseShape(capacity_bytes, row_bytes, overhead, &plan.shape));
  const int64_t slots = plan.shape.num_slots();
  const int64_t buckets = plan.shape.num_buckets();
  plan.digests = plan.rows + slots * row_bytes;
  plan.marks = plan.digests + slots;
  plan.pins = plan.marks + slots * static_cast<int64_t>(sizeof(SlotMark));
  plan.spilled = plan.pins + slots;
  plan.bucket_lists = RoundUp(plan.spilled + buckets);
  plan.counters = RoundUp(plan.bucket_lists + buckets * kListBytes);
  plan.clock = plan.counters + kCounterBytes;
  plan.bytes = plan.clock + RoundUp(sizeof(CacheClock));
  *memory = plan;
  return Status::Ok();
}

void TableMemory::Bind(uint8_t* base, int64_t header_bytes, CacheArgs* cache) const {
  TableView& table = cache->table;
  table.shape = shape;
  SetRows(&table, base + rows, header_bytes);
  table.digests = base + digests;
  table.marks = reinterpret_cast<SlotMark*>(base + marks);
  table.pins = base + pins;
  table.spilled = base + spilled;
  cache->bucket_lists = reinterpret_cast<uint32_t*>(base + bucket_lists);
  cache->counters = reinterpret_cast<int64_t*>(base + counters);
  cache->clock = reinterpret_cast<CacheClock*>(base + clock);
}

}  // namespace hps
