// hps._C.find_ids, are_same_tensors, are_kept, num_changes, measure_bags, give_rates, find_parts:
// what a step over many tables is made from, read from Python's own objects in one call, so that a
// table more costs Python nothing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/cache_options.h"
#include "bindings/device_keys.h"
#include "bindings/fields.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hps {
namespace {

constexpr int64_t kMostBags = (int64_t{1} << 31) - 2;  // hps/common/bags.py says so

using OwnNumbers = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Of a table's Ids.
struct IdsFields {
  SlotField keys{"keys_L"}, offsets{"offsets"}, weights{"weights_L"};
};

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

// How often the tensors of a table's ids were changed in place; -1 if one does not count that.
int64_t NumChanges(nb::handle keys, nb::handle offsets, nb::handle weights) {
  int64_t sum = 0;
  for (const nb::handle tensor : {keys, offsets, weights}) {
    if (tensor.is_none()) continue;
    const int64_t changes = VersionOfTensor(tensor);
    if (changes < 0) return -1;
    sum += changes;
  }
  return sum;
}

// True if a batch has, of each table, the very tensors that were kept, over the memory that they
// had then, and none was changed. Args:
//   kept: tuples of a table's name, its keys, offsets and weights, a tuple of tensors over their
//     memory, and how often they had been changed.
bool AreKept(const nb::list& kept, nb::handle features) {
  static auto* const fields = new IdsFields;
  for (const nb::handle one : kept) {
    const auto of_table = nb::cast<nb::tuple>(one);
    PyObject* const found = PyObject_GetItem(features.ptr(), of_table[0].ptr());
    if (found == nullptr) {
      PyErr_Clear();
      return false;
    }
    const nb::object ids = nb::steal(found);
    const nb::object own[] = {fields->keys(ids), fields->offsets(ids), fields->weights(ids)};
    const auto memory = nb::cast<nb::tuple>(of_table[4]);
    for (size_t i = 0; i < std::size(own); ++i) {
      if (!own[i].is(of_table[1 + i])) return false;
      if (!own[i].is_none() && !TensorView::AreSame(own[i], memory[i])) return false;
    }
    const int64_t changes = NumChanges(own[0], own[1], own[2]);
    if (changes < 0 || changes != nb::cast<int64_t>(of_table[5])) return false;
  }
  return true;
}

// Bags of several tables, by their offsets: the least and the greatest number of occurrences in a
// bag of each table, 1 if it has none. Nothing, unless all are int64 [num_bags + 1] of the host in
// one piece that start at 0, do not fall and end at the table's number of keys.
// Args:
//   own: int64 [all offsets], which become these, table by table.
//   lengths: int64 [all bags], which become those of the bags.
std::optional<std::pair<std::vector<int64_t>, std::vector<int64_t>>> MeasureBags(
    const nb::list& offsets, const std::vector<int64_t>& num_keys, OwnNumbers own,
    OwnNumbers lengths) {
  CheckShape(offsets.size() == num_keys.size(), "keys of each table are needed");
  std::pair<std::vector<int64_t>, std::vector<int64_t>> bounds;
  int64_t *next = own.data(), *next_length = lengths.data();
  const int64_t *const end = next + own.size(), *const end_length = next_length + lengths.size();
  for (size_t i = 0; i < num_keys.size(); ++i) {
    const std::optional<TensorView> view = TensorView::On(TensorDevice{}, offsets[i]);
    if (!view || view->num_dims() != 1 || view->dtype() != nb::dtype<int64_t>()) return {};
    const int64_t num_bags = view->shape(0) - 1;
    if (num_bags < 0 || num_bags > kMostBags) return {};
    CheckShape(num_bags < end - next && num_bags <= end_length - next_length, "room is needed");
    const auto* const given = static_cast<const int64_t*>(view->data());
    std::copy_n(given, num_bags + 1, next);
    if (next[0] != 0 || next[num_bags] != num_keys[i]) return {};
    int64_t shortest = num_bags == 0 ? 1 : num_keys[i], longest = num_bags == 0 ? 1 : 0;
    for (int64_t bag = 0; bag < num_bags; ++bag) {
      // Differences of numbers from 0 to num_keys, as long as none has been outside.
      if (next[bag + 1] < next[bag] || next[bag + 1] > num_keys[i]) return {};
      const int64_t length = next[bag + 1] - next[bag];
      shortest = std::min(shortest, length);
      longest = std::max(longest, length);
      next_length[bag] = length;
    }
    bounds.first.push_back(shortest);
    bounds.second.push_back(longest);
    next += num_bags + 1;
    next_length += num_bags;
  }
  return bounds;
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

// The parts of an array, one behind the other, that have a value somewhere; their numbers.
std::vector<int64_t> FindParts(
    nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> values,
    const std::vector<int64_t>& lengths, uint8_t value) {
  std::vector<int64_t> found;
  const uint8_t* first = values.data();
  const uint8_t* const end = first + values.size();
  for (size_t i = 0; i < lengths.size(); ++i) {
    CheckShape(0 <= lengths[i] && lengths[i] <= end - first, "the lengths of parts are needed");
    const auto length = static_cast<size_t>(lengths[i]);
    if (length > 0 && std::memchr(first, value, length) != nullptr) {
      found.push_back(static_cast<int64_t>(i));
    }
    first += length;
  }
  return found;
}

}  // namespace

void BindStepInputs(nb::module_& module) {
  module.def("find_ids", &FindIds, "features"_a, "tables"_a);
  module.def("are_same_tensors", &TensorView::AreSame, "one"_a, "other"_a);
  module.def("are_kept", &AreKept, "kept"_a, "features"_a);
  module.def("measure_bags", &MeasureBags, "offsets"_a, "num_keys"_a, "own"_a.noconvert(),
             "lengths"_a.noconvert());
  module.def("num_changes", &NumChanges, "keys"_a, "offsets"_a, "weights"_a.none());
  module.def("find_parts", &FindParts, "values"_a, "lengths"_a, "value"_a);
  module.def("give_rates", &GiveRates, "groups"_a, "known"_a, "rates"_a);
}

}  // namespace hps
