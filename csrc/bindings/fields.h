// GetField: a field of an object of Python, by an interned name.
//
// Above it: pinned_rows.cc, table_batch.cc, which read several of each table at each step.
#pragma once

#include <nanobind/nanobind.h>

namespace hps {

// Raises what Python raises where there is none.
inline nanobind::object GetField(nanobind::handle object, PyObject* name) {
  PyObject* const found = PyObject_GetAttr(object.ptr(), name);
  if (found == nullptr) throw nanobind::python_error();
  return nanobind::steal(found);
}

}  // namespace hps
