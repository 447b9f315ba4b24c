// TableMemory: where everything of a gpu_cache lies in its one allocation.
//
// Above it: gpu_cache.cc, the CUDA cache (through the bindings). Below it: csrc/table. Offsets are
// from the start of the allocation, which is a multiple of 256.
#pragma once

#include "gpu_cache/cache_args.h"
#include "table/table_shape.h"

namespace hps {

struct TableMemory {
  TableShape shape;
  int64_t rows = 0;
  int64_t digests = 0;
  int64_t marks = 0;
  int64_t pins = 0;
  int64_t spilled = 0;
  int64_t bucket_lists = 0;
  int64_t counters = 0;
  int64_t clock = 0;
  int64_t bytes = 0;

  // The largest table for `capacity_bytes`; kConfig if that is too little for any.
  static Status Plan(int64_t capacity_bytes, int64_t row_bytes, TableMemory* memory);

  // Points the pointers of `cache` into the allocation at `base`.
  void Bind(uint8_t* base, int64_t header_bytes, CacheArgs* cache) const;
};

}  // namespace hps
