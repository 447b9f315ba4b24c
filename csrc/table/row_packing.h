// RowPacking: how a cache of the host holds rows in its slots: as their images, or packed.
//
// Above it: dram_cache. Below it: row_layout.h. A packed slot has the key and the weights alone:
//
//   | key u64 | weights, dim x f32 or bfloat16 | pad to 8 |
//
// so it is for rows that have nothing else, of SGD without statistics. What leaves the cache, or
// comes to it, is an image in any case: other tiers, files and messages know of no packing.
#pragma once

#include "table/row_layout.h"

namespace hps {

inline constexpr int64_t kPackedHeaderBytes = 8;
inline constexpr int64_t kPackedAlignment = 8;

struct RowPacking {
  int64_t image_bytes = 0;
  int64_t weight_bytes = 0;  // of a packed slot; 0: slots hold images

  HPS_HD_MEMBER bool is_packed() const { return weight_bytes > 0; }
  HPS_HD_MEMBER int64_t slot_bytes() const {
    if (!is_packed()) return image_bytes;
    return (kPackedHeaderBytes + weight_bytes + kPackedAlignment - 1) / kPackedAlignment *
           kPackedAlignment;
  }
};

inline namespace HPS_BUILD {

// True if such rows are key and weights alone.
HPS_HD bool CanBePacked(const RowLayout& layout) {
  return layout.kind == OptimizerKind::kSgd && !layout.has_statistics;
}

HPS_HD RowPacking PackingOf(const RowLayout& layout, bool is_packed) {
  const int64_t weight_bytes = layout.dim * (layout.is_narrow ? 2 : 4);
  return {layout.row_bytes(), is_packed ? weight_bytes : 0};
}

// Puts an image into a slot.
HPS_HD void SetSlot(const RowPacking& packing, const uint8_t* image, uint8_t* slot) {
  if (!packing.is_packed()) {
    __builtin_memcpy(slot, image, static_cast<uint64_t>(packing.image_bytes));
    return;
  }
  __builtin_memcpy(slot, image, kPackedHeaderBytes);
  __builtin_memcpy(slot + kPackedHeaderBytes, image + kRowHeaderBytes,
                   static_cast<uint64_t>(packing.weight_bytes));
}

// Makes the image of a slot's row.
HPS_HD void GetImage(const RowPacking& packing, const uint8_t* slot, uint8_t* image) {
  if (!packing.is_packed()) {
    __builtin_memcpy(image, slot, static_cast<uint64_t>(packing.image_bytes));
    return;
  }
  const int64_t end = kRowHeaderBytes + packing.weight_bytes;
  __builtin_memcpy(image, slot, kPackedHeaderBytes);
  __builtin_memset(image + kPackedHeaderBytes, 0, kRowHeaderBytes - kPackedHeaderBytes);
  __builtin_memcpy(image + kRowHeaderBytes, slot + kPackedHeaderBytes,
                   static_cast<uint64_t>(packing.weight_bytes));
  __builtin_memset(image + end, 0, static_cast<uint64_t>(packing.image_bytes - end));
}

}  // namespace HPS_BUILD
}  // namespace hps
