// Tables: what a kernel that works on the items of several tables is given, and how a lane group
// finds the table of an item.
//
// Above it: kernels.cu, which makes such kernels; csrc/bindings/gpu_kernels.cc and the emulated
// grid of the tests, which run them on the host. Below it: common/portable.h. The
// tables' items are numbered one behind the other. A table may have none.
#pragma once

#include "common/portable.h"

namespace hps {

struct Tables {
  const void* args;     // [num_tables] the kernel's own struct for each
  const int64_t* ends;  // [num_tables] items of the tables up to and with each
  int64_t num_tables;   // one at least
};

inline namespace HPS_BUILD {

// The table that an item below the last end belongs to.
HPS_HD int64_t TableOf(const Tables& tables, int64_t i) {
  int64_t low = 0, high = tables.num_tables - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (tables.ends[middle] > i) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// work(args, item) for every `stride`-th item from `i` on, below `count`, which is the last end; an
// item is numbered
// within its table. The args stay where they are: a copy would fill a device's registers.
template <class Args, class Work>
HPS_HD void ForItems(const Tables& tables, int64_t i, int64_t count, int64_t stride, Work work) {
  if (i >= count) return;
  const auto* const args = static_cast<const Args*>(tables.args);
  int64_t table = TableOf(tables, i);
  int64_t begin = table == 0 ? 0 : tables.ends[table - 1];
  HPS_NOT_UNROLLED
  for (; i < count; i += stride) {
    while (i >= tables.ends[table]) begin = tables.ends[table++];
    work(args[table], i - begin);
  }
}

}  // namespace HPS_BUILD
}  // namespace hps
