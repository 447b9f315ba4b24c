// PeerVerbs: what the kernels of csrc/gpu_cache/peers.h are given, for all tables of a batch or of
// a step, packed in one call.
//
// Above it: hps/gpu_cache/peers.py, which says what is launched, in which order. Below it:
// launcher.h, device_plan.h, device_bags.h. Each call is made within a verb of the caches, under
// the GIL. Tables of a call are in one order; runs go rank after rank, of each table after table.
#pragma once

#include <memory>
#include <vector>

#include "bindings/device_bags.h"
#include "bindings/launcher.h"
#include "gpu_cache/kernel_list.h"

namespace hps {

// Memory of KeptRests.
struct RestSlots {
  KeptRests kept = {};

  RestSlots(uint64_t keys, uint64_t is_used, uint64_t last, uint64_t rows, uint32_t num_slots)
      : kept{reinterpret_cast<uint64_t*>(keys), reinterpret_cast<uint32_t*>(is_used),
             reinterpret_cast<uint32_t*>(last), reinterpret_cast<float*>(rows), num_slots} {}
};

// What one table sends.
struct SentTable {
  Owned<DevicePlanState> plan;  // none: values are by place
  uint64_t values = 0;          // float32 [., dim]; 0: the plan's rows
  uint64_t ids = 0;             // uint32 [N] of places, of values by id; else 0
  int64_t dim = 0;
  Owned<RestSlots> kept;
};

class PeerVerbs {
 public:
  PeerVerbs(Launcher* launcher, BlockRing* ring, uint32_t num_ranks, uint32_t num_virtual)
      : launcher_(launcher), ring_(ring), num_ranks_(num_ranks), num_virtual_(num_virtual) {}

  using Addresses = std::vector<uint64_t>;
  using Counts = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

  // Divides the keys of plans over their owners. Launches: keys; these, or owners.
  // Args:
  //   scratch: owners uint32, sorted uint32, positions int64, of all tables behind each other.
  //   ids, told_keys, told_starts: the same; the latter two of the host.
  std::unique_ptr<TableBlock> Divide(const nb::list& plans, const Addresses& scratch, uint64_t ids,
                                     uint64_t told_keys, uint64_t told_starts, uint64_t stream);
  // Sums the gradients of tables, which were readied for an update, divides by the number of ranks,
  // and looks at that. One launch: places.
  // Args:
  //   limit: bits of the largest magnitude that may travel; ordinary: of those of no interest.
  //   verdicts: zeroed, of each table.
  std::unique_ptr<TableBlock> Judge(const std::vector<SentTable*>& tables, uint32_t ordinary,
                                    uint32_t limit, uint64_t verdicts, uint64_t stream);
  // Rows into a message. Launches: rows whose rests are kept; rows.
  // Args:
  //   counts: int64 [ranks, tables] rows.
  std::unique_ptr<TableBlock> Send(const std::vector<SentTable*>& tables, const Counts& counts,
                                   int32_t wire, uint64_t message, uint64_t stream);
  // A message into rows of each table, rank after rank. One launch: rows.
  std::unique_ptr<TableBlock> Receive(const Addresses& rows, const std::vector<int64_t>& dims,
                                      const Counts& counts, int32_t wire, uint64_t message,
                                      uint64_t stream);
  // Pools rows [N, dim] that came for the plans' keys, by place. One launch; null if there is no
  // bag.
  std::unique_ptr<TableBlock> Pool(const DeviceBags& bags, const Addresses& rows, uint64_t stream);
  // Bytes of a message.
  static int64_t MessageBytes(const Counts& counts, const std::vector<int64_t>& dims, int32_t wire);

 private:
  template <class Args>
  std::unique_ptr<TableBlock> Begin(size_t num_parts, size_t num_launches, uint64_t stream) const {
    return std::make_unique<TableBlock>(launcher_, ring_, stream, num_parts, num_launches,
                                        sizeof(Args));
  }

  Launcher* launcher_;
  BlockRing* ring_;
  uint32_t num_ranks_, num_virtual_;
};

}  // namespace hps
