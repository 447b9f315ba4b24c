// TensorView: where the numbers of a torch tensor or a numpy array lie, for verbs that are called
// so often that making an array of a tensor would tell.
//
// Above it: table_batch.cc, device_bags.h, device_keys.h, step_inputs.cc. Below it: nanobind;
// DLPack's table of functions, by which torch says where a tensor lies without making anything.
// Only numbers of one device's memory, the host's if none is named, without gaps between them are
// taken; nothing is copied. A tensor of a class of its own is none here: it may hold no numbers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <optional>

#include "bindings/cache_options.h"

namespace hps {

// DLPackExchangeAPI of DLPack 1.3, which torch's dlpack.h documents.
struct ExchangeFunctions {
  uint32_t major_version;
  uint32_t minor_version;
  void* older;
  void* functions_of_owners[3];
  int (*view)(void* object, nb::dlpack::dltensor* out);
  void* current_work_stream;
};

// Where tensors are looked for, as DLPack names it; the host's memory.
struct TensorDevice {
  int32_t type = 1;
  int32_t number = 0;
};

class TensorView {
 public:
  // Of a torch tensor that lies there without gaps; nothing of anything else.
  static std::optional<TensorView> On(TensorDevice device, nb::handle value) {
    TensorView view;
    if (!view.LookAtTensor(value, device)) return std::nullopt;
    return view;
  }

  // True if two tensors of torch show the same numbers of the same memory.
  static bool AreSame(nb::handle one, nb::handle other) {
    const ExchangeFunctions* const functions = FunctionsOf(one.type());
    nb::dlpack::dltensor first, second;
    if (functions == nullptr || !one.type().is(other.type()) ||
        functions->view(one.ptr(), &first) != 0 || functions->view(other.ptr(), &second) != 0) {
      PyErr_Clear();
      return nb::cast<bool>(one.attr("is_set_to")(other));
    }
    if (first.data != second.data || first.byte_offset != second.byte_offset ||
        first.ndim != second.ndim || first.dtype != second.dtype ||
        first.device.device_type != second.device.device_type ||
        first.device.device_id != second.device.device_id) {
      return false;
    }
    for (int32_t i = 0; i < first.ndim; ++i) {
      const bool are_apart = first.strides != nullptr && second.strides != nullptr &&
                             first.strides[i] != second.strides[i];
      if (first.shape[i] != second.shape[i] || are_apart) return false;
    }
    return true;
  }

  // Of an object with so many dimensions.
  // Raises:
  //   ValueError: `what` is needed.
  template <class Array>
  static TensorView Of(nb::handle value, int32_t num_dims, const char* what) {
    TensorView view;
    if (!view.LookAtTensor(value)) {
      Array array;
      CheckShape(nb::try_cast(value, array, false), what);
      view.dtype_ = array.dtype();
      view.num_dims_ = static_cast<int32_t>(array.ndim());
      for (int32_t i = 0; i < std::min(view.num_dims_, kMostDims); ++i) {
        view.shape_[i] = static_cast<int64_t>(array.shape(static_cast<size_t>(i)));
      }
      view.data_ = const_cast<void*>(static_cast<const void*>(array.data()));
      view.owner_ = nb::cast(array);
    }
    CheckShape(view.num_dims_ == num_dims, what);
    return view;
  }

  nb::dlpack::dtype dtype() const { return dtype_; }
  int32_t num_dims() const { return num_dims_; }
  int64_t shape(int32_t dim) const { return shape_[dim]; }
  void* data() const { return data_; }

 private:
  static constexpr int32_t kMostDims = 2;

  TensorView() = default;

  // What a class itself, not a base class of it, says of its tensors; null for nothing. Asked of
  // Python once for the class that was asked for last of either kind: it has no quick way that its
  // stable ABI keeps. Under the GIL.
  static const ExchangeFunctions* FunctionsOf(nb::handle type) {
    static PyObject* with = nullptr;  // held, so that no other class comes to lie there
    static PyObject* without = nullptr;
    static const ExchangeFunctions* known = nullptr;
    if (type.ptr() == with) return known;
    if (type.ptr() == without) return nullptr;
    const ExchangeFunctions* const found = AskFor(type);
    PyObject** const place = found == nullptr ? &without : &with;
    PyObject* const before = *place;
    *place = type.inc_ref().ptr();
    if (found != nullptr) known = found;
    Py_XDECREF(before);
    return found;
  }

  static bool IsNegative(nb::handle tensor) {
    // Of the base of all such classes; held to the end of the process.
    static const nb::handle method =
        nb::object(nb::module_::import_("torch").attr("Tensor").attr("is_neg")).release();
    return !method(tensor).is(Py_False);
  }

  static const ExchangeFunctions* AskFor(nb::handle type) {
    constexpr const char* kKind = "dlpack_exchange_api";
    const nb::object own = type.attr("__dict__").attr("get")("__dlpack_c_exchange_api__");
    if (!PyCapsule_IsValid(own.ptr(), kKind)) return nullptr;
    const auto* found =
        static_cast<const ExchangeFunctions*>(PyCapsule_GetPointer(own.ptr(), kKind));
    return found->major_version == 1 ? found : nullptr;
  }

  bool LookAtTensor(nb::handle value, TensorDevice device = {}) {
    const ExchangeFunctions* const functions = FunctionsOf(value.type());
    if (functions == nullptr) return false;
    nb::dlpack::dltensor found;
    if (functions->view(value.ptr(), &found) != 0) {
      PyErr_Clear();
      return false;
    }
    const bool is_there =
        found.device.device_type == device.type && found.device.device_id == device.number;
    if (!is_there || found.ndim > kMostDims) return false;
    const bool is_whole = found.dtype.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int);
    // A tensor of torch may stand for the negatives of what lies there.
    if (!is_whole && IsNegative(value)) return false;
    int64_t step = 1;
    for (int32_t i = found.ndim - 1; i >= 0; --i) {
      const bool is_apart = found.strides != nullptr && found.strides[i] != step;
      if (is_apart && found.shape[i] > 1) return false;
      shape_[i] = found.shape[i];
      step *= found.shape[i];
    }
    dtype_ = found.dtype;
    num_dims_ = found.ndim;
    data_ = static_cast<char*>(found.data) + found.byte_offset;
    owner_ = nb::borrow(value);
    return true;
  }

  nb::dlpack::dtype dtype_;
  int32_t num_dims_ = 0;
  int64_t shape_[kMostDims] = {};
  void* data_ = nullptr;
  nb::object owner_;
};

}  // namespace hps
