// Python's view of csrc/reader: TextParser, BatchLines, the collecting of features, and the hash of
// string columns.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/reader_arrays.h"
#include "bindings/translate.h"
#include "common/check.h"
#include "common/hash.h"
#include "reader/batch_lines.h"
#include "reader/sample_rule.h"
#include "reader/text_parser.h"
#include "reader/token_parser.h"

namespace nb = nanobind;

namespace hps {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ErrorTuple = std::optional<std::tuple<int64_t, uint64_t, nb::bytes>>;

TextFormat FormatOf(const std::string& name) {
  if (name == "criteo") return TextFormat::kCriteo;
  if (name == "libsvm") return TextFormat::kLibsvm;
  if (name == "libffm") return TextFormat::kLibffm;
  if (name != "slots") ThrowIfError(Status(StatusCode::kConfig, "no text format " + name));
  return TextFormat::kSlots;
}

// Refuses to take examples [first, last) of `count` where only `num_ready` are there.
void CheckTake(size_t count, size_t first, size_t last, size_t num_ready) {
  if (count > num_ready || first > last || last > count) {
    ThrowIfError(Status(StatusCode::kConfig, "take: asked for examples " + std::to_string(first) +
                                                 " to " + std::to_string(last) + " of " +
                                                 std::to_string(count) + "; " +
                                                 std::to_string(num_ready) + " are ready"));
  }
}

nb::tuple Take(TextParser& parser, size_t count, size_t first, size_t last) {
  CheckTake(count, first, last, parser.num_ready());
  TextBatch batch;
  {
    nb::gil_scoped_release release;
    batch = parser.Take(count, first, last);
  }
  nb::list tables;
  for (TableIds& table : batch.tables) tables.append(ToTuple(std::move(table)));
  const size_t num_examples = batch.num_examples;
  return nb::make_tuple(
      ToNumpy<float>(std::move(batch.labels), num_examples, 0, 1),
      ToNumpy<float>(std::move(batch.dense), num_examples, parser.schema().num_dense, 2), tables,
      nb::make_tuple(batch.file, batch.byte, batch.line, batch.num_bad));
}

std::tuple<int64_t, uint64_t, uint64_t> TakeLines(BatchLines& lines, TextParser& parser,
                                                  size_t count, size_t first, size_t last) {
  CheckTake(count, first, last, lines.num_ready());
  const TextSchema& schema = parser.schema();
  const bool takes_all = !schema.skip_bad_lines && schema.sample.keeps_all();
  if (count == 0 || parser.num_ready() > 0 || !takes_all) {
    ThrowIfError(Status(StatusCode::kConfig,
                        "take: at least one line, for a parser without examples that skips none"));
  }
  nb::gil_scoped_release release;
  const LogPlace place = lines.Take(count, first, last, &parser);
  return {place.file, place.byte, place.line};
}

template <typename Taker>
size_t Feed(Taker& taker, const Bytes& data, bool at_end) {
  if (data.size() >= (uint64_t{1} << 32)) {
    ThrowIfError(Status(StatusCode::kConfig, "feed: a piece of text must be under 4 GiB"));
  }
  nb::gil_scoped_release release;
  return taker.Feed(reinterpret_cast<const char*>(data.data()), data.size(), at_end);
}

ErrorTuple ErrorOf(const TextParser& parser) {
  const TextError* error = parser.error();
  if (error == nullptr) return std::nullopt;
  return std::make_tuple(error->file, error->line,
                         nb::bytes(error->reason.data(), error->reason.size()));
}

// Names of the features in the whole lines of `data`; lines, bad lines and the first error in it.
nb::tuple Collect(const TextSchema& schema, const Bytes& data) {
  std::set<std::string, std::less<>> names;
  ExampleBlock block;
  {
    nb::gil_scoped_release release;
    CollectFeatures(schema, reinterpret_cast<const char*>(data.data()), data.size(), &names,
                    &block);
  }
  nb::list list;
  for (const std::string& name : names) list.append(nb::bytes(name.data(), name.size()));
  nb::object error = nb::none();
  if (block.error_line != 0) {
    error = nb::make_tuple(block.error_line, nb::bytes(block.error.data(), block.error.size()));
  }
  return nb::make_tuple(list, block.num_lines, error);
}

// Whether each example is kept, by the hash of its content and whether its label is 0.
void ChooseRows(const SampleRule& rule,
                nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig> hashes,
                nb::ndarray<const bool, nb::ndim<1>, nb::c_contig> is_negative,
                nb::ndarray<bool, nb::ndim<1>, nb::c_contig> out) {
  if (is_negative.size() != hashes.size() || out.size() != hashes.size()) {
    ThrowIfError(Status(StatusCode::kConfig, "choose: the arrays differ in length"));
  }
  nb::gil_scoped_release release;
  for (size_t i = 0; i < hashes.size(); ++i) {
    out.data()[i] = rule.Keeps(hashes.data()[i], is_negative.data()[i]);
  }
}

SampleRule MakeSampleRule(double low, double high, double negative_rate) {
  const bool valid = low >= 0 && low < high && high <= 1;
  if (!valid || !(negative_rate > 0 && negative_rate <= 1)) {
    ThrowIfError(Status(StatusCode::kConfig, "SampleRule: a range or a rate outside [0, 1]"));
  }
  return {low, high, negative_rate};
}

void HashStrings(const Bytes& data, nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig> offsets,
                 uint64_t seed, nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig> out) {
  const size_t num_strings = offsets.size() == 0 ? 0 : offsets.size() - 1;
  const int64_t* places = offsets.data();
  bool valid = out.size() == num_strings;
  for (size_t i = 0; valid && i < num_strings; ++i) valid = places[i] <= places[i + 1];
  if (num_strings > 0) {
    valid = valid && places[0] >= 0 && static_cast<size_t>(places[num_strings]) <= data.size();
  }
  if (!valid) {
    ThrowIfError(Status(StatusCode::kConfig, "hash_strings: offsets do not fit the data"));
  }
  nb::gil_scoped_release release;
  for (size_t i = 0; i < num_strings; ++i) {
    out.data()[i] =
        Xxh64(data.data() + places[i], static_cast<size_t>(places[i + 1] - places[i]), seed);
  }
}

// What a parser is made from.
void SetDenseFields(TextSchema& schema, const std::vector<nb::bytes>& names) {
  schema.dense_fields.clear();
  for (const nb::bytes& name : names) {
    schema.dense_fields.push_back({std::string(name.c_str(), name.size()), 0, 0});
  }
}

void SetIndexRanges(TextSchema& schema,
                    const std::vector<std::tuple<uint64_t, uint64_t, uint32_t>>& ranges) {
  schema.index_ranges.clear();
  for (const auto& [first, last, target] : ranges) {
    schema.index_ranges.push_back({first, last, target});
  }
}

void SetSlotLayout(TextSchema& schema, bool is_slot_key) {
  schema.layout = is_slot_key ? SlotLayout::kSlotKey : SlotLayout::kKeySlot;
}

void BindSchema(nb::module_& module) {
  nb::class_<SampleRule>(module, "SampleRule")
      .def(
          "__init__",
          [](SampleRule* self, double low, double high, double negative_rate) {
            new (self) SampleRule(MakeSampleRule(low, high, negative_rate));
          },
          nb::arg("low"), nb::arg("high"), nb::arg("negative_rate"))
      .def("choose", &ChooseRows, nb::arg("hashes").noconvert(), nb::arg("is_negative").noconvert(),
           nb::arg("out").noconvert());
  nb::class_<TextSchema>(module, "TextSchema")
      .def(
          "__init__",
          [](TextSchema* self, const std::string& format,
             const std::vector<std::tuple<nb::bytes, uint64_t, uint32_t>>& columns,
             std::vector<uint32_t> table_sizes) {
            const TextFormat kind = FormatOf(format);
            new (self) TextSchema();
            self->format = kind;
            for (const auto& [name, seed, index] : columns) {
              self->columns.push_back({std::string(name.c_str(), name.size()), seed, index});
            }
            self->table_sizes = std::move(table_sizes);
          },
          nb::arg("format"), nb::arg("columns"), nb::arg("table_sizes"))
      .def_rw("num_dense", &TextSchema::num_dense)
      .def_rw("num_categories", &TextSchema::num_categories)
      .def_rw("signed_log", &TextSchema::signed_log)
      .def_rw("hash_keys", &TextSchema::hash_keys)
      .def_rw("skip_bad_lines", &TextSchema::skip_bad_lines)
      .def_rw("refuse_unknown", &TextSchema::refuse_unknown)
      .def_rw("sample", &TextSchema::sample)
      .def_rw("needs_labels", &TextSchema::needs_labels)
      .def("set_dense_fields", &SetDenseFields, nb::arg("names"))
      .def("set_index_ranges", &SetIndexRanges, nb::arg("ranges"))
      .def("set_slot_layout", &SetSlotLayout, nb::arg("is_slot_key"))
      .def("collect_features", &Collect, nb::arg("data").noconvert());
}

}  // namespace

void BindReader(nb::module_& module) {
  BindSchema(module);
  nb::class_<TextParser>(module, "TextParser")
      .def(
          "__init__",
          [](TextParser* self, const TextSchema& schema, std::shared_ptr<ThreadPool> threads) {
            size_t num_columns = 0;
            for (const uint32_t size : schema.table_sizes) num_columns += size;
            bool valid = num_columns == schema.columns.size();
            valid = valid && schema.is_sound();
            for (const TextColumn& column : schema.columns) {
              valid = valid && (!schema.fixed() || column.index < schema.num_categories);
            }
            if (!valid)
              ThrowIfError(Status(StatusCode::kConfig, "TextParser: schema does not fit"));
            new (self) TextParser(schema, std::move(threads));
          },
          nb::arg("schema"), nb::arg("threads"))
      .def("start_file", &TextParser::StartFile, nb::arg("file"), nb::arg("byte"), nb::arg("line"))
      .def("feed", &Feed<TextParser>, nb::arg("data").noconvert(), nb::arg("at_end"))
      .def("take", &Take, nb::arg("count"), nb::arg("first"), nb::arg("last"))
      .def_prop_ro("num_ready", &TextParser::num_ready)
      .def_prop_ro("num_bad", &TextParser::num_bad)
      .def_prop_ro("error", &ErrorOf);
  nb::class_<BatchLines>(module, "BatchLines")
      .def(
          "__init__",
          [](BatchLines* self, const std::string& format, const SampleRule& sample) {
            new (self) BatchLines(FormatOf(format), sample);
          },
          nb::arg("format"), nb::arg("sample"))
      .def("start_file", &BatchLines::StartFile, nb::arg("file"), nb::arg("byte"), nb::arg("line"))
      .def("feed", &Feed<BatchLines>, nb::arg("data").noconvert(), nb::arg("at_end"))
      .def("take", &TakeLines, nb::arg("parser"), nb::arg("count"), nb::arg("first"),
           nb::arg("last"))
      .def_prop_ro("num_ready", &BatchLines::num_ready);
  module.attr("MISSING_DENSE") = kMissingDense;
  module.def("hash_strings", &HashStrings, nb::arg("data").noconvert(),
             nb::arg("offsets").noconvert(), nb::arg("seed"), nb::arg("out").noconvert());
}

}  // namespace hps
