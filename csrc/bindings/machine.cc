// What the core finds of the machine that it runs on, for `hps doctor`: the instruction sets that
// it may take, the best first, and whether batches of reads go through io_uring.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "batch/key_loops.h"
#include "bindings/bind.h"
#include "files/file_system.h"

namespace nb = nanobind;

namespace hps {

void BindMachine(nb::module_& module) {
  module.def("instruction_sets", [] {
    std::vector<std::string> found;
    for (const char* name : {"avx512", "avx2", "plain"}) {
      if (ChooseKeyLoops(name) != nullptr) found.emplace_back(name);
    }
    return found;
  });
  module.def("uses_io_uring", [] { return GrantedBatchMethod() == BatchMethod::kRing; });
}

}  // namespace hps
