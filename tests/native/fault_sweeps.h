// Sweeps, as the recipes of the store and of the update log run them: seed after seed from 1 on,
// and for each of them call after call, or more and more space, until the fault does not strike.
//
// Above it: ssd_crash_test.cc, ssd_disk_test.cc, update_log_crash_test.cc, update_log_disk_test.cc.
// Below it: fault_file_system.h.
#pragma once

#include "fault_file_system.h"

namespace hps {

// strike(seed, call) as long as it says that the call was reached.
template <class Strike>
void SweepCalls(uint64_t num_seeds, Strike strike) {
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    for (int64_t call = 0; strike(seed, call);) ++call;
  }
}

// fill(seed, space), a disk of so many bytes, as long as it says that they did not suffice.
template <class Fill>
void SweepSpace(uint64_t num_seeds, int64_t stride, Fill fill) {
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    auto space = static_cast<int64_t>(seed % static_cast<uint64_t>(stride));
    while (fill(seed, space)) space += stride;
  }
}

// refuse(seed, faults), by which one read, or one open, fails, as long as that one was reached.
template <class Refuse>
void SweepRefusals(uint64_t num_seeds, Call counted, Refuse refuse) {
  FaultFileSystem::Faults faults;
  faults.counted = counted;
  faults.error = counted == Call::kOpen ? EACCES : EIO;
  SweepCalls(num_seeds, [&](uint64_t seed, int64_t call) {
    faults.fail_at_call = call;
    return refuse(seed, faults);
  });
}

}  // namespace hps
