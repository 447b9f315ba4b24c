// Arrays of a batch on their way to numpy.
//
// Above it: reader.cc, batch_transform.cc beside it. Below it: csrc/reader/text_batch.h, nanobind.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <utility>

#include "reader/text_batch.h"

namespace hps {

// Hands an array on to numpy, which frees it.
template <typename Out, typename T>
nanobind::object ToNumpy(Array<T>&& array, size_t rows, size_t columns, size_t num_axes) {
  namespace nb = nanobind;
  T* data = array.data.release();
  nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
  const size_t shape[2] = {rows, columns};
  return nb::cast(
      nb::ndarray<nb::numpy, Out>(reinterpret_cast<Out*>(data), num_axes, shape, owner));
}

// Keys, offsets and weights of a table; None of those that are null.
inline nanobind::tuple ToTuple(TableIds&& table) {
  nanobind::object offsets = nanobind::none();
  nanobind::object weights = nanobind::none();
  const size_t num_keys = table.keys.size;
  const size_t num_offsets = table.offsets.size;
  if (table.offsets.data != nullptr) {
    offsets = ToNumpy<int64_t>(std::move(table.offsets), num_offsets, 0, 1);
  }
  if (table.weights.data != nullptr) {
    weights = ToNumpy<float>(std::move(table.weights), num_keys, 0, 1);
  }
  return nanobind::make_tuple(ToNumpy<int64_t>(std::move(table.keys), num_keys, 0, 1), offsets,
                              weights);
}

}  // namespace hps
