// From native Status to Python exceptions. csrc/bindings/ is the only native code that knows
// Python.
#pragma once

#include <nanobind/nanobind.h>

#include "common/status.h"

namespace hps {

// Raises the exception of hps.errors that `status` stands for; nothing if ok. Takes the GIL itself,
// so that it may be called from sections that have released it.
void ThrowIfError(const Status& status);

}  // namespace hps
