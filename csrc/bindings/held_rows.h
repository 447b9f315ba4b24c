// HeldRows: the rows of one batch of one table, as the native core reads them of a step: the
// table's stack, the plan by which they are pinned, the keys that they were pinned for.
//
// Above it: pinned_rows.cc; hps/tiers/batch_rows.py, whose BatchRows is this with more of Python's.
// Below it: device_keys.h, device_plan.h. All is under the GIL.
#pragma once

#include "bindings/device_keys.h"
#include "bindings/device_plan.h"

namespace hps {

// What tells a tensor on a device, as it is, from all others while it lives.
struct KeysState {
  uint64_t data;
  int64_t count, version;
};

struct HeldRows {
  nb::object stack = nb::none(), model = nb::none(), pool = nb::none(), lock = nb::none(),
             device = nb::none();
  nb::object plan = nb::none();
  // Of a tensor on the device that counts its changes; kept alive, so that no others can come to
  // lie at that address.
  nb::object given = nb::none();
  KeysState pinned_at = {};

  void NoteKeys(const KeysOfTable& keys) {
    if (!keys.is_on_device || keys.version < 0) return;
    given = keys.owner;
    pinned_at = {reinterpret_cast<uint64_t>(keys.data), keys.count, keys.version};
  }
};

}  // namespace hps
