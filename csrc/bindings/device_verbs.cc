// hps._C.DeviceVerbs; see device_verbs.h.
#include "bindings/device_verbs.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/bind.h"
#include "gpu_cache/host_row_group.h"
#include "gpu_cache/kernel_list.h"

using namespace nb::literals;

namespace hps {
namespace {

constexpr int64_t kAlignedFloats = 64;  // of 256 bytes: where a table's sums may begin
constexpr int64_t kMostFloats = (int64_t{1} << 32) - 1;  // whose places fit into TermArgs.origins

Plans PlansOf(const nb::list& plans) {
  Plans found;
  found.reserve(plans.size());
  for (const nb::handle plan : plans) found.push_back(nb::cast<DevicePlanState*>(plan));
  return found;
}

int64_t Aligned(int64_t floats) {
  return (floats + kAlignedFloats - 1) / kAlignedFloats * kAlignedFloats;
}

// A table's part of the arrays of SumsLayout.
struct SumSizesOfTable {
  int64_t length, bound, rows, weights, floats[2];  // rows of kRunSums; of that and kDivided

  // Args:
  //   num_weights: of occurrences.
  //   num_divided: bags whose gradients are divided by their lengths.
  SumSizesOfTable(const DevicePlanState& plan, int64_t num_weights, int64_t num_divided) {
    const int64_t dim = plan.table.ptr->args.dim;
    length = plan.num_occurrences;
    bound = plan.bound_of_unique();
    rows = NumRows(length);
    weights = num_weights;
    floats[0] = Aligned(rows * dim);
    floats[1] = Aligned(num_divided * dim);
  }
  explicit SumSizesOfTable(const BagsOfPlan& bags)
      : SumSizesOfTable(*bags.plan, bags.weights != nullptr ? bags.plan->num_occurrences : 0,
                        bags.is_mean && bags.offsets != nullptr ? bags.num_bags : 0) {}

  void AddTo(std::vector<int64_t>* sizes) const {
    for (const auto array : {SumsLayout::kArrived, SumsLayout::kUnordered, SumsLayout::kOrigins}) {
      (*sizes)[array] += length;
    }
    (*sizes)[SumsLayout::kKeys] += bound;
    (*sizes)[SumsLayout::kArrivals] += rows;
    (*sizes)[SumsLayout::kRowKeys] += rows;
    (*sizes)[SumsLayout::kWeights] += weights;
    (*sizes)[SumsLayout::kRunSums] += floats[0];
    (*sizes)[SumsLayout::kDivided] += floats[1];
  }
};

void CheckGradients(const BagsOfPlan& bags) {
  const int64_t dim = bags.plan->table.ptr->args.dim;
  CheckShape(bags.num_rows <= kMostFloats / std::max<int64_t>(1, bags.pitch),
             "gradients of fewer than 2^32 floats are needed: give smaller batches");
  if (bags.num_rows == bags.num_bags && bags.width == dim) return;
  if (bags.is_placed && bags.num_rows * (bags.width / dim) == bags.num_bags) return;
  const std::string what = bags.offsets == nullptr ? "grads [L, dim]" : "grads [F * B, dim]";
  throw nb::value_error(("float32 " + what + " = (" + std::to_string(bags.num_bags) + ", " +
                         std::to_string(dim) + ") in one piece is needed, not (" +
                         std::to_string(bags.num_rows) + ", " + std::to_string(bags.width) + ")")
                            .c_str());
}

}  // namespace

int64_t DeviceVerbs::Prepare(const nb::list& plans, const DeviceKeys& keys) const {
  CheckShape(plans.size() == keys.tables.size(), "keys of each plan are needed");
  for (size_t i = 0; i < plans.size(); ++i) {
    auto* const plan = nb::cast<DevicePlanState*>(plans[i]);
    if (plan->state != PlanState::kKeys && plan->state != PlanState::kFound) {
      throw nb::value_error("a plan that holds rows is to be made of other keys");
    }
    const int64_t count = keys.tables[i].count;
    if (count > plan->capacity) nb::handle(plans[i]).attr("grow")(count);
    CheckShape(plan->capacity >= count, "memory for the keys is needed");
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    const KeysOfTable& own = keys.tables[i];
    auto* const plan = nb::cast<DevicePlanState*>(plans[i]);
    plan->state = PlanState::kKeys;
    plan->num_occurrences = own.count;
    plan->first = plan->count = 0;
    plan->has_rows = 0;
    plan->pins_if_whole = false;
    plan->known_unique = own.count == 0 ? 0 : -1;
    plan->ForgetNumbers();
    plan->EndUpdate();
    plan->victims = plan->missing = plan->incoming = nb::none();
    plan->NoteGiven(own);
    plan->pooling = {};
    plan->batch.num_occurrences = own.count;
    plan->batch.id_mask = DevicePlanState::IdEntries(own.count) - 1;
  }
  return keys.num_of_host();
}

std::vector<uint64_t> DeviceVerbs::Addresses(const DeviceKeys& keys, uint64_t copied,
                                             uint64_t stream) const {
  const auto of_host = static_cast<size_t>(keys.num_of_host());
  std::vector<uint64_t> addresses;
  addresses.reserve(keys.tables.size());
  const BlockRing::Piece piece =
      of_host == 0 ? BlockRing::Piece{} : ring_->Take(of_host * sizeof(uint64_t), false);
  size_t used = 0;
  for (const KeysOfTable& one : keys.tables) {
    if (one.is_on_device) {
      addresses.push_back(reinterpret_cast<uint64_t>(one.data));
      continue;
    }
    const size_t bytes = static_cast<size_t>(one.count) * sizeof(uint64_t);
    if (bytes > 0) std::memcpy(piece.pinned + used, one.data, bytes);
    addresses.push_back(copied + used);
    used += bytes;
  }
  if (used > 0) {
    const nb::gil_scoped_release unlocked;
    launcher_->Copy(copied, piece.pinned, used, stream);
  }
  return addresses;
}

std::unique_ptr<TableBlock> DeviceVerbs::Place(const nb::list& given, const DeviceKeys& keys,
                                               uint64_t copied, uint64_t stream) {
  const Plans plans = PlansOf(given);
  CheckShape(keys.tables.size() == plans.size(), "keys of each plan are needed");
  const std::vector<uint64_t> addresses = Addresses(keys, copied, stream);
  auto block = Begin<DeduplicateArgs>(plans.size(), 3, stream);
  auto* const args = block->args<DeduplicateArgs>();
  for (size_t i = 0; i < plans.size(); ++i) {
    const DevicePlanState& plan = *plans[i];
    block->SetItems(0, i, static_cast<int64_t>(plan.id_entries()));
    block->SetItems(1, i, plan.num_occurrences);
    block->SetItems(2, i, NumFlagWords(plan.num_occurrences));
    args[i] = {plan.batch, reinterpret_cast<const uint64_t*>(addresses[i])};
  }
  return block;
}

std::unique_ptr<TableBlock> DeviceVerbs::Contains(const nb::list& tables, const DeviceKeys& keys,
                                                  uint64_t presence, uint64_t copied,
                                                  uint64_t stream) {
  CheckShape(keys.tables.size() == tables.size(), "keys of each table are needed");
  const std::vector<uint64_t> addresses = Addresses(keys, copied, stream);
  auto block = Begin<KeysArgs>(tables.size(), 1, stream);
  auto* const args = block->args<KeysArgs>();
  for (size_t i = 0; i < tables.size(); ++i) {
    const int64_t count = keys.tables[i].count;
    block->SetItems(0, i, count);
    args[i] = {nb::cast<DeviceTable*>(tables[i])->args,
               reinterpret_cast<const uint64_t*>(addresses[i]),
               reinterpret_cast<uint8_t*>(presence), nullptr, nullptr};
    presence += static_cast<uint64_t>(count);
  }
  return block;
}

std::unique_ptr<TableBlock> DeviceVerbs::Find(const nb::list& given, uint64_t told,
                                              uint64_t stream) {
  const Plans plans = PlansOf(given);
  auto block = Begin<FindArgs>(plans.size(), 3, stream);
  auto* const args = block->args<FindArgs>();
  for (size_t i = 0; i < plans.size(); ++i) {
    const DevicePlanState& plan = *plans[i];
    const int64_t bound = plan.bound();
    const int64_t words = (bound + kFlagsAWord - 1) / kFlagsAWord;
    block->SetItems(0, i, std::max<int64_t>(1, bound));
    block->SetItems(1, i, std::max<int64_t>(1, words));
    block->SetItems(2, i, std::max(words, plan.table.ptr->num_swept));
    FindArgs one = {plan.table.ptr->args, plan.batch, plan.first, plan.count, bound};
    one.told = reinterpret_cast<BatchNumbers*>(told) + i;
    one.pins = plan.pins_if_whole;
    args[i] = one;
  }
  return block;
}

std::unique_ptr<TableBlock> DeviceVerbs::Reserve(const nb::list& given,
                                                 const std::vector<uint64_t>& told,
                                                 const std::vector<uint64_t>& told_keys,
                                                 const std::vector<uint64_t>& victims,
                                                 uint64_t stream) {
  const Plans plans = PlansOf(given);
  const size_t size = told.size();
  CheckShape(
      (size == 0 || size == plans.size()) && told_keys.size() == size && victims.size() == size,
      "memory that each table tells to is needed");
  auto block = Begin<ReserveArgs>(plans.size(), 4, stream);
  auto* const args = block->args<ReserveArgs>();
  for (size_t i = 0; i < plans.size(); ++i) {
    const DevicePlanState& plan = *plans[i];
    const int64_t missing = plan.num_missing();
    block->SetItems(0, i, plan.bound());
    block->SetItems(1, i, plan.numbers.is_full == 0 ? missing : 0);
    block->SetItems(2, i, missing);
    block->SetItems(3, i, std::max<int64_t>(1, missing));
    ReserveArgs one = {};
    one.cache = plan.table.ptr->args;
    one.batch = plan.batch;
    one.bound = std::max<int64_t>(1, missing);
    if (size > 0) {
      one.victims = reinterpret_cast<uint8_t*>(victims[i]);
      one.told = reinterpret_cast<BatchNumbers*>(told[i]);
      one.told_keys = reinterpret_cast<uint64_t*>(told_keys[i]);
    }
    args[i] = one;
  }
  return block;
}

std::unique_ptr<TableBlock> DeviceVerbs::Release(const nb::list& given, uint64_t stream) {
  const Plans plans = PlansOf(given);
  auto block = Begin<ReserveArgs>(plans.size(), 1, stream);
  auto* const args = block->args<ReserveArgs>();
  for (size_t i = 0; i < plans.size(); ++i) {
    block->SetItems(0, i, plans[i]->bound());
    args[i] = {
        plans[i]->table.ptr->args, plans[i]->batch, plans[i]->bound(), nullptr, nullptr, nullptr};
  }
  return block;
}

std::unique_ptr<TableBlock> DeviceVerbs::Fill(const nb::list& given,
                                              const std::vector<uint64_t>& images,
                                              const std::vector<Vector<const uint8_t>>& found,
                                              const std::vector<bool>& creates,
                                              const std::vector<float>& rates, uint64_t stream) {
  const Plans plans = PlansOf(given);
  const size_t size = plans.size();
  CheckShape(images.size() == size && found.size() == size && creates.size() == size &&
                 rates.size() == size,
             "rows of each table are needed");
  size_t num_flags = 0;
  for (size_t i = 0; i < size; ++i) {
    CheckShape(static_cast<int64_t>(found[i].size()) == plans[i]->num_missing(),
               "found [missing] of each table is needed");
    num_flags += found[i].size();
  }
  auto block = Begin<FillArgs>(size, 1, stream, num_flags);
  auto* const args = block->args<FillArgs>();
  size_t flag = 0;
  for (size_t i = 0; i < size; ++i) {
    const int64_t missing = plans[i]->num_missing();
    block->SetItems(0, i, missing);
    std::copy_n(found[i].data(), found[i].size(), block->more() + flag);
    args[i] = {plans[i]->table.ptr->args,
               plans[i]->batch,
               reinterpret_cast<const uint8_t*>(images[i]),
               reinterpret_cast<const uint8_t*>(block->more_on_device() + flag),
               missing,
               creates[i],
               rates[i]};
    flag += found[i].size();
  }
  return block;
}

std::unique_ptr<TableBlock> DeviceVerbs::Pool(const DeviceBags& bags, uint64_t stream) {
  std::vector<const BagsOfPlan*> tables;
  for (const BagsOfPlan& one : bags.tables) {
    const int64_t dim = one.plan->table.ptr->args.dim;
    CheckShape(one.offsets != nullptr, "a pool has bags");
    CheckShape(one.width % dim == 0, "float32 out [B, F * dim] in one piece is needed");
    CheckShape(one.num_bags == one.num_rows * (one.width / dim), "offsets [F * B + 1] are needed");
    if (one.num_bags > 0) tables.push_back(&one);
  }
  if (tables.empty()) return nullptr;
  auto block = Begin<PoolArgs>(tables.size(), 1, stream);
  auto* const args = block->args<PoolArgs>();
  for (size_t i = 0; i < tables.size(); ++i) {
    const BagsOfPlan& one = *tables[i];
    const CacheArgs& cache = one.plan->table.ptr->args;
    block->SetItems(0, i, one.num_bags);
    args[i] = {cache,      one.plan->batch, one.offsets, one.weights,
               one.values, one.num_rows,    one.pitch,   one.is_mean};
  }
  return block;
}

std::vector<int64_t> DeviceVerbs::SumSizes(const DeviceBags& bags) const {
  std::vector<int64_t> sizes(SumsLayout::kNumArrays);
  for (const BagsOfPlan& one : bags.tables) {
    CheckGradients(one);
    SumSizesOfTable(one).AddTo(&sizes);
  }
  return sizes;
}

std::vector<int64_t> DeviceVerbs::SizesToSum(const nb::list& plans) const {
  std::vector<int64_t> sizes(SumsLayout::kNumArrays);
  for (const nb::handle one : plans) {
    SumSizesOfTable(*nb::cast<DevicePlanState*>(one), 0, 0).AddTo(&sizes);
  }
  return sizes;
}

std::unique_ptr<TableBlock> DeviceVerbs::Sum(const DeviceBags& bags, nb::object given,
                                             uint64_t stream) {
  auto* const layout = nb::cast<SumsLayout*>(given);
  const std::vector<int64_t> sizes = SumSizes(bags);
  for (size_t array = 0; array < sizes.size(); ++array) {
    CheckShape(sizes[array] <= layout->room[array], "more memory for sums is needed");
  }
  auto block = Begin<SumArgs>(bags.tables.size(), 5, stream);
  auto* const args = block->args<SumArgs>();
  const auto at = [&]<class T>(SumsLayout::Array array, int64_t start, T** ptr) {
    *ptr = reinterpret_cast<T*>(layout->addresses[array]) + start;
  };
  int64_t position = 0, key = 0, row = 0, weight = 0, floats[2] = {0, 0};
  for (size_t i = 0; i < bags.tables.size(); ++i) {
    const BagsOfPlan& one = bags.tables[i];
    DevicePlanState* const plan = one.plan;
    const SumSizesOfTable own(one);
    block->SetItems(0, i, one.num_bags);
    block->SetItems(1, i, (own.bound + kKeysPlaced - 1) / kKeysPlaced);
    block->SetItems(2, i, one.num_bags);
    block->SetItems(3, i, own.rows + (own.bound + kKeysOrdered - 1) / kKeysOrdered);
    block->SetItems(4, i, own.rows + (own.bound + kKeysAnItem - 1) / kKeysAnItem);
    SumArgs sum = {};
    TermArgs& terms = sum.terms;
    sum.cache = plan->table.ptr->args;
    sum.batch = plan->batch;
    sum.offsets = one.offsets;
    sum.weights = one.weights;
    sum.given = one.values;
    sum.num_examples = std::max<int64_t>(1, one.num_rows);
    sum.pitch = one.pitch;
    if (own.floats[1] > 0) at(SumsLayout::kDivided, floats[1], &sum.divided);
    terms.gradients = sum.divided == nullptr ? sum.given : sum.divided;
    const int64_t pitch = sum.divided == nullptr ? sum.pitch : sum.cache.dim;
    terms.are_aligned = IsPieceAligned(terms.gradients) && pitch % 4 == 0 && sum.cache.dim % 4 == 0;
    if (one.weights != nullptr) at(SumsLayout::kWeights, weight, &terms.weights);
    at(SumsLayout::kArrived, position, &sum.arrived);
    at(SumsLayout::kUnordered, position, &sum.unordered);
    at(SumsLayout::kOrigins, position, &terms.origins);
    at(SumsLayout::kKeys, key, &terms.keys);
    at(SumsLayout::kArrivals, row, &sum.arrivals);
    at(SumsLayout::kRowKeys, row, &sum.row_keys);
    at(SumsLayout::kRunSums, floats[0], &terms.run_sums);
    args[i] = sum;
    plan->EndUpdate();
    plan->sums.Set(given);
    plan->terms = terms;
    plan->is_summed = true;
    position += own.length;
    key += own.bound;
    row += own.rows;
    weight += own.weights;
    for (int array = 0; array < 2; ++array) floats[array] += own.floats[array];
  }
  layout->num_pending = bags.tables.size();
  layout->tensors = bags.tensors;
  layout->parts = bags.parts;
  layout->stream = stream;
  return block;
}

// What the update of a plan sums up.
// Raises:
//   AssertionError: nothing.
const TermArgs& TermsOf(const DevicePlanState& plan) {
  if (!plan.is_summed) {
    PyErr_SetString(PyExc_AssertionError, "an update without sums");
    throw nb::python_error();
  }
  return plan.terms;
}

std::unique_ptr<TableBlock> DeviceVerbs::BeginKinds(const DeviceBags& bags, size_t args_bytes,
                                                    uint64_t stream) const {
  std::vector<OptimizerKind> kinds;
  for (const BagsOfPlan& one : bags.tables) {
    const OptimizerKind kind = one.plan->table.ptr->args.kind;
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  auto block = std::make_unique<TableBlock>(launcher_, ring_, stream, bags.tables.size(),
                                            kinds.size(), args_bytes);
  for (size_t launch = 0; launch < kinds.size(); ++launch) {
    for (size_t i = 0; i < bags.tables.size(); ++i) {
      const DevicePlanState& plan = *bags.tables[i].plan;
      const bool is_own = kinds[launch] == plan.table.ptr->args.kind;
      block->SetItems(launch, i, is_own ? plan.bound() : 0);
    }
    block->kinds.emplace_back(NameOfKind(kinds[launch]));
  }
  return block;
}

std::unique_ptr<TableBlock> DeviceVerbs::Try(const DeviceBags& bags, uint64_t stream) {
  auto block = BeginKinds(bags, sizeof(TryTermsArgs), stream);
  auto* args = block->args<TryTermsArgs>();
  for (const BagsOfPlan& one : bags.tables) {
    const DevicePlanState& plan = *one.plan;
    DeviceTable* const table = plan.table.ptr;
    *args++ = {table->args,  plan.batch, TermsOf(plan), table->SafeBits(one.lr),
               plan.bound(), one.lr,     table->number};
  }
  return block;
}

void DeviceVerbs::NoteFailure(TableBlock* block, uint64_t failure) const {
  const NoteFailureArgs args = {block->TablesOf(0), reinterpret_cast<Failure*>(failure)};
  block->QueueOther("NoteFailure", &args, 1);
}

std::unique_ptr<TableBlock> DeviceVerbs::Apply(const DeviceBags& bags, uint64_t failure,
                                               uint64_t stream) {
  auto block = BeginKinds(bags, sizeof(ApplyTermsArgs), stream);
  auto* args = block->args<ApplyTermsArgs>();
  for (const BagsOfPlan& one : bags.tables) {
    const DevicePlanState& plan = *one.plan;
    *args++ = {plan.table.ptr->args, plan.batch,
               TermsOf(plan),        reinterpret_cast<const Failure*>(failure),
               plan.bound(),         one.lr};
  }
  for (const BagsOfPlan& one : bags.tables) {
    if (one.plan->is_surely_whole()) {  // else other windows follow
      block->kept.append(one.plan->EndUpdate());
    }
  }
  return block;
}

void BindDeviceVerbs(nb::module_& module) {
  nb::class_<DeviceVerbs>(module, "DeviceVerbs")
      .def(nb::init<Launcher*, BlockRing*, int32_t, int32_t>(), "launcher"_a, "ring"_a,
           "device_type"_a, "device_number"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("prepare", &DeviceVerbs::Prepare, "plans"_a, "keys"_a)
      .def("place", &DeviceVerbs::Place, "plans"_a, "keys"_a, "copied"_a, "stream"_a,
           nb::keep_alive<0, 1>())
      .def("contains", &DeviceVerbs::Contains, "tables"_a, "keys"_a, "presence"_a, "copied"_a,
           "stream"_a, nb::keep_alive<0, 1>())
      .def("find", &DeviceVerbs::Find, "plans"_a, "told"_a, "stream"_a, nb::keep_alive<0, 1>())
      .def("reserve", &DeviceVerbs::Reserve, "plans"_a, "told"_a, "told_keys"_a, "victims"_a,
           "stream"_a, nb::keep_alive<0, 1>())
      .def("release", &DeviceVerbs::Release, "plans"_a, "stream"_a, nb::keep_alive<0, 1>())
      .def("fill", &DeviceVerbs::Fill, "plans"_a, "images"_a, "found"_a, "creates"_a, "rates"_a,
           "stream"_a, nb::keep_alive<0, 1>())
      .def("pool", &DeviceVerbs::Pool, "bags"_a, "stream"_a, nb::keep_alive<0, 1>())
      .def("sum_sizes", &DeviceVerbs::SumSizes, "bags"_a)
      .def("sizes_to_sum", &DeviceVerbs::SizesToSum, "plans"_a)
      .def("sum", &DeviceVerbs::Sum, "bags"_a, "layout"_a, "stream"_a, nb::keep_alive<0, 1>())
      .def("try_updates", &DeviceVerbs::Try, "bags"_a, "stream"_a, nb::keep_alive<0, 1>())
      .def("note_failure", &DeviceVerbs::NoteFailure, "block"_a, "failure"_a)
      .def("apply", &DeviceVerbs::Apply, "bags"_a, "failure"_a, "stream"_a, nb::keep_alive<0, 1>());
}

}  // namespace hps
