// UpdateLog for Python: records from any buffers, the GIL released around every call that may wait.
//
// Above it: hps/update_log. Below it: csrc/update_log.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include "bindings/translate.h"
#include "update_log/update_log.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hps {
namespace {

// The memory of Python objects, held until the end.
class Buffers {
 public:
  explicit Buffers(const nb::sequence& objects) {
    views_.reserve(nb::len(objects));
    for (const nb::handle object : objects) {
      Py_buffer view;
      if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) {
        Release();
        throw nb::python_error();
      }
      views_.push_back(view);
      parts_.push_back({view.buf, static_cast<uint64_t>(view.len)});
    }
  }
  ~Buffers() { Release(); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  const std::vector<LogPart>& parts() const { return parts_; }

 private:
  void Release() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
    views_.clear();
  }

  std::vector<Py_buffer> views_;
  std::vector<LogPart> parts_;
};

std::unique_ptr<UpdateLog> OpenLog(const std::string& folder, uint64_t store, uint64_t epoch,
                                   uint64_t after, uint64_t file_bytes, uint64_t buffer_bytes) {
  UpdateLogOptions options;
  options.folder = folder;
  options.identity = {store, epoch};
  options.after = after;
  options.file_bytes = file_bytes;
  options.buffer_bytes = buffer_bytes;
  std::unique_ptr<UpdateLog> log;
  ThrowIfError(UpdateLog::Open(PosixFileSystem(), options, &log));
  return log;
}

// (number of the newest record, bytes of a torn end)
std::pair<uint64_t, uint64_t> Verify(const std::string& folder, uint64_t store, uint64_t epoch,
                                     uint64_t after) {
  UpdateLogOptions options;
  options.folder = folder;
  options.identity = {store, epoch};
  options.after = after;
  LogContents contents;
  ThrowIfError(VerifyLog(PosixFileSystem(), options, &contents));
  return {contents.last, contents.dropped_bytes};
}

nb::list Read(UpdateLog& log, uint64_t max_bytes) {
  std::vector<LogRecord> records;
  {
    const nb::gil_scoped_release release;
    ThrowIfError(log.Read(max_bytes, &records));
  }
  nb::list result;
  for (LogRecord& record : records) {
    result.append(
        nb::make_tuple(record.number, nb::bytes(record.payload.data(), record.payload.size())));
    record.payload = {};
  }
  return result;
}

uint64_t Append(UpdateLog& log, const nb::sequence& parts) {
  const Buffers buffers(parts);
  uint64_t number = 0;
  const nb::gil_scoped_release release;
  ThrowIfError(log.Append(buffers.parts(), &number));
  return number;
}

bool Wait(UpdateLog& log, uint64_t number, bool durable, double timeout) {
  bool is_covered = false;
  ThrowIfError(log.Wait(number, durable, timeout, &is_covered));
  return is_covered;
}

}  // namespace

void BindUpdateLog(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  constexpr uint64_t kDefaultBytes = uint64_t{64} << 20;
  nb::class_<UpdateLog>(module, "UpdateLog")
      .def_static("open", &OpenLog, "folder"_a, "store"_a, "epoch"_a, "after"_a, nb::kw_only(),
                  "file_bytes"_a = kDefaultBytes, "buffer_bytes"_a = kDefaultBytes, Release())
      .def_static("verify", &Verify, "folder"_a, "store"_a, "epoch"_a, "after"_a, Release())
      .def("read", &Read, "max_bytes"_a)
      .def("append", &Append, "parts"_a)
      .def(
          "take_back", [](UpdateLog& log, uint64_t number) { ThrowIfError(log.TakeBack(number)); },
          "number"_a, Release())
      .def("wait", &Wait, "number"_a, "durable"_a, "timeout"_a, Release())
      .def(
          "cut", [](UpdateLog& log, uint64_t number) { ThrowIfError(log.Cut(number)); }, "number"_a,
          Release())
      .def(
          "free_space", [](UpdateLog& log) { ThrowIfError(log.FreeSpace()); }, Release())
      .def(
          "close", [](UpdateLog& log) { ThrowIfError(log.Close()); }, Release())
      .def_prop_ro("appended", &UpdateLog::appended)
      .def_prop_ro("logged", &UpdateLog::logged)
      .def_prop_ro("durable", &UpdateLog::durable)
      .def_prop_ro("num_bytes", &UpdateLog::num_bytes)
      .def_prop_ro("dropped_bytes", &UpdateLog::dropped_bytes);
}

}  // namespace hps
