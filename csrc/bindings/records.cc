// Python's view of text_keys.h and signed_log.h in csrc/reader: columns of a record batch to keys,
// bags joined, logarithms of dense values.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/cache_options.h"
#include "reader/signed_log.h"
#include "reader/text_keys.h"

namespace nb = nanobind;

namespace hps {
namespace {

using Bytes = Vector<const uint8_t>;
using Offsets = Vector<const int64_t>;

// A new array that nothing has filled yet.
template <typename T>
struct Fresh {
  explicit Fresh(size_t size) : data(new T[size]) {}

  // The first `count` elements as numpy's, which frees it.
  nb::object Give(size_t count) {
    T* memory = data.release();
    nb::capsule owner(memory, [](void* array) noexcept { delete[] static_cast<T*>(array); });
    return nb::cast(nb::ndarray<nb::numpy, T>(memory, {count}, owner));
  }

  std::unique_ptr<T[]> data;
};

// One column as Python gives it: bytes and offsets, or whole numbers of 64 bits and None; the
// bitmap or None, the first value's bit in it, the seed and the rule.
struct HashedColumnArgs {
  explicit HashedColumnArgs(nb::handle given) {
    const auto tuple = nb::cast<nb::tuple>(given);
    CheckShape(tuple.size() == 6, "hash_columns: a column is a tuple of six");
    if (tuple[1].is_none()) {
      is_unsigned = nb::try_cast<Vector<const uint64_t>>(tuple[0], unsigned_numbers, false);
      if (!is_unsigned) numbers = nb::cast<Offsets>(tuple[0], false);
      asked.num_rows = is_unsigned ? unsigned_numbers.size() : numbers.size();
    } else {
      is_text = true;
      data = nb::cast<Bytes>(tuple[0], false);
      is_long = nb::try_cast<Offsets>(tuple[1], long_offsets, false);
      if (!is_long) short_offsets = nb::cast<Vector<const int32_t>>(tuple[1], false);
      const size_t num_offsets = is_long ? long_offsets.size() : short_offsets.size();
      CheckShape(num_offsets > 0, "hash_columns: a column has one offset at least");
      asked.num_rows = num_offsets - 1;
    }
    asked.first_bit = nb::cast<size_t>(tuple[3]);
    if (!tuple[2].is_none()) {
      validity = nb::cast<Bytes>(tuple[2], false);
      CheckShape(validity.size() >= (asked.first_bit + asked.num_rows + 7) / 8,
                 "hash_columns: the bitmap has too few bits");
      asked.validity = validity.data();
    }
    asked.seed = nb::cast<uint64_t>(tuple[4]);
    const auto number = nb::cast<int>(tuple[5]);
    CheckShape(number >= 0 && number <= 2, "hash_columns: a rule is 0, 1 or 2");
    asked.rule = static_cast<MissingRule>(number);
  }

  size_t num_rows() const { return asked.num_rows; }

  // False if the offsets do not fit the bytes.
  template <typename Visit>
  bool Do(Visit visit) const {
    if (!is_text && is_unsigned) {
      visit(NumberValues<uint64_t>{asked, unsigned_numbers.data()});
      return true;
    }
    if (!is_text) {
      visit(NumberValues<int64_t>{asked, numbers.data()});
      return true;
    }
    return is_long ? DoText(long_offsets.data(), visit) : DoText(short_offsets.data(), visit);
  }

 private:
  template <typename Offset, typename Visit>
  bool DoText(const Offset* offsets, Visit visit) const {
    if (!AreOffsets(offsets, num_rows(), data.size())) return false;
    visit(TextValues<Offset>{asked, reinterpret_cast<const char*>(data.data()), offsets});
    return true;
  }

  HashedColumn asked;
  bool is_text = false;
  Bytes data;
  Offsets long_offsets;
  Vector<const int32_t> short_offsets;
  bool is_long = false;
  Offsets numbers;
  Vector<const uint64_t> unsigned_numbers;
  bool is_unsigned = false;
  Bytes validity;
};

// Keys of a column, and the offsets of its bags; no offsets where each bag has one key.
struct ColumnKeys {
  std::unique_ptr<Fresh<uint64_t>> keys;
  size_t num_keys = 0;
  std::unique_ptr<Fresh<int64_t>> offsets;
};

// False if the offsets do not fit the bytes.
bool HashColumn(const HashedColumnArgs& column, ColumnKeys* out) {
  return column.Do([&](const auto& values) {
    out->keys = std::make_unique<Fresh<uint64_t>>(values.num_rows);
    out->num_keys = values.num_rows;
    if (!AnyWithoutKey(values)) {
      HashEach(values, out->keys->data.get());
      return;
    }
    out->offsets = std::make_unique<Fresh<int64_t>>(values.num_rows + 1);
    out->num_keys = HashPresent(values, out->keys->data.get(), out->offsets->data.get());
  });
}

// Of each column (keys, offsets); None for the offsets where each bag has one key.
nb::list HashColumns(const nb::list& given) {
  std::vector<HashedColumnArgs> columns;
  for (nb::handle column : given) {
    columns.emplace_back(column);
    CheckShape(columns.back().num_rows() == columns.front().num_rows(),
               "hash_columns: the columns differ in rows");
  }
  std::vector<ColumnKeys> found(columns.size());
  bool is_valid = true;
  {
    nb::gil_scoped_release release;
    for (size_t i = 0; is_valid && i < columns.size(); ++i) {
      is_valid = HashColumn(columns[i], &found[i]);
    }
  }
  CheckShape(is_valid, "hash_columns: offsets do not fit the data");
  nb::list result;
  for (ColumnKeys& one : found) {
    nb::object offsets = nb::none();
    if (one.offsets != nullptr) offsets = one.offsets->Give(columns.front().num_rows() + 1);
    result.append(nb::make_tuple(one.keys->Give(one.num_keys), offsets));
  }
  return result;
}

// The bags of (keys, offsets) one after the other: keys as Ids has them, offsets from 0.
nb::tuple JoinBagRuns(const nb::list& given) {
  std::vector<std::pair<Keys, Offsets>> arrays;
  std::vector<BagRun> runs;
  size_t num_bags = 0;
  size_t num_keys = 0;
  for (nb::handle one : given) {
    const auto tuple = nb::cast<nb::tuple>(one);
    CheckShape(tuple.size() == 2, "join_bags: a run is keys and offsets");
    arrays.emplace_back(nb::cast<Keys>(tuple[0], false), nb::cast<Offsets>(tuple[1], false));
    const auto& [keys, offsets] = arrays.back();
    CheckShape(offsets.size() > 0 && AreOffsets(offsets.data(), offsets.size() - 1, keys.size()),
               "join_bags: offsets do not fit the keys");
    runs.push_back({keys.data(), offsets.data(), offsets.size() - 1});
    num_bags += offsets.size() - 1;
    num_keys += static_cast<size_t>(offsets.data()[offsets.size() - 1] - offsets.data()[0]);
  }
  Fresh<int64_t> keys(num_keys);
  Fresh<int64_t> offsets(num_bags + 1);
  {
    nb::gil_scoped_release release;
    JoinBags(runs, reinterpret_cast<uint64_t*>(keys.data.get()), offsets.data.get());
  }
  return nb::make_tuple(keys.Give(num_keys), offsets.Give(num_bags + 1));
}

// Logarithms of dense values, as the parser of criteo takes them.
void SignedLogs(const Vector<const double>& values, const Vector<float>& out) {
  CheckShape(values.size() == out.size(), "signed_log1p: the arrays differ in length");
  nb::gil_scoped_release release;
  for (size_t i = 0; i < values.size(); ++i) out.data()[i] = SignedLog(values.data()[i]);
}

}  // namespace

void BindRecords(nb::module_& module) {
  module.def("hash_columns", &HashColumns, nb::arg("columns"));
  module.def("join_bags", &JoinBagRuns, nb::arg("runs"));
  module.def("signed_log1p", &SignedLogs, nb::arg("values").noconvert(),
             nb::arg("out").noconvert());
}

}  // namespace hps
