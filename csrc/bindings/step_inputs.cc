// hps._C.find_ids, give_rates: what a step over many tables is made from, read from Python's own
// objects in one call, so that a table more costs Python nothing.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hps {
namespace {

nb::object ItemOf(nb::handle mapping, nb::handle key) {
  if (PyDict_CheckExact(mapping.ptr()) == 0) return nb::borrow(mapping)[key];
  PyObject* const found = PyDict_GetItemWithError(mapping.ptr(), key.ptr());
  if (found == nullptr) {
    if (PyErr_Occurred() == nullptr) PyErr_SetObject(PyExc_KeyError, key.ptr());
    throw nb::python_error();
  }
  return nb::borrow(found);
}

// What a batch has of each of these tables, and whether any of it has weights.
// Raises:
//   KeyError: the first table that it lacks.
std::pair<nb::list, bool> FindIds(nb::handle features, const nb::tuple& tables) {
  static PyObject* const weights = PyUnicode_InternFromString("weights_L");
  nb::list found;
  bool has_weights = false;
  for (const nb::handle table : tables) {
    const nb::object ids = ItemOf(features, table);
    has_weights |= !nb::getattr(ids, nb::handle(weights)).is_none();
    found.append(ids);
  }
  return {found, has_weights};
}

// Gives each group's learning rate to its table. False, and nothing is given, unless these are
// `known`, floats of Python's own.
bool GiveRates(const nb::list& groups, const std::vector<double>& known, nb::dict rates) {
  static PyObject* const lr = PyUnicode_InternFromString("lr");
  static PyObject* const table = PyUnicode_InternFromString("table");
  if (groups.size() != known.size()) return false;
  for (size_t i = 0; i < known.size(); ++i) {
    const nb::object rate = ItemOf(groups[i], lr);
    if (PyFloat_CheckExact(rate.ptr()) == 0 || PyFloat_AsDouble(rate.ptr()) != known[i]) {
      return false;
    }
  }
  for (const nb::handle group : groups) rates[ItemOf(group, table)] = ItemOf(group, lr);
  return true;
}

}  // namespace

void BindStepInputs(nb::module_& module) {
  module.def("find_ids", &FindIds, "features"_a, "tables"_a);
  module.def("give_rates", &GiveRates, "groups"_a, "known"_a, "rates"_a);
}

}  // namespace hps
