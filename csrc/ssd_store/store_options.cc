// How many threads a store may use.
//
// Above it: store_options.h. Below it: manifest_records.
#include "ssd_store/store_options.h"

#include <algorithm>
#include <thread>

namespace hps {
namespace {

constexpr uint64_t kRowsOfOneThread = 1 << 16;  // where threads cost more than they save

}  // namespace

int StoreOptions::NumThreads() const {
  if (num_threads > 0) return num_threads;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

int StoreOptions::NumLoadThreads(const Checkpoint* checkpoint) const {
  uint64_t num_rows = 0;
  for (size_t i = 0; checkpoint != nullptr && i < checkpoint->tables.size(); ++i) {
    num_rows += checkpoint->tables[i].num_rows;
  }
  return num_rows < kRowsOfOneThread ? 1 : NumThreads();
}

}  // namespace hps
