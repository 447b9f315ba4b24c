// DeviceKeys: the keys of several tables, where they lie, read once for all that verbs ask of them.
//
// Above it: device_verbs.h, held_rows.h. Below it: tensor_view.h. Addresses are good as long as
// this lives, and as nobody resizes an array.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "bindings/tensor_view.h"

namespace hps {

// How often a tensor was changed; -1 if it does not count that, as one of torch.inference_mode.
inline int64_t VersionOfTensor(nb::handle keys) {
  static PyObject* const name = PyUnicode_InternFromString("_version");
  PyObject* const found = PyObject_GetAttr(keys.ptr(), name);
  if (found == nullptr) {
    PyErr_Clear();
    return -1;
  }
  return nb::cast<int64_t>(nb::steal(found));
}

struct KeysOfTable {
  nb::object owner;  // the tensor or array
  const void* data = nullptr;
  int64_t count = 0;
  bool is_on_device = false;  // else of the host
  int64_t version = -1;       // of a tensor on the device; see VersionOfTensor
};

class DeviceKeys {
 public:
  static constexpr int64_t kMost = (int64_t{1} << 31) - 1;  // occurrences have 32 bits

  DeviceKeys(int32_t device_type, int32_t device_number) : device_{device_type, device_number} {}

  // uint64 or int64 [L] in one piece: a tensor on the device, or a tensor or array of the host.
  // False, and nothing is added, of anything else.
  bool AddIfRight(nb::handle keys) {
    KeysOfTable one;
    if (!LookAtTensor(keys, &one) && !LookAtArray(keys, &one)) return false;
    if (one.count > kMost) return false;
    one.owner = nb::borrow(keys);
    tables.push_back(std::move(one));
    return true;
  }

  int64_t count() const {
    int64_t sum = 0;
    for (const KeysOfTable& one : tables) sum += one.count;
    return sum;
  }
  int64_t num_of_host() const {
    int64_t sum = 0;
    for (const KeysOfTable& one : tables) sum += one.is_on_device ? 0 : one.count;
    return sum;
  }
  // Keys [first, first + size) of all tables behind each other, of the same tables.
  DeviceKeys Piece(int64_t first, int64_t size) const {
    DeviceKeys found = *this;
    for (KeysOfTable& one : found.tables) {
      const int64_t start = std::clamp<int64_t>(first, 0, one.count);
      const int64_t end = std::clamp<int64_t>(first + size, 0, one.count);
      first -= one.count;
      one.data = static_cast<const uint64_t*>(one.data) + start;
      one.count = end - start;
    }
    return found;
  }

  std::vector<KeysOfTable> tables;

 private:
  bool LookAtTensor(nb::handle keys, KeysOfTable* one) const {
    std::optional<TensorView> view = TensorView::On(device_, keys);
    one->is_on_device = view.has_value();
    if (!view) view = TensorView::On({}, keys);
    if (!view || view->num_dims() != 1) return false;
    const nb::dlpack::dtype dtype = view->dtype();
    if (dtype != nb::dtype<int64_t>() && dtype != nb::dtype<uint64_t>()) return false;
    one->data = view->data();
    one->count = view->shape(0);
    if (one->is_on_device) one->version = VersionOfTensor(keys);
    return true;
  }

  static bool LookAtArray(nb::handle keys, KeysOfTable* one) {
    // Python's, to the end of the process.
    static const nb::handle array =
        nb::object(nb::module_::import_("numpy").attr("ndarray")).release();
    if (!keys.type().is(array)) return false;
    Py_buffer buffer;
    if (PyObject_GetBuffer(keys.ptr(), &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      return false;
    }
    const char* const format = buffer.format;
    const bool is_right = buffer.ndim == 1 && buffer.itemsize == sizeof(uint64_t) &&
                          std::strchr("lLqQ", format[0]) != nullptr && format[1] == '\0';
    one->data = buffer.buf;
    one->count = buffer.len / static_cast<int64_t>(sizeof(uint64_t));
    PyBuffer_Release(&buffer);
    return is_right;
  }

  TensorDevice device_;
};

}  // namespace hps
