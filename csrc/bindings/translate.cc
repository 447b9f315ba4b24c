// Looks the exception up by name, so that bindings need no list of Python types.
#include "bindings/translate.h"

#include <nanobind/stl/string.h>

#include <cerrno>

namespace nb = nanobind;

namespace hps {
namespace {

const char* ExceptionName(StatusCode code) {
  switch (code) {
    case StatusCode::kConfig:
      return "ConfigError";
    case StatusCode::kCapacity:
      return "CapacityError";
    case StatusCode::kNonFinite:
      return "NonFiniteError";
    case StatusCode::kCorruption:
      return "CorruptionError";
    case StatusCode::kStore:
      return "StoreError";
    case StatusCode::kOk:
      break;
  }
  return "HpsError";
}

}  // namespace

void ThrowIfError(const Status& status) {
  if (status.ok()) return;
  nb::gil_scoped_acquire gil;
  nb::object type = nb::module_::import_("hps.errors").attr(ExceptionName(status.code()));
  nb::object exception = status.code() == StatusCode::kStore && status.os_error() != 0
                             ? type(status.os_error(), status.message())
                             : type(status.message());
  PyErr_SetObject(type.ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace hps
