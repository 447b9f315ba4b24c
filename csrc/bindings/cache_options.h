// What the bindings of dram_cache and gpu_cache share: types of arrays, views, options by name.
//
// Above it: dram_cache.cc, gpu_cache.cc beside it. Below it: nanobind, csrc/optimizer. Every array
// argument is refused unless it has exactly the dtype and layout named: a silent copy would be a
// silent loss of what was written to it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/initializer.h"
#include "optimizer/narrow_lanes.h"
#include "optimizer/optimizer.h"

namespace nb = nanobind;

namespace hps {

template <typename T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Keys = Vector<const uint64_t>;

OptimizerKind ParseOptimizer(const std::string& name);
// "nearest" or "stochastic".
Rounding ParseRounding(const std::string& name);
// The order is that of Optimizer.hyperparameters() in hps/common/optimizers.py.
OptimizerNumbers ParseNumbers(OptimizerKind kind, const std::vector<double>& values);
InitializerSpec ParseInitializer(const std::string& name, std::pair<double, double> numbers,
                                 uint64_t stream);

inline void CheckShape(bool is_right, const char* what) {
  if (!is_right) throw nb::value_error(what);
}

template <typename T>
nb::ndarray<nb::numpy, T> View(T* data, std::initializer_list<size_t> shape, nb::handle owner) {
  return nb::ndarray<nb::numpy, T>(data, shape, owner);
}

// A new numpy vector that owns its memory.
template <typename T>
struct NewVector {
  explicit NewVector(size_t count) : count(count), data(std::make_unique<T[]>(count)) {}

  nb::ndarray<nb::numpy, T> Give() {
    nb::capsule owner(data.get(), [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
    return View(data.release(), {count}, owner);
  }

  size_t count;
  std::unique_ptr<T[]> data;
};

}  // namespace hps
