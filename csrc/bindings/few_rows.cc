// hps._C.FewRows: Python's values of a few raw rows to keys and numbers, without arrays between.
//
// Above it: hps/train/few_rows.py, which says what is asked of it and what is arrow's instead.
// Below it: the hashes of csrc/reader, which the readers of whole columns use, too. What is no
// plain value is refused: the answer then is None.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/cache_options.h"
#include "common/hash.h"
#include "reader/decimal_hash.h"
#include "reader/text_keys.h"

namespace nb = nanobind;

namespace hps {
namespace {

constexpr double kWhole = 9007199254740992.0;  // 2^53; below it each whole number is one float

// The type of all values of a column; kNothing: there are none.
enum class Kind { kNothing, kFloat, kInt, kText, kBytes, kRefused };

Kind KindOf(PyObject* value) {
  if (PyFloat_CheckExact(value)) return Kind::kFloat;
  if (PyLong_CheckExact(value)) return Kind::kInt;
  if (PyUnicode_CheckExact(value)) return Kind::kText;
  return PyBytes_CheckExact(value) ? Kind::kBytes : Kind::kRefused;
}

// A whole number of 64 bits, signed or not.
struct Whole {
  bool is_there = false;
  bool is_large = false;  // from 2^63 on
  uint64_t bits = 0;
};

// False of a number beyond 64 bits.
bool ReadWhole(PyObject* value, Whole* out) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  *out = {true, overflow > 0, static_cast<uint64_t>(number)};
  if (overflow == 0) return true;
  if (overflow < 0) return false;
  out->bits = PyLong_AsUnsignedLongLong(value);
  const bool is_beyond = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  return !is_beyond;
}

// NaN is missing. False of one whose text is not known: not whole, or minus zero.
bool ReadWholeFloat(double number, Whole* out) {
  if (std::isnan(number)) return true;
  const bool is_whole = -kWhole < number && number < kWhole && std::trunc(number) == number;
  if (!is_whole || (number == 0 && std::signbit(number))) return false;
  *out = {true, false, static_cast<uint64_t>(static_cast<int64_t>(number))};
  return true;
}

using Space = std::vector<PyObject*>;

// The values of a list or a tuple, borrowed; the stable ABI has no pointer to them, so there they
// are written into `space`, which is used for one sequence at a time.
PyObject* const* ItemsOf(PyObject* sequence, Space* space) {
#ifdef Py_LIMITED_API
  const bool is_list = PyList_CheckExact(sequence);
  const auto count = static_cast<size_t>(PyObject_Length(sequence));
  space->resize(count);
  for (size_t row = 0; row < count; ++row) {
    const auto place = static_cast<Py_ssize_t>(row);
    (*space)[row] = is_list ? PyList_GetItem(sequence, place) : PyTuple_GetItem(sequence, place);
  }
  return space->data();
#else
  (void)space;
  return PySequence_Fast_ITEMS(sequence);
#endif
}

// A column's values, borrowed from the list or tuple that holds them.
struct Values {
  nb::object holder;
  PyObject* const* items = nullptr;  // null: all are missing
  Kind kind = Kind::kNothing;

  PyObject* at(size_t row) const { return items == nullptr ? Py_None : items[row]; }
};

struct ReadRows {
  std::vector<uint64_t> keys;
  std::vector<int64_t> offsets{0};
};

class FewRows {
 public:
  struct Rules {
    bool is_csv = false;
    bool hashes_numbers = false;
    MissingRule missing = MissingRule::kNull;
  };

  FewRows(Rules rules, nb::object list_of, nb::object number_of, size_t max_rows)
      : rules_(rules),
        list_of_(std::move(list_of)),
        number_of_(std::move(number_of)),
        max_rows_(max_rows) {}

  void AddDense(nb::str name, bool keeps_nan, bool may_lack) {
    dense_.push_back({std::move(name), 0, keeps_nan, may_lack, ""});
  }
  // `separator`: what is between two values of a text; empty for texts that are one.
  void AddFeature(nb::str name, uint64_t seed, bool may_lack, std::string separator) {
    CheckShape(!table_ends_.empty(), "add_feature: there is no table yet");
    features_.push_back({std::move(name), seed, false, may_lack, std::move(separator)});
    table_ends_.back() = features_.size();
  }
  void AddTable() { table_ends_.push_back(features_.size()); }

  // None, or (float64 [B, dense columns], bool of which are missing or None, [(keys, offsets)]).
  nb::object Read(const nb::dict& given) const {
    size_t num_rows = 0;
    std::vector<double> numbers;
    std::vector<char> missing;
    bool any_missing = false;
    Space space;
    std::vector<ReadRows> tables(table_ends_.size());
    for (size_t i = 0; i < dense_.size(); ++i) {
      Values values;
      if (!Take(given, dense_[i], &num_rows, &space, &values)) return nb::none();
      if (i == 0) {
        numbers.resize(num_rows * dense_.size());
        missing.resize(num_rows * dense_.size());
      }
      for (size_t row = 0; row < num_rows; ++row) {
        const size_t place = row * dense_.size() + i;
        bool is_missing = false;
        if (!ReadNumber(values, row, &numbers[place], &is_missing)) return nb::none();
        if (!is_missing) continue;
        numbers[place] = dense_[i].keeps_nan ? std::numeric_limits<double>::quiet_NaN() : 0.0;
        missing[place] = static_cast<char>(!dense_[i].keeps_nan);
        any_missing |= !dense_[i].keeps_nan;
      }
    }
    for (size_t table = 0, i = 0; table < tables.size(); ++table) {
      for (; i < table_ends_[table]; ++i) {
        Values values;
        if (!Take(given, features_[i], &num_rows, &space, &values)) return nb::none();
        if (!ReadKeys(values, features_[i], num_rows, &tables[table])) return nb::none();
      }
    }
    return num_rows == 0 ? nb::none() : Give(num_rows, numbers, missing, any_missing, tables);
  }

 private:
  struct Column {
    nb::str name;
    uint64_t seed;
    bool keeps_nan;
    bool may_lack;  // it may be absent: all its values are missing then
    std::string separator;
  };

  // The values of a column of `num_rows`, 0 if that is not known yet. False if they are refused.
  bool Take(const nb::dict& given, const Column& column, size_t* num_rows, Space* space,
            Values* out) const {
    PyObject* found = PyDict_GetItemWithError(given.ptr(), column.name.ptr());
    if (found == nullptr) {
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      return column.may_lack && Rows(given, num_rows, space);
    }
    out->holder = nb::borrow(found);
    if (!PyList_CheckExact(found) && !PyTuple_CheckExact(found)) {
      out->holder = list_of_(out->holder);
      if (out->holder.is_none()) return false;
    }
    const auto count = static_cast<size_t>(PyObject_Length(out->holder.ptr()));
    if (*num_rows == 0) *num_rows = count;
    if (count == 0 || count != *num_rows || count > max_rows_) return false;
    out->items = ItemsOf(out->holder.ptr(), space);
    for (size_t row = 0; row < count; ++row) {
      if (out->items[row] == Py_None) continue;
      const Kind kind = KindOf(out->items[row]);
      if (kind == Kind::kRefused || (out->kind != Kind::kNothing && out->kind != kind))
        return false;
      out->kind = kind;
    }
    if (out->kind == Kind::kText && PyList_CheckExact(out->holder.ptr())) {
      // Python's code reads numbers of text: another thread may change the list meanwhile.
      out->holder = nb::steal(PyList_AsTuple(out->holder.ptr()));
      if (!out->holder.is_valid()) throw nb::python_error();
      out->items = ItemsOf(out->holder.ptr(), space);
    }
    return true;
  }

  // How many rows there are, where the first columns are absent.
  bool Rows(const nb::dict& given, size_t* num_rows, Space* space) const {
    if (*num_rows != 0) return true;
    for (const std::vector<Column>* columns : {&dense_, &features_}) {
      for (const Column& column : *columns) {
        Values values;
        if (!given.contains(column.name)) continue;
        return Take(given, column, num_rows, space, &values);
      }
    }
    return false;
  }

  // One number of a dense column; false if it is refused.
  bool ReadNumber(const Values& values, size_t row, double* number, bool* is_missing) const {
    PyObject* value = values.at(row);
    *is_missing = value == Py_None;
    if (*is_missing) return true;
    if (values.kind == Kind::kFloat) {
      *number = PyFloat_AsDouble(value);
      *is_missing = rules_.is_csv && std::isnan(*number);
      return true;
    }
    Whole whole;
    if (values.kind == Kind::kInt) {
      if (!ReadWhole(value, &whole) || whole.is_large) return false;
      *number = static_cast<double>(static_cast<int64_t>(whole.bits));
      return true;
    }
    if (values.kind != Kind::kText || number_of_.is_none()) return false;
    PyObject* made = PyObject_CallFunctionObjArgs(number_of_.ptr(), value, nullptr);
    if (made == nullptr) {
      if (PyErr_ExceptionMatches(PyExc_ValueError) == 0) throw nb::python_error();
      PyErr_Clear();
      return false;
    }
    const nb::object held = nb::steal(made);
    *is_missing = made == Py_None;
    if (!*is_missing) *number = PyFloat_AsDouble(made);
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return true;
  }

  // The keys of a column's rows, at the end of its table's; false if they are refused.
  bool ReadKeys(const Values& values, const Column& column, size_t num_rows, ReadRows* out) const {
    const bool is_text = values.kind == Kind::kText || values.kind == Kind::kBytes;
    const bool is_divided = !column.separator.empty();
    if (!is_text && values.kind != Kind::kNothing) {
      return !is_divided && ReadWholes(values, column.seed, num_rows, out);
    }
    for (size_t row = 0; row < num_rows; ++row) {
      PyObject* value = values.at(row);
      const char* text = "";
      Py_ssize_t size = 0;
      bool has_key = rules_.missing == MissingRule::kNone;
      if (value != Py_None) {
        text = values.kind == Kind::kBytes ? PyBytes_AsString(value)
                                           : PyUnicode_AsUTF8AndSize(value, &size);
        if (text == nullptr) {  // half of a surrogate pair
          PyErr_Clear();
          return false;
        }
        if (values.kind == Kind::kBytes) size = PyBytes_Size(value);
        has_key = size > 0 || rules_.missing != MissingRule::kNullOrEmpty;
      }
      const std::string_view all(text, static_cast<size_t>(size));
      if (is_divided) {
        ReadDivided(all, column, out);
      } else if (has_key) {
        out->keys.push_back(Xxh64(all.data(), all.size(), column.seed));
      }
      out->offsets.push_back(static_cast<int64_t>(out->keys.size()));
    }
    return true;
  }

  // The keys of what a separator divides; of nothing there is none.
  static void ReadDivided(std::string_view text, const Column& column, ReadRows* out) {
    while (!text.empty()) {
      const size_t end = std::min(text.find(column.separator), text.size());
      if (end > 0) out->keys.push_back(Xxh64(text.data(), end, column.seed));
      text.remove_prefix(std::min(end + column.separator.size(), text.size()));
    }
  }

  // The same of whole numbers, which may be floats.
  bool ReadWholes(const Values& values, uint64_t seed, size_t num_rows, ReadRows* out) const {
    std::vector<Whole> wholes(num_rows);
    bool any_large = false;
    bool any_negative = false;
    for (size_t row = 0; row < num_rows; ++row) {
      PyObject* value = values.at(row);
      if (value == Py_None) continue;
      const bool is_read = values.kind == Kind::kFloat
                               ? ReadWholeFloat(PyFloat_AsDouble(value), &wholes[row])
                               : ReadWhole(value, &wholes[row]);
      if (!is_read) return false;
      any_large |= wholes[row].is_large;
      any_negative |= !wholes[row].is_large && static_cast<int64_t>(wholes[row].bits) < 0;
    }
    if (any_large && any_negative) return false;  // no column holds both
    const bool has_text = rules_.missing == MissingRule::kNone && rules_.hashes_numbers;
    for (const Whole& whole : wholes) {
      if (!whole.is_there) {
        if (has_text) out->keys.push_back(Xxh64(nullptr, 0, seed));
      } else if (!rules_.hashes_numbers) {
        out->keys.push_back(whole.bits);
      } else {
        out->keys.push_back(any_large ? HashDecimal(whole.bits, seed)
                                      : HashDecimal(static_cast<int64_t>(whole.bits), seed));
      }
      out->offsets.push_back(static_cast<int64_t>(out->keys.size()));
    }
    return true;
  }

  template <typename Out, typename T>
  static nb::object Array(const std::vector<T>& values, std::initializer_list<size_t> shape) {
    static_assert(sizeof(Out) == sizeof(T));
    NewVector<T> made(values.size());
    std::copy(values.begin(), values.end(), made.data.get());
    T* data = made.data.release();
    nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
    return nb::cast(View(reinterpret_cast<Out*>(data), shape, owner));
  }

  nb::object Give(size_t num_rows, const std::vector<double>& numbers,
                  const std::vector<char>& missing, bool any_missing,
                  const std::vector<ReadRows>& tables) const {
    nb::list made;
    for (const ReadRows& table : tables) {
      made.append(nb::make_tuple(Array<int64_t>(table.keys, {table.keys.size()}),
                                 Array<int64_t>(table.offsets, {table.offsets.size()})));
    }
    nb::object flags = nb::none();
    if (any_missing) flags = Array<bool>(missing, {num_rows, dense_.size()});
    return nb::make_tuple(Array<double>(numbers, {num_rows, dense_.size()}), flags, made);
  }

  const Rules rules_;
  const nb::object list_of_;
  const nb::object number_of_;
  const size_t max_rows_;
  std::vector<Column> dense_;
  std::vector<Column> features_;
  std::vector<size_t> table_ends_;
};

}  // namespace

void BindFewRows(nb::module_& module) {
  nb::class_<FewRows>(module, "FewRows")
      .def(
          "__init__",
          [](FewRows* self, bool is_csv, bool hashes_numbers, int missing, nb::object list_of,
             nb::object number_of, size_t max_rows) {
            CheckShape(missing >= 0 && missing <= 2, "FewRows: a rule is 0, 1 or 2");
            const FewRows::Rules rules{is_csv, hashes_numbers, static_cast<MissingRule>(missing)};
            new (self) FewRows(rules, std::move(list_of), std::move(number_of), max_rows);
          },
          nb::kw_only(), nb::arg("is_csv"), nb::arg("hashes_numbers"), nb::arg("missing"),
          nb::arg("list_of"), nb::arg("number_of").none(), nb::arg("max_rows"))
      .def("add_table", &FewRows::AddTable)
      .def("add_dense", &FewRows::AddDense, nb::arg("name"), nb::arg("keeps_nan"),
           nb::arg("may_lack"))
      .def("add_feature", &FewRows::AddFeature, nb::arg("name"), nb::arg("seed"),
           nb::arg("may_lack"), nb::arg("separator"))
      .def("read", &FewRows::Read, nb::arg("given"));
}

}  // namespace hps
