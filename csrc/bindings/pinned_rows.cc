// hps._C.HeldRows, begin_rows, pinned_reads, pinned_updates, placed_bags, held_plans,
// give_up_plans: what a step over tables on a device is made from, read from the server's own
// objects in one call for all tables, so that a table more costs Python nothing. What is in any way
// unusual is left to Python, which tells what is wrong with it, or does it table by table.
//
// Above it: hps/tiers/tables_together.py; the objects are PooledRead, RowUpdate and BatchRows.
// Below it: held_rows.h, device_bags.h.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "bindings/bind.h"
#include "bindings/device_bags.h"
#include "bindings/fields.h"
#include "bindings/held_rows.h"

using namespace nb::literals;

namespace hps {
namespace {

// Names of what the server's objects have.
struct FieldNames {
  PyObject* const gate = PyUnicode_InternFromString("gate");
  PyObject* const plans_in_flight = PyUnicode_InternFromString("plans_in_flight");
  PyObject* const idle_plans = PyUnicode_InternFromString("idle_plans");
  PyObject* const are_of = PyUnicode_InternFromString("are_of");
  PyObject* const take_plan = PyUnicode_InternFromString("take_plan");
  PyObject* const drop = PyUnicode_InternFromString("_drop");
};

// Fields of a PooledRead or a RowUpdate, each class by its own.
struct PartFields {
  explicit PartFields(const char* name_of_values) : values(name_of_values) {}

  SlotField table{"table"}, rows{"rows"}, keys{"keys"}, pooling{"pooling"};
  SlotField values;
};

// Of a BagPooling and of its Bags.
struct PoolingFields {
  SlotField bags{"bags"}, weights{"weights"}, is_mean{"is_mean"};
  SlotField offsets{"offsets"}, num_occurrences{"num_occurrences"};
};

const FieldNames& Names() {
  static const FieldNames* const names = new FieldNames;  // Python's, to the end of the process
  return *names;
}

PartFields& FieldsOfReads() {
  static auto* const fields = new PartFields("out");
  return *fields;
}

PartFields& FieldsOfUpdates() {
  static auto* const fields = new PartFields("grads");
  return *fields;
}

uint64_t NewMark() {
  static uint64_t last = 0;
  return ++last;
}

// Rows of that kind, BatchRows, or null.
HeldRows* AsRows(nb::handle rows, nb::handle kind) {
  return rows.type().is(kind) ? nb::inst_ptr<HeldRows>(rows) : nullptr;
}

void CheckKind(nb::handle kind) {
  CheckShape(PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(kind.ptr()),
                              reinterpret_cast<PyTypeObject*>(nb::type<HeldRows>().ptr())) != 0,
             "a class of HeldRows is needed");
}

// The pinned rows of one table's part of a step.
struct PinnedRows {
  nb::object table, rows;
  HeldRows* held = nullptr;
  DevicePlanState* plan = nullptr;
};

// False unless they are rows of that kind, pinned, of that table of those stacks, which was not
// met before under that mark.
bool FindRows(PartFields& fields, nb::handle part, const nb::dict& stacks, nb::handle kind,
              uint64_t mark, PinnedRows* found) {
  found->rows = fields.rows(part);
  found->held = AsRows(found->rows, kind);
  if (found->held == nullptr) return false;
  found->table = fields.table(part);
  PyObject* const own = PyDict_GetItemWithError(stacks.ptr(), found->table.ptr());
  if (own == nullptr) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return false;
  }
  if (own != found->held->stack.ptr()) return false;
  if (!nb::try_cast(found->held->plan, found->plan, false) || found->plan == nullptr) return false;
  return std::exchange(found->plan->mark, mark) != mark;
}

// What a BagPooling says of the plan's batch, null if anything is not as it is needed. The one that
// the batch was pooled by has been read before.
const PoolingView* FindPooling(const DeviceBags& bags, DevicePlanState* plan, nb::handle pooling) {
  static auto* const fields = new PoolingFields;
  if (plan->pooling.owner.is(pooling)) return &plan->pooling;
  const nb::object own = fields->bags(pooling);
  const int64_t count = nb::cast<int64_t>(fields->num_occurrences(own));
  PoolingView found;
  if (count != plan->num_occurrences ||
      !bags.LookAtPooling(fields->offsets(own), fields->weights(pooling), count, &found)) {
    return nullptr;
  }
  found.is_mean = fields->is_mean(pooling).is(Py_True);
  found.owner = nb::borrow(pooling);
  plan->pooling = std::move(found);
  return &plan->pooling;
}

// True if the rows are those of these keys.
bool AreOf(const DeviceBags& bags, const PinnedRows& part, nb::handle keys) {
  return part.plan->IsOf(bags.device(), keys) ||
         nb::cast<bool>(GetField(part.rows, Names().are_of)(keys));
}

// The bags of PooledReads, all of whose rows are pinned; false, and some may have been added, if
// one is anything else. `kind`: the class of such rows.
bool PinnedReads(DeviceBags& bags, const nb::list& reads, const nb::dict& stacks, nb::handle kind) {
  PartFields& fields = FieldsOfReads();
  const uint64_t mark = NewMark();
  CheckKind(kind);
  bags.tables.reserve(reads.size());
  for (const nb::handle read : reads) {
    PinnedRows part;
    if (!FindRows(fields, read, stacks, kind, mark, &part)) return false;
    const PoolingView* const pooling = FindPooling(bags, part.plan, fields.pooling(read));
    if (pooling == nullptr) return false;
    const nb::object out = fields.values(read);
    if (!bags.AddIfRight(part.held->plan, part.plan, *pooling, out, 0.0f)) return false;
    bags.tables.back().stack = part.held->stack;
  }
  return true;
}

// The same of RowUpdates, with the learning rates of their tables.
bool PinnedUpdates(DeviceBags& bags, const nb::list& updates, const nb::dict& stacks,
                   nb::handle kind, const nb::dict& rates) {
  PartFields& fields = FieldsOfUpdates();
  const uint64_t mark = NewMark();
  CheckKind(kind);
  bags.tables.reserve(updates.size());
  for (const nb::handle update : updates) {
    PinnedRows part;
    if (!FindRows(fields, update, stacks, kind, mark, &part)) return false;
    if (!GetField(part.held->stack, Names().gate).is_none()) return false;
    if (!AreOf(bags, part, fields.keys(update))) return false;
    PyObject* const rate = PyDict_GetItemWithError(rates.ptr(), part.table.ptr());
    const double lr = rate == nullptr ? -1.0 : PyFloat_AsDouble(rate);
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    if (rate == nullptr) return false;
    PoolingView each;
    each.num_bags = part.plan->num_occurrences;
    const nb::object own = fields.pooling(update);
    const PoolingView* const pooling = own.is_none() ? &each : FindPooling(bags, part.plan, own);
    if (pooling == nullptr) return false;
    const nb::object grads = fields.values(update);
    const auto rounded = static_cast<float>(lr);
    if (!bags.AddIfRight(part.held->plan, part.plan, *pooling, grads, rounded)) return false;
    BagsOfPlan& added = bags.tables.back();
    added.stack = part.held->stack;
    if (added.num_rows != added.num_bags) return false;
    if (added.width != part.plan->table.ptr->args.dim) return false;
  }
  return true;
}

// Pinned rows of several tables and the bags of each of them, which lie side by side in rows
// [B, width]: of an output, or of its gradient. False, and some may have been added, if rows of one
// are not pinned by a plan of a device.
// Args:
//   poolings: of each table; `are_means` counts in place of theirs.
//   columns, counts: of each table's features, which follow each other, the first column, and how
//     many they are.
//   rates: learning rates of the tables; of an output none.
// Raises:
//   ValueError: values of another type or shape, or of other numbers of bags.
bool PlacedBags(DeviceBags& bags, const nb::list& rows, const nb::list& poolings,
                const std::vector<bool>& are_means, const std::vector<int64_t>& columns,
                const std::vector<int64_t>& counts, nb::handle values,
                const std::vector<float>& rates, nb::handle kind) {
  CheckKind(kind);
  const size_t size = rows.size();
  CheckShape(poolings.size() == size && are_means.size() == size && columns.size() == size &&
                 counts.size() == size && (rates.empty() || rates.size() == size),
             "bags of each table are needed");
  const TensorView view = bags.RequireValues(values);
  bags.tables.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    HeldRows* const held = AsRows(rows[i], kind);
    DevicePlanState* plan = nullptr;
    if (held == nullptr || !nb::try_cast(held->plan, plan, false) || plan == nullptr) return false;
    if (!rates.empty() && !GetField(held->stack, Names().gate).is_none()) return false;
    const PoolingView* const pooling = FindPooling(bags, plan, poolings[i]);
    CheckShape(pooling != nullptr, "bags of the keys, with a weight a key or none, are needed");
    bags.AddPlaced(held->plan, plan, *pooling, are_means[i], view, columns[i], counts[i],
                   rates.empty() ? 0.0f : rates[i]);
    bags.tables.back().stack = held->stack;
  }
  return true;
}

// The plans of the rows that have one; None if some rows are of another kind.
nb::object HeldPlans(const nb::list& rows, nb::handle kind) {
  CheckKind(kind);
  nb::list plans;
  for (const nb::handle one : rows) {
    const HeldRows* const held = AsRows(one, kind);
    if (held == nullptr) return nb::none();
    if (held->plan.is_none()) continue;
    if (!nb::isinstance<DevicePlanState>(held->plan)) return nb::none();
    plans.append(held->plan);
  }
  return plans;
}

// The plans of rows become their stacks' again, which keep so many; as TableStack.keep_plan.
void GiveUpPlans(const nb::list& rows, size_t most_idle) {
  const FieldNames& names = Names();
  for (const nb::handle one : rows) {
    auto* const held = nb::cast<HeldRows*>(one);
    if (held->plan.is_none()) continue;
    const nb::object plan = std::exchange(held->plan, nb::none());
    DevicePlanState* of_device = nullptr;  // of a step that was refused, sums are for nothing
    if (nb::try_cast(plan, of_device, false)) of_device->EndUpdate();
    if (PySet_Discard(GetField(held->stack, names.plans_in_flight).ptr(), plan.ptr()) < 0) {
      throw nb::python_error();
    }
    auto idle = nb::cast<nb::list>(GetField(held->stack, names.idle_plans));
    if (idle.size() < most_idle) idle.append(plan);
  }
}

// A plan for one caller; as TableStack.take_plan.
nb::object TakePlan(nb::handle stack) {
  const FieldNames& names = Names();
  const auto idle = nb::cast<nb::list>(GetField(stack, names.idle_plans));
  const size_t count = idle.size();
  if (count == 0) return GetField(stack, names.take_plan)();
  nb::object plan = idle[count - 1];
  if (PySequence_DelItem(idle.ptr(), static_cast<Py_ssize_t>(count) - 1) != 0) {
    throw nb::python_error();
  }
  return plan;
}

// Rows of several tables, each with an idle plan of its stack, held by them; as BatchRows says.
// Args:
//   models: what the keys came as.
nb::list BeginRows(nb::handle kind, const nb::list& stacks, const DeviceKeys& keys,
                   const nb::list& models, const nb::object& pool, const nb::object& lock,
                   const nb::object& device) {
  CheckKind(kind);
  CheckShape(stacks.size() == keys.tables.size() && models.size() == stacks.size(),
             "keys of each stack are needed");
  nb::list begun;
  for (size_t i = 0; i < stacks.size(); ++i) {
    const nb::object rows = nb::inst_alloc(kind);
    auto* const held = new (nb::inst_ptr<HeldRows>(rows)) HeldRows;
    nb::inst_mark_ready(rows);
    held->stack = stacks[i];
    held->model = models[i];
    held->pool = pool;
    held->lock = lock;
    held->device = device;
    held->NoteKeys(keys.tables[i]);
    held->plan = TakePlan(held->stack);
    if (PySet_Add(GetField(held->stack, Names().plans_in_flight).ptr(), held->plan.ptr()) != 0) {
      throw nb::python_error();
    }
    begun.append(rows);
  }
  return begun;
}

// Rows that are dropped release what they hold, but for those that a batch of several tables pins.
// A slot of the type, in place of __del__: most hold nothing by then, and Python is not asked.
void FinalizeRows(PyObject* rows) noexcept {
  if (!nb::inst_ready(rows) || nb::inst_ptr<HeldRows>(rows)->plan.is_none()) return;
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* const method = PyObject_GetAttr(rows, Names().drop);
  PyObject* const done = method == nullptr ? nullptr : PyObject_CallObject(method, nullptr);
  if (done == nullptr) PyErr_WriteUnraisable(rows);
  Py_XDECREF(done);
  Py_XDECREF(method);
  PyErr_Restore(type, value, traceback);
}

PyType_Slot kRowsSlots[] = {{Py_tp_finalize, reinterpret_cast<void*>(&FinalizeRows)}, {0, nullptr}};

using StateTuple = std::optional<std::tuple<uint64_t, int64_t, int64_t>>;

void BindHeldRows(nb::module_& module) {
  nb::class_<HeldRows>(module, "HeldRows", nb::type_slots(kRowsSlots))
      .def(
          "__init__",
          [](HeldRows* held, nb::object stack, nb::object model, nb::object pool, nb::object lock,
             nb::object device) {
            new (held) HeldRows;
            held->stack = std::move(stack);
            held->model = std::move(model);
            held->pool = std::move(pool);
            held->lock = std::move(lock);
            held->device = std::move(device);
          },
          "stack"_a, "model"_a.none(), "pool"_a, "lock"_a, "device"_a)
      .def_rw("plan", &HeldRows::plan, nb::arg().none())
      .def_ro("stack", &HeldRows::stack)
      .def_ro("_model", &HeldRows::model)
      .def_ro("_pool", &HeldRows::pool)
      .def_ro("_lock", &HeldRows::lock)
      .def_ro("_device", &HeldRows::device)
      .def(
          "_note_keys",
          [](HeldRows& held, nb::object keys, const StateTuple& state) {
            if (!state) return;
            held.given = std::move(keys);
            std::tie(held.pinned_at.data, held.pinned_at.count, held.pinned_at.version) = *state;
          },
          "keys"_a, "state"_a.none())
      .def_prop_ro("_pinned_at", [](const HeldRows& held) -> StateTuple {
        const KeysState& at = held.pinned_at;
        if (held.given.is_none()) return std::nullopt;
        return std::tuple{at.data, at.count, at.version};
      });
}

}  // namespace

void BindPinnedRows(nb::module_& module) {
  BindHeldRows(module);
  module.def("begin_rows", &BeginRows, "kind"_a, "stacks"_a, "keys"_a, "models"_a, "pool"_a,
             "lock"_a, "device"_a);
  module.def("pinned_reads", &PinnedReads, "bags"_a, "reads"_a, "stacks"_a, "kind"_a);
  module.def("pinned_updates", &PinnedUpdates, "bags"_a, "updates"_a, "stacks"_a, "kind"_a,
             "rates"_a);
  module.def("placed_bags", &PlacedBags, "bags"_a, "rows"_a, "poolings"_a, "are_means"_a,
             "columns"_a, "counts"_a, "values"_a, "rates"_a, "kind"_a);
  module.def("held_plans", &HeldPlans, "rows"_a, "kind"_a);
  module.def("give_up_plans", &GiveUpPlans, "rows"_a, "most_idle"_a);
}

}  // namespace hps
