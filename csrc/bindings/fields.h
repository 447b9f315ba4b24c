// GetField: a field of an object of Python, by an interned name; SlotField: the same of a class
// with slots.
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

// A field that objects of one class are asked for, one after the other: where the class has a slot
// of that name, it is read by the slot's descriptor, which is looked for once. Under the GIL; lives
// to the end of the process.
class SlotField {
 public:
  explicit SlotField(const char* name) : name_(PyUnicode_InternFromString(name)) {}

  nanobind::object operator()(nanobind::handle object) {
    const nanobind::handle type = object.type();
    if (type.ptr() != type_) Learn(type);
    if (slot_ == nullptr) return GetField(object, name_);
    PyObject* const found = read_(slot_, object.ptr(), type.ptr());
    if (found == nullptr) throw nanobind::python_error();
    return nanobind::steal(found);
  }

 private:
  void Learn(nanobind::handle type) {
    Py_XDECREF(slot_);
    slot_ = PyObject_GetAttr(type.ptr(), name_);
    if (slot_ == nullptr) PyErr_Clear();
    if (slot_ != nullptr && Py_TYPE(slot_) != &PyMemberDescr_Type) Py_CLEAR(slot_);
    Py_XDECREF(type_);
    type_ = type.inc_ref().ptr();  // held, so that no other class comes to lie there
  }

  PyObject* const name_;
  PyObject* type_ = nullptr;
  PyObject* slot_ = nullptr;
  const descrgetfunc read_ =
      reinterpret_cast<descrgetfunc>(PyType_GetSlot(&PyMemberDescr_Type, Py_tp_descr_get));
};

}  // namespace hps
