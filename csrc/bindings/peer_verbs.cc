// hps._C.PeerVerbs; see peer_verbs.h.
#include "bindings/peer_verbs.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/bind.h"
#include "bindings/translate.h"

using namespace nb::literals;

namespace hps {
namespace {

template <class T>
T* At(uint64_t address, int64_t start = 0) {
  return reinterpret_cast<T*>(address) + start;
}

int64_t RowBytes(WireFormat wire, int64_t dim) {
  switch (wire) {
    case WireFormat::kFloat32:
      return 4 * dim;
    case WireFormat::kFloat16:
    case WireFormat::kBfloat16:
      return 2 * dim;
    case WireFormat::kInt8:
      return 4 + dim;
  }
  return 0;
}

WireFormat WireOf(int32_t number) {
  CheckShape(number >= 0 && number <= static_cast<int32_t>(WireFormat::kInt8),
             "the number of a format is needed");
  return static_cast<WireFormat>(number);
}

// Calls run(number of the run, table, first row of the table in it, rows, bytes of the message
// before it) for each, rank after rank.
template <class Run>
int64_t ForRuns(const PeerVerbs::Counts& counts, const std::vector<int64_t>& dims, WireFormat wire,
                Run run) {
  const size_t num_tables = dims.size();
  CheckShape(counts.shape(1) == num_tables, "counts [ranks, tables] are needed");
  std::vector<int64_t> first(num_tables);
  int64_t bytes = 0;
  for (size_t number = 0; number < counts.shape(0) * num_tables; ++number) {
    const size_t table = number % num_tables;
    const int64_t count = counts.data()[number];
    CheckShape(count >= 0, "counts are needed");
    run(number, table, first[table], count, bytes);
    first[table] += count;
    bytes += count * RowBytes(wire, dims[table]);
  }
  return bytes;
}

std::vector<int64_t> DimsOf(const std::vector<SentTable*>& tables) {
  std::vector<int64_t> dims;
  for (const SentTable* one : tables) dims.push_back(one->dim);
  return dims;
}

}  // namespace

std::unique_ptr<TableBlock> PeerVerbs::Divide(const nb::list& plans, const Addresses& scratch,
                                              uint64_t ids, uint64_t told_keys,
                                              uint64_t told_starts, uint64_t stream) {
  CheckShape(scratch.size() == 3, "owners, sorted owners and positions are needed");
  auto block = Begin<DivideArgs>(plans.size(), 2, stream);
  auto* const args = block->args<DivideArgs>();
  int64_t position = 0;
  uint32_t owner = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto& plan = nb::cast<const DevicePlanState&>(plans[i]);
    const int64_t length = plan.num_occurrences;
    block->SetItems(0, i, length);
    block->SetItems(1, i, std::max<int64_t>(length, num_ranks_ + 1));
    args[i] = {plan.batch,
               At<uint32_t>(scratch[0], position),
               At<const uint32_t>(scratch[1], position),
               At<const int64_t>(scratch[2], position),
               position,
               owner,
               num_ranks_,
               num_virtual_,
               At<uint32_t>(ids, position),
               At<uint64_t>(told_keys, position),
               At<int64_t>(told_starts, static_cast<int64_t>(i) * (num_ranks_ + 1))};
    position += length;
    owner += num_ranks_ + 1;
  }
  return block;
}

std::unique_ptr<TableBlock> PeerVerbs::Judge(const std::vector<SentTable*>& tables,
                                             uint32_t ordinary, uint32_t limit, uint64_t verdicts,
                                             uint64_t stream) {
  auto block = Begin<JudgeArgs>(tables.size(), 1, stream);
  auto* const args = block->args<JudgeArgs>();
  for (size_t i = 0; i < tables.size(); ++i) {
    const SentTable& one = *tables[i];
    CheckShape(one.plan.ptr != nullptr && one.plan.ptr->is_summed, "summed gradients are needed");
    CheckShape(one.values != 0 && one.ids != 0, "memory for sums, and their ids, are needed");
    block->SetItems(0, i, one.plan.ptr->bound_of_unique());
    JudgeArgs judge = {};
    judge.batch = one.plan.ptr->batch;
    judge.ids = At<const uint32_t>(one.ids);
    judge.terms = one.plan.ptr->terms;
    judge.sums = At<float>(one.values);
    if (one.kept.ptr != nullptr) judge.kept = one.kept.ptr->kept;
    judge.verdict = At<Verdict>(verdicts, static_cast<int64_t>(i));
    judge.dim = static_cast<int32_t>(one.dim);
    judge.divisor = static_cast<float>(num_ranks_);
    judge.ordinary = ordinary;
    judge.limit = limit;
    args[i] = judge;
    block->kept.append(one.plan.ptr->EndUpdate());  // nothing else reads the gradients
  }
  return block;
}

std::unique_ptr<TableBlock> PeerVerbs::Send(const std::vector<SentTable*>& tables,
                                            const Counts& counts, int32_t wire, uint64_t message,
                                            uint64_t stream) {
  const WireFormat format = WireOf(wire);
  auto block = Begin<SendArgs>(counts.shape(0) * tables.size(), 2, stream);
  auto* const args = block->args<SendArgs>();
  ForRuns(counts, DimsOf(tables), format,
          [&](size_t number, size_t table, int64_t first, int64_t count, int64_t bytes) {
            const SentTable& one = *tables[table];
            SendArgs send = {};
            if (one.plan.ptr != nullptr) {
              send.cache = one.plan.ptr->table.ptr->args;
              send.batch = one.plan.ptr->batch;
            }
            send.values = At<const float>(one.values);
            send.ids = At<const uint32_t>(one.ids);
            CheckShape(one.plan.ptr != nullptr || one.values != 0 || count == 0,
                       "a plan or values are needed");
            const bool keeps = one.kept.ptr != nullptr;
            if (keeps) send.kept = one.kept.ptr->kept;
            send.message = At<uint8_t>(message, bytes);
            send.first = first;
            send.count = count;
            send.dim = static_cast<int32_t>(one.dim);
            send.wire = format;
            block->SetItems(0, number, keeps ? count : 0);
            block->SetItems(1, number, count);
            args[number] = send;
          });
  return block;
}

std::unique_ptr<TableBlock> PeerVerbs::Receive(const Addresses& rows,
                                               const std::vector<int64_t>& dims,
                                               const Counts& counts, int32_t wire, uint64_t message,
                                               uint64_t stream) {
  CheckShape(rows.size() == dims.size(), "rows of each table are needed");
  const WireFormat format = WireOf(wire);
  auto block = Begin<ReceiveArgs>(counts.shape(0) * dims.size(), 1, stream);
  auto* const args = block->args<ReceiveArgs>();
  ForRuns(counts, dims, format,
          [&](size_t number, size_t table, int64_t first, int64_t count, int64_t bytes) {
            block->SetItems(0, number, count);
            args[number] = {At<const uint8_t>(message, bytes),
                            At<float>(rows[table], first * dims[table]), count,
                            static_cast<int32_t>(dims[table]), format};
          });
  return block;
}

std::unique_ptr<TableBlock> PeerVerbs::Pool(const DeviceBags& bags, const Addresses& rows,
                                            uint64_t stream) {
  CheckShape(rows.size() == bags.tables.size(), "rows of each table are needed");
  std::vector<size_t> having;
  for (size_t i = 0; i < rows.size(); ++i) {
    const BagsOfPlan& one = bags.tables[i];
    const int64_t dim = one.plan->table.ptr->args.dim;
    CheckShape(one.offsets != nullptr, "a pool has bags");
    CheckShape(one.width % dim == 0, "float32 out [B, F * dim] in one piece is needed");
    CheckShape(one.num_bags == one.num_rows * (one.width / dim), "offsets [F * B + 1] are needed");
    if (one.num_bags > 0) having.push_back(i);
  }
  if (having.empty()) return nullptr;
  auto block = Begin<PoolArgs>(having.size(), 1, stream);
  auto* const args = block->args<PoolArgs>();
  for (size_t i = 0; i < having.size(); ++i) {
    const BagsOfPlan& one = bags.tables[having[i]];
    CacheArgs cache = one.plan->table.ptr->args;
    // Weights of a slot begin behind a header that these rows have not.
    cache.table.floats = At<uint8_t>(rows[having[i]]) - kRowHeaderBytes;
    block->SetItems(0, i, one.num_bags);
    args[i] = {cache,      one.plan->batch, one.offsets, one.weights,
               one.values, one.num_rows,    one.pitch,   one.is_mean};
  }
  return block;
}

int64_t PeerVerbs::MessageBytes(const Counts& counts, const std::vector<int64_t>& dims,
                                int32_t wire) {
  return ForRuns(counts, dims, WireOf(wire), [](size_t, size_t, int64_t, int64_t, int64_t) {});
}

// CacheArgs of rows [N, dim] by place, which are no table: what a plan of keys on their way has.
static nb::bytes RowsArgs(int64_t dim) {
  CacheArgs args = {};
  args.kind = OptimizerKind::kSgd;
  args.dim = static_cast<int32_t>(dim);
  args.table.shape.row_bytes = dim * static_cast<int64_t>(sizeof(float));
  args.table.shape.num_parts = 1;
  args.table.shape.buckets_per_part = 1;
  return nb::bytes(&args, sizeof(args));
}

void BindPeerVerbs(nb::module_& module) {
  module.def("rows_args", &RowsArgs, "dim"_a);
  nb::class_<RestSlots>(module, "RestSlots")
      .def(nb::init<uint64_t, uint64_t, uint64_t, uint64_t, uint32_t>(), "keys"_a, "is_used"_a,
           "last"_a, "rows"_a, "num_slots"_a);
  nb::class_<SentTable>(module, "SentTable")
      .def(
          "__init__",
          [](SentTable* self, nb::object plan, uint64_t values, uint64_t ids, int64_t dim,
             nb::object kept) {
            new (self) SentTable;
            self->plan.Set(std::move(plan));
            self->values = values;
            self->ids = ids;
            self->dim = dim;
            self->kept.Set(std::move(kept));
          },
          "plan"_a.none(), "values"_a, "ids"_a, "dim"_a, "kept"_a.none() = nb::none());
  nb::class_<PeerVerbs>(module, "PeerVerbs")
      .def(nb::init<Launcher*, BlockRing*, uint32_t, uint32_t>(), "launcher"_a, "ring"_a,
           "num_ranks"_a, "num_virtual"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("divide", &PeerVerbs::Divide, "plans"_a, "scratch"_a, "ids"_a, "told_keys"_a,
           "told_starts"_a, "stream"_a, nb::keep_alive<0, 1>())
      .def("judge", &PeerVerbs::Judge, "tables"_a, "ordinary"_a, "limit"_a, "verdicts"_a,
           "stream"_a, nb::keep_alive<0, 1>())
      .def("send", &PeerVerbs::Send, "tables"_a, "counts"_a, "wire"_a, "message"_a, "stream"_a,
           nb::keep_alive<0, 1>())
      .def("receive", &PeerVerbs::Receive, "rows"_a, "dims"_a, "counts"_a, "wire"_a, "message"_a,
           "stream"_a, nb::keep_alive<0, 1>())
      .def("pool", &PeerVerbs::Pool, "bags"_a, "rows"_a, "stream"_a, nb::keep_alive<0, 1>())
      .def_static("message_bytes", &PeerVerbs::MessageBytes, "counts"_a, "dims"_a, "wire"_a);
}

}  // namespace hps
