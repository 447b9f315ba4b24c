// hps._C.Arena, ArenaPart; see arena.h.
#include "bindings/arena.h"

#include <nanobind/stl/unique_ptr.h>

#include "bindings/bind.h"
#include "bindings/cache_options.h"

using namespace nb::literals;

namespace hps {

void BindArena(nb::module_& module) {
  nb::class_<ArenaPart>(module, "ArenaPart")
      .def_prop_ro("address", &ArenaPart::address)
      .def_prop_ro("num_bytes", &ArenaPart::num_bytes)
      .def_prop_ro("memory", &ArenaPart::View);
  nb::class_<Arena>(module, "Arena")
      .def(nb::init<nb::object, int64_t, int64_t>(), "memory"_a, "address"_a, "num_bytes"_a)
      .def(
          "part",
          [](Arena& arena, int64_t num_bytes, bool from_end) {
            CheckShape(num_bytes >= 0, "a number of bytes is needed");
            return arena.Take(num_bytes, from_end);
          },
          "num_bytes"_a, "from_end"_a = false)
      .def_prop_ro("address", &Arena::address)
      .def_prop_ro("num_bytes", &Arena::num_bytes)
      .def_prop_ro("used_bytes", [](const Arena& arena) { return arena.parts().num_used(); })
      .def_prop_ro("peak_bytes", [](const Arena& arena) { return arena.parts().most_used(); })
      .def_prop_ro("largest_part", [](const Arena& arena) { return arena.parts().largest(); });
}

}  // namespace hps
