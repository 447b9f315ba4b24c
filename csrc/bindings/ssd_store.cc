// SsdStore for Python: arrays in and out, the GIL released around every call that works on data.
//
// Above it: hps/ssd_store/store.py. Below it: csrc/ssd_store.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/translate.h"
#include "files/held_folder.h"
#include "files/posix_file.h"
#include "ssd_store/changes.h"
#include "ssd_store/record_marks.h"
#include "ssd_store/scan.h"
#include "ssd_store/store.h"
#include "ssd_store/verify.h"

namespace nb = nanobind;

namespace hps {
namespace {

using Rows = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstKeys = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Of each record its segment's number and its own.
using Places = nb::ndarray<uint64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using ConstPlaces = nb::ndarray<const uint64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
static_assert(sizeof(RecordPlace) == 2 * sizeof(uint64_t));
// name, dim, optimizer's number, initializer, its numbers, row_bytes, whether it has statistics,
// whether its weights are bfloat16
using SchemaTuple =
    std::tuple<std::string, uint32_t, uint32_t, std::string, double, double, uint32_t, bool, bool>;

void Require(bool condition, const std::string& message) {
  if (!condition) ThrowIfError(Status(StatusCode::kConfig, message));
}

TableSchema SchemaFrom(const SchemaTuple& fields) {
  TableSchema schema;
  schema.name = std::get<0>(fields);
  schema.dim = std::get<1>(fields);
  schema.kind = static_cast<OptimizerKind>(std::get<2>(fields));
  schema.initializer = std::get<3>(fields);
  schema.initializer_numbers[0] = std::get<4>(fields);
  schema.initializer_numbers[1] = std::get<5>(fields);
  schema.row_bytes = std::get<6>(fields);
  schema.has_statistics = std::get<7>(fields);
  schema.is_narrow = std::get<8>(fields);
  return schema;
}

SchemaTuple TupleFrom(const TableSchema& schema) {
  return {schema.name,
          schema.dim,
          static_cast<uint32_t>(schema.kind),
          schema.initializer,
          schema.initializer_numbers[0],
          schema.initializer_numbers[1],
          schema.row_bytes,
          schema.has_statistics,
          schema.is_narrow};
}

std::vector<SchemaTuple> SchemasOf(const SsdStore& store) {
  std::vector<SchemaTuple> tables;
  for (size_t i = 0; i < store.num_tables(); ++i) {
    tables.push_back(TupleFrom(store.table(i).schema()));
  }
  return tables;
}

std::unique_ptr<SsdStore> OpenStore(const std::string& path, const std::vector<SchemaTuple>& tables,
                                    nb::dict settings, SsdStore* beside) {
  StoreOptions options;
  options.beside = beside;
  options.shares_index = nb::cast<bool>(settings["shares_index"]);
  options.path = path;
  for (const SchemaTuple& fields : tables) options.tables.push_back(SchemaFrom(fields));
  options.segment_bytes = nb::cast<uint64_t>(settings["segment_bytes"]);
  options.keep_last = nb::cast<uint32_t>(settings["keep_last"]);
  options.num_threads = nb::cast<int>(settings["threads"]);
  options.snapshot_rows = nb::cast<uint64_t>(settings["snapshot_rows"]);
  options.has_seed = !nb::object(settings["seed"]).is_none();
  if (options.has_seed) options.seed = nb::cast<uint64_t>(settings["seed"]);
  options.read_only = nb::cast<bool>(settings["read_only"]);
  options.has_rows = nb::cast<bool>(settings["rows"]);
  options.direct_io = nb::cast<bool>(settings["direct_io"]);
  options.checkpoint.tag = nb::cast<std::string>(settings["tag"]);
  options.checkpoint.id = nb::cast<uint64_t>(settings["id"]);
  options.compaction_threshold = nb::cast<double>(settings["compaction_threshold"]);
  options.compaction_bytes_per_second = nb::cast<uint64_t>(settings["compaction_bytes_per_second"]);
  options.compacts_in_background = nb::cast<bool>(settings["compact_in_background"]);
  std::unique_ptr<SsdStore> store;
  const nb::gil_scoped_release release;
  ThrowIfError(SsdStore::Open(PosixFileSystem(), options, &store));
  return store;
}

const TableStore& TableOf(const SsdStore& store, size_t table) {
  Require(table < store.num_tables(), "there is no table number " + std::to_string(table));
  return store.table(table);
}

void CheckWidth(const std::string& name, size_t row_bytes, uint32_t expected) {
  Require(row_bytes == expected, name + ": rows have " + std::to_string(row_bytes) + " bytes, " +
                                     std::to_string(expected) + " expected");
}

void CheckRows(const SsdStore& store, size_t table, size_t row_bytes) {
  const TableSchema& schema = TableOf(store, table).schema();
  CheckWidth("table '" + schema.name + "'", row_bytes, schema.row_bytes);
}

void CheckLengths(size_t keys, size_t other, const char* name) {
  Require(keys == other, std::string(name) + " has length " + std::to_string(other) + ", keys " +
                             std::to_string(keys));
}

void LoadRows(SsdStore& store, SsdStore* beside, bool shares_index) {
  ThrowIfError(store.LoadRows(beside, shares_index));
}

void Append(SsdStore& store, size_t table, ConstRows rows) {
  CheckRows(store, table, rows.shape(1));
  const nb::gil_scoped_release release;
  ThrowIfError(store.Append(table, reinterpret_cast<const char*>(rows.data()), rows.shape(0)));
}

void Fetch(const SsdStore& store, size_t table, ConstKeys keys, Rows rows, Flags found) {
  CheckRows(store, table, rows.shape(1));
  CheckLengths(keys.shape(0), rows.shape(0), "rows");
  ThrowIfError(store.CheckReadable());
  CheckLengths(keys.shape(0), found.shape(0), "found");
  const nb::gil_scoped_release release;
  const Status fetched = store.table(table).Fetch(
      keys.data(), keys.shape(0), reinterpret_cast<char*>(rows.data()), found.data());
  ThrowIfError(store.CheckReadable());  // a restore that fails meanwhile empties the table
  ThrowIfError(fetched);
}

void SetPeriod(SsdStore& store, uint32_t period, bool is_change,
               const std::vector<uint32_t>& horizons) {
  ThrowIfError(store.SetPeriod(period, is_change, horizons));
}

void CountDeaths(const SsdStore& store, size_t table, uint32_t period, Counts counts) {
  const TableStore& asked = TableOf(store, table);
  ThrowIfError(store.CheckReadable());
  Require(counts.shape(0) > 1, "two counts or more are needed");
  const nb::gil_scoped_release release;
  asked.CountDeaths(period, counts.data(), counts.shape(0));
}

bool HasDeaths(const SsdStore& store, size_t table) {
  return TableOf(store, table).schema().has_deaths;
}

std::unique_ptr<Changes> ChangesSince(SsdStore& store, size_t table, uint32_t period,
                                      const SsdStore& before, size_t before_table,
                                      uint32_t before_period) {
  const TableAtCheckpoint now{&TableOf(store, table), period};
  const TableAtCheckpoint old{&TableOf(before, before_table), before_period};
  auto changes = std::make_unique<Changes>();
  ThrowIfError(store.CheckReadable());
  ThrowIfError(before.CheckReadable());
  ThrowIfError(FindChanges(old, now, store.cache(), changes.get()));
  return changes;
}

// As bytes of uint64.
nb::bytes OtherKeys(const Changes& changes) {
  return nb::bytes(changes.others.data(), changes.others.size() * sizeof(uint64_t));
}

void FindPlaces(const SsdStore& store, size_t table, ConstKeys keys, Places places) {
  const TableStore& asked = TableOf(store, table);
  ThrowIfError(store.CheckReadable());
  CheckLengths(keys.shape(0), places.shape(0), "places");
  const nb::gil_scoped_release release;
  asked.Places(keys.data(), keys.shape(0), reinterpret_cast<RecordPlace*>(places.data()));
}

std::vector<uint64_t> SegmentNumbers(const SsdStore& store, size_t table) {
  std::vector<uint64_t> numbers;
  for (const auto& segment : TableOf(store, table).Segments()) {
    numbers.push_back(segment->info.number);
  }
  return numbers;
}

void MarksOf(ConstRows rows, Counts marks) {
  CheckLengths(rows.shape(0), marks.shape(0), "marks");
  const nb::gil_scoped_release release;
  for (size_t i = 0; i < rows.shape(0); ++i) {
    marks.data()[i] = RecordMarks::Of(rows.data() + i * rows.shape(1), rows.shape(1));
  }
}

void NoteMarks(RecordMarks& own, ConstPlaces places, ConstKeys marks) {
  CheckLengths(marks.shape(0), places.shape(0), "places");
  const nb::gil_scoped_release release;
  const auto* records = reinterpret_cast<const RecordPlace*>(places.data());
  if (!own.Note(records, places.shape(0), marks.data())) throw std::bad_alloc();
}

void FindMarks(const RecordMarks& own, ConstPlaces places, Counts marks) {
  CheckLengths(marks.shape(0), places.shape(0), "places");
  const nb::gil_scoped_release release;
  own.Find(reinterpret_cast<const RecordPlace*>(places.data()), places.shape(0), marks.data());
}

void Contains(const SsdStore& store, size_t table, ConstKeys keys, Flags found) {
  const TableStore& asked = TableOf(store, table);
  ThrowIfError(store.CheckReadable());
  CheckLengths(keys.shape(0), found.shape(0), "found");
  const nb::gil_scoped_release release;
  asked.Contains(keys.data(), keys.shape(0), found.data());
  ThrowIfError(store.CheckReadable());
}

void Erase(SsdStore& store, size_t table, ConstKeys keys, Flags found) {
  TableOf(store, table);
  CheckLengths(keys.shape(0), found.shape(0), "found");
  const nb::gil_scoped_release release;
  ThrowIfError(store.Erase(table, keys.data(), keys.shape(0), found.data()));
}

void Compact(SsdStore& store, size_t first, size_t end) {
  Require(first <= end && end <= store.num_tables(), "there are no such tables");
  ThrowIfError(store.Compact(first, end));
}

std::map<std::string, uint64_t> SpaceOfCompact(const SsdStore& store, size_t first, size_t end) {
  Require(first <= end && end <= store.num_tables(), "there are no such tables");
  const CompactionSpace space = store.SpaceOfCompact(first, end);
  return {{"written_bytes", space.written_bytes},
          {"freed_bytes", space.freed_bytes},
          {"held_bytes", space.held_bytes}};
}

uint64_t Next(TableScan& scan, Rows rows, std::optional<Places> places) {
  CheckWidth("a scan", rows.shape(1), scan.row_bytes());
  if (places) CheckLengths(rows.shape(0), places->shape(0), "places");
  auto* const records = places ? reinterpret_cast<RecordPlace*>(places->data()) : nullptr;
  uint64_t count = 0;
  const nb::gil_scoped_release release;
  ThrowIfError(scan.Next(reinterpret_cast<char*>(rows.data()), rows.shape(0), &count, records));
  return count;
}

nb::dict DictFrom(const CheckpointSummary& summary) {
  nb::dict result;
  result["id"] = summary.id;
  result["tag"] = summary.tag.empty() ? nb::none() : nb::object(nb::str(summary.tag.c_str()));
  result["created"] = summary.created;
  result["current"] = summary.is_current;
  result["rows"] = summary.num_rows;
  result["segments"] = summary.num_segments;
  result["bytes"] = summary.bytes;
  return result;
}

nb::dict MakeCheckpoint(SsdStore& store, const std::string& tag, nb::dict extras, nb::handle taken,
                        const std::vector<double>& promoted) {
  std::vector<NamedBlob> blobs;
  for (const auto& [name, value] : extras) {
    const nb::bytes bytes = nb::cast<nb::bytes>(value);
    blobs.push_back({nb::cast<std::string>(name), std::string(bytes.c_str(), bytes.size())});
  }
  CheckpointSummary summary;
  std::exception_ptr raised;
  const auto tell = [&] {
    const nb::gil_scoped_acquire acquire;
    try {
      if (!taken.is_none()) taken();
    } catch (...) {  // the checkpoint is made all the same
      raised = std::current_exception();
    }
  };
  {
    const nb::gil_scoped_release release;
    ThrowIfError(store.MakeCheckpoint(tag, blobs, &summary, tell, promoted));
  }
  if (raised) std::rethrow_exception(raised);
  return DictFrom(summary);
}

nb::list Checkpoints(const SsdStore& store) {
  std::vector<CheckpointSummary> summaries;
  {
    const nb::gil_scoped_release release;
    summaries = store.Checkpoints();
  }
  nb::list result;
  for (const CheckpointSummary& summary : summaries) result.append(DictFrom(summary));
  return result;
}

nb::dict Extras(const SsdStore& store, const std::string& tag, uint64_t id,
                const std::optional<std::set<std::string>>& names) {
  std::vector<NamedBlob> blobs;
  {
    const nb::gil_scoped_release release;
    ThrowIfError(store.Extras({tag, id}, &blobs, names ? &*names : nullptr));
  }
  nb::dict result;
  for (const NamedBlob& blob : blobs) {
    result[blob.name.c_str()] = nb::bytes(blob.bytes.data(), blob.bytes.size());
  }
  return result;
}

nb::dict ExtraBytes(const SsdStore& store, const std::string& tag, uint64_t id) {
  std::vector<std::pair<std::string, uint64_t>> bytes;
  {
    const nb::gil_scoped_release release;
    ThrowIfError(store.ExtraBytes({tag, id}, &bytes));
  }
  nb::dict result;
  for (const auto& [name, length] : bytes) result[name.c_str()] = length;
  return result;
}

nb::dict Clone(SsdStore& store, const std::string& target, bool may_link) {
  CloneSummary summary;
  {
    const nb::gil_scoped_release release;
    ThrowIfError(store.Clone(target, may_link, &summary));
  }
  nb::dict result = DictFrom(summary.checkpoint);
  result["files_linked"] = summary.files_linked;
  result["files_copied"] = summary.files_copied;
  result["bytes_copied"] = summary.bytes_copied;
  return result;
}

std::vector<std::string> DeleteCheckpoint(SsdStore& store, const std::string& tag, uint64_t id) {
  std::vector<std::string> holders;
  ThrowIfError(store.DeleteCheckpoint({tag, id}, &holders));
  return holders;
}

std::map<std::string, uint64_t> TableStats(const SsdStore& store, size_t table) {
  const TableFigures figures = TableOf(store, table).Figures();
  return {{"rows", figures.num_rows},
          {"segments", figures.num_segments},
          {"live_bytes", figures.live_bytes - figures.expired_bytes},
          {"segment_bytes", figures.segment_bytes},
          {"index_bytes", figures.index_bytes}};
}

std::map<std::string, uint64_t> StoreStats(const SsdStore& store) {
  const StoreFigures figures = store.Figures();
  return {{"bytes_read", figures.bytes_read},
          {"bytes_written", figures.bytes_written},
          {"files_bytes", figures.files_bytes},
          {"checkpoint_only_bytes", figures.checkpoint_only_bytes},
          {"snapshot_bytes", figures.snapshot_bytes},
          {"bytes_appended", figures.bytes_appended},
          {"bytes_compacted", figures.bytes_compacted},
          {"bytes_overhead", figures.bytes_overhead},
          {"compactions", figures.compactions},
          {"compaction_failures", figures.compaction_failures},
          {"append_waits", figures.append_waits}};
}

using DamagesByFile = std::vector<std::pair<std::string, std::string>>;

DamagesByFile ByFile(const std::vector<Damage>& damages) {
  DamagesByFile result;
  for (const Damage& damage : damages) result.emplace_back(damage.file, damage.status.message());
  return result;
}

DamagesByFile Verify(const std::string& path) {
  std::vector<Damage> damages;
  ThrowIfError(VerifyStore(PosixFileSystem(), path, &damages));
  return ByFile(damages);
}

DamagesByFile VerifyOpen(const SsdStore& store) {
  std::vector<Damage> damages;
  ThrowIfError(store.Verify(&damages));
  return ByFile(damages);
}

std::string Foreign(const std::string& path, const std::vector<std::string>& own) {
  std::string found;
  ThrowIfError(FindForeign(PosixFileSystem(), path, own, &found));
  return found;
}

std::unique_ptr<HeldFolder> HoldFolder(const std::string& path) {
  std::unique_ptr<HeldFolder> folder;
  ThrowIfError(HeldFolder::Open(AbsolutePath(path), &folder));
  return folder;
}

bool TryLock(HeldFolder& folder) {
  bool taken = false;
  ThrowIfError(folder.TryLock(&taken));
  return taken;
}

void BindHeldFolder(nb::module_& module) {
  nb::class_<HeldFolder>(module, "HeldFolder")
      .def_static("open", &HoldFolder, nb::arg("path"))
      .def_prop_ro("path", &HeldFolder::path)
      .def_prop_ro("descriptor", &HeldFolder::descriptor)
      .def("try_lock", &TryLock)
      .def("guard", &HeldFolder::Guard, nb::arg("descriptor"), nb::arg("path"))
      .def("check", [](const HeldFolder& folder) { ThrowIfError(folder.Check()); });
}

void BindRecordMarks(nb::module_& module) {
  module.def("start_writeback", &StartWriteback, nb::arg("descriptor"), nb::arg("offset"),
             nb::arg("size"), nb::call_guard<nb::gil_scoped_release>());
  module.def("marks_of", &MarksOf, nb::arg("rows").noconvert(), nb::arg("marks").noconvert());
  nb::class_<RecordMarks>(module, "RecordMarks")
      .def(nb::init<>())
      .def_prop_ro("memory_bytes", &RecordMarks::memory_bytes)
      .def("note", &NoteMarks, nb::arg("places").noconvert(), nb::arg("marks").noconvert())
      .def("find", &FindMarks, nb::arg("places").noconvert(), nb::arg("marks").noconvert())
      .def("keep", &RecordMarks::Keep, nb::arg("segments"));
}

void BindChanges(nb::module_& module, nb::class_<SsdStore>* store) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Changes>(module, "SsdChanges").def_prop_ro("others", &OtherKeys);
  BindRecordMarks(module);
  (*store)
      .def("changes_since", &ChangesSince, nb::arg("table"), nb::arg("period"), nb::arg("before"),
           nb::arg("before_table"), nb::arg("before_period"), Release())
      .def(
          "scan_changes",
          [](SsdStore& store, const Changes& changes) {
            return std::make_unique<TableScan>(store.cache(), changes.rows);
          },
          nb::arg("changes"), nb::keep_alive<0, 1>(), Release())
      .def("segments", &SegmentNumbers, nb::arg("table"), Release())
      .def("places", &FindPlaces, nb::arg("table"), nb::arg("keys").noconvert(),
           nb::arg("places").noconvert());
}

void BindFunctions(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  module.def("verify_store", &Verify, nb::arg("path"), Release());
  module.def("find_foreign", &Foreign, nb::arg("path"), nb::arg("own"), Release());
  module.def(
      "crc32c",
      [](nb::bytes data, uint32_t seed) { return Crc32c(seed, data.c_str(), data.size()); },
      nb::arg("data"), nb::arg("seed") = 0);
}

}  // namespace

void BindSsdStore(nb::module_& module) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  BindHeldFolder(module);
  BindFunctions(module);
  nb::class_<TableScan>(module, "SsdScan")
      .def_prop_ro("num_rows", &TableScan::num_rows)
      .def("next", &Next, nb::arg("rows").noconvert(),
           nb::arg("places").noconvert().none() = nb::none());
  nb::class_<SsdStore> store(module, "SsdStore");
  BindChanges(module, &store);
  store
      .def_static("open", &OpenStore, nb::arg("path"), nb::arg("tables"), nb::arg("settings"),
                  nb::arg("beside").none() = nb::none())
      .def_prop_ro("seed", &SsdStore::seed)
      .def_prop_ro("id", &SsdStore::id)
      .def_prop_ro("descriptor", &SsdStore::folder_descriptor)
      .def("check_held", [](const SsdStore& store) { ThrowIfError(store.CheckHeld()); })
      .def("load_rows", &LoadRows, nb::arg("beside").none(), nb::arg("shares_index"), Release())
      .def_prop_ro("num_loads", &SsdStore::num_loads)
      .def_prop_ro("tables", &SchemasOf)
      .def("append", &Append, nb::arg("table"), nb::arg("rows").noconvert())
      .def("fetch", &Fetch, nb::arg("table"), nb::arg("keys").noconvert(),
           nb::arg("rows").noconvert(), nb::arg("found").noconvert())
      .def("contains", &Contains, nb::arg("table"), nb::arg("keys").noconvert(),
           nb::arg("found").noconvert())
      .def("erase", &Erase, nb::arg("table"), nb::arg("keys").noconvert(),
           nb::arg("found").noconvert())
      .def(
          "num_rows",
          [](const SsdStore& store, size_t table) {
            ThrowIfError(store.CheckReadable());
            return TableOf(store, table).num_rows();
          },
          Release())
      .def(
          "scan",
          [](SsdStore& store, size_t table) {
            ThrowIfError(store.CheckReadable());
            return std::make_unique<TableScan>(store.cache(), TableOf(store, table).Snapshot());
          },
          nb::keep_alive<0, 1>(), Release())
      .def("set_period", &SetPeriod, nb::arg("period"), nb::arg("is_change"), nb::arg("horizons"),
           Release())
      .def("count_deaths", &CountDeaths, nb::arg("table"), nb::arg("period"),
           nb::arg("counts").noconvert())
      .def("has_deaths", &HasDeaths, nb::arg("table"))
      .def("compact", &Compact, nb::arg("first"), nb::arg("end"), Release())
      .def("space_of_compact", &SpaceOfCompact, nb::arg("first"), nb::arg("end"), Release())
      .def("checkpoint", &MakeCheckpoint, nb::arg("tag"), nb::arg("extras"),
           nb::arg("taken") = nb::none(), nb::arg("promoted") = std::vector<double>())
      .def(
          "restore",
          [](SsdStore& store, const std::string& tag, uint64_t id) {
            ThrowIfError(store.Restore({tag, id}));
          },
          nb::arg("tag"), nb::arg("id"), Release())
      .def("delete_checkpoint", &DeleteCheckpoint, nb::arg("tag"), nb::arg("id"), Release())
      .def("checkpoints", &Checkpoints)
      .def("extras", &Extras, nb::arg("tag"), nb::arg("id"), nb::arg("names").none())
      .def("extra_bytes", &ExtraBytes, nb::arg("tag"), nb::arg("id"))
      .def("clone", &Clone, nb::arg("target"), nb::arg("may_link"))
      .def("table_stats", &TableStats, nb::arg("table"), Release())
      .def("stats", &StoreStats, Release())
      .def("verify", &VerifyOpen, Release())
      .def("close", &SsdStore::Close, Release());
}

}  // namespace hps
