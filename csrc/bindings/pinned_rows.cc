// hps._C.pinned_reads, pinned_updates, held_plans, give_up_plans: what a step over tables on a
// device is made from, read from the server's own objects in one call for all tables, so that a
// table more costs Python nothing. What is in any way unusual is left to Python, which tells what
// is wrong with it, or does it table by table.
//
// Above it: hps/tiers/tables_together.py; the objects are PooledRead, RowUpdate and BatchRows.
// Below it: device_bags.h.
#include <nanobind/nanobind.h>

#include "bindings/bind.h"
#include "bindings/device_bags.h"
#include "bindings/fields.h"

using namespace nb::literals;

namespace hps {
namespace {

// Fields of the server's objects.
struct FieldNames {
  PyObject* const table = PyUnicode_InternFromString("table");
  PyObject* const rows = PyUnicode_InternFromString("rows");
  PyObject* const keys = PyUnicode_InternFromString("keys");
  PyObject* const grads = PyUnicode_InternFromString("grads");
  PyObject* const out = PyUnicode_InternFromString("out");
  PyObject* const pooling = PyUnicode_InternFromString("pooling");
  PyObject* const bags = PyUnicode_InternFromString("bags");
  PyObject* const offsets = PyUnicode_InternFromString("offsets");
  PyObject* const weights = PyUnicode_InternFromString("weights");
  PyObject* const is_mean = PyUnicode_InternFromString("is_mean");
  PyObject* const num_occurrences = PyUnicode_InternFromString("num_occurrences");
  PyObject* const plan = PyUnicode_InternFromString("plan");
  PyObject* const stack = PyUnicode_InternFromString("stack");
  PyObject* const gate = PyUnicode_InternFromString("gate");
  PyObject* const plans_in_flight = PyUnicode_InternFromString("plans_in_flight");
  PyObject* const idle_plans = PyUnicode_InternFromString("idle_plans");
  PyObject* const are_of = PyUnicode_InternFromString("are_of");
};

const FieldNames& Names() {
  static const FieldNames* const names = new FieldNames;  // Python's, to the end of the process
  return *names;
}

uint64_t NewMark() {
  static uint64_t last = 0;
  return ++last;
}

// The pinned rows of one table's part of a step.
struct PinnedRows {
  nb::object table, rows, stack, owner;
  DevicePlanState* plan = nullptr;
};

// False unless they are rows of that kind, pinned, of that table of those stacks, which was not
// met before under that mark.
bool FindRows(nb::handle part, const nb::dict& stacks, nb::handle kind, uint64_t mark,
              PinnedRows* found) {
  const FieldNames& names = Names();
  found->rows = GetField(part, names.rows);
  if (!found->rows.type().is(kind)) return false;
  found->table = GetField(part, names.table);
  found->stack = GetField(found->rows, names.stack);
  PyObject* const own = PyDict_GetItemWithError(stacks.ptr(), found->table.ptr());
  if (own == nullptr) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return false;
  }
  if (own != found->stack.ptr()) return false;
  found->owner = GetField(found->rows, names.plan);
  if (!nb::isinstance<DevicePlanState>(found->owner)) return false;
  found->plan = nb::cast<DevicePlanState*>(found->owner);
  return std::exchange(found->plan->mark, mark) != mark;
}

// Adds the bags of a BagPooling.
bool AddPooled(const PinnedRows& part, nb::handle pooling, nb::handle values, float lr,
               DeviceBags* bags) {
  const FieldNames& names = Names();
  const nb::object own = GetField(pooling, names.bags);
  const int64_t count = nb::cast<int64_t>(GetField(own, names.num_occurrences));
  if (count != part.plan->num_occurrences) return false;
  return bags->AddIfRight(part.owner, part.plan, GetField(own, names.offsets),
                          GetField(pooling, names.weights),
                          GetField(pooling, names.is_mean).is(Py_True), values, lr);
}

// True if the rows are those of these keys.
bool AreOf(const PinnedRows& part, nb::handle keys) {
  return part.plan->IsOf(keys) || nb::cast<bool>(GetField(part.rows, Names().are_of)(keys));
}

// The bags of PooledReads, all of whose rows are pinned; false, and some may have been added, if
// one is anything else. `kind`: the class of such rows.
bool PinnedReads(DeviceBags& bags, const nb::list& reads, const nb::dict& stacks, nb::handle kind) {
  const FieldNames& names = Names();
  const uint64_t mark = NewMark();
  for (const nb::handle read : reads) {
    PinnedRows part;
    if (!FindRows(read, stacks, kind, mark, &part)) return false;
    const nb::object pooling = GetField(read, names.pooling);
    if (!AddPooled(part, pooling, GetField(read, names.out), 0.0f, &bags)) return false;
  }
  return true;
}

// The same of RowUpdates, with the learning rates of their tables.
bool PinnedUpdates(DeviceBags& bags, const nb::list& updates, const nb::dict& stacks,
                   nb::handle kind, const nb::dict& rates) {
  const FieldNames& names = Names();
  const uint64_t mark = NewMark();
  for (const nb::handle update : updates) {
    PinnedRows part;
    if (!FindRows(update, stacks, kind, mark, &part)) return false;
    if (!GetField(part.stack, names.gate).is_none()) return false;
    if (!AreOf(part, GetField(update, names.keys))) return false;
    PyObject* const rate = PyDict_GetItemWithError(rates.ptr(), part.table.ptr());
    const double lr = rate == nullptr ? -1.0 : PyFloat_AsDouble(rate);
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    if (rate == nullptr) return false;
    const nb::object pooling = GetField(update, names.pooling),
                     grads = GetField(update, names.grads);
    const auto rounded = static_cast<float>(lr);
    const bool is_added = pooling.is_none() ? bags.AddIfRight(part.owner, part.plan, nb::handle(),
                                                              nb::handle(), false, grads, rounded)
                                            : AddPooled(part, pooling, grads, rounded, &bags);
    if (!is_added) return false;
    const BagsOfPlan& added = bags.tables.back();
    if (added.num_rows != added.num_bags) return false;
    if (added.width != part.plan->table.ptr->args.dim) return false;
  }
  return true;
}

// The plans of the rows that have one; None if some rows are of another kind.
nb::object HeldPlans(const nb::list& rows, nb::handle kind) {
  nb::list plans;
  for (const nb::handle one : rows) {
    if (!one.type().is(kind)) return nb::none();
    const nb::object plan = GetField(one, Names().plan);
    if (plan.is_none()) continue;
    if (!nb::isinstance<DevicePlanState>(plan)) return nb::none();
    plans.append(plan);
  }
  return plans;
}

// The plans of rows become their stacks' again, which keep so many; as TableStack.keep_plan.
void GiveUpPlans(const nb::list& rows, size_t most_idle) {
  const FieldNames& names = Names();
  for (const nb::handle one : rows) {
    const nb::object plan = GetField(one, names.plan);
    if (plan.is_none()) continue;
    if (PyObject_SetAttr(one.ptr(), names.plan, Py_None) != 0) throw nb::python_error();
    const nb::object stack = GetField(one, names.stack);
    if (PySet_Discard(GetField(stack, names.plans_in_flight).ptr(), plan.ptr()) < 0) {
      throw nb::python_error();
    }
    auto idle = nb::cast<nb::list>(GetField(stack, names.idle_plans));
    if (idle.size() < most_idle) idle.append(plan);
  }
}

}  // namespace

void BindPinnedRows(nb::module_& module) {
  module.def("pinned_reads", &PinnedReads, "bags"_a, "reads"_a, "stacks"_a, "kind"_a);
  module.def("pinned_updates", &PinnedUpdates, "bags"_a, "updates"_a, "stacks"_a, "kind"_a,
             "rates"_a);
  module.def("held_plans", &HeldPlans, "rows"_a, "kind"_a);
  module.def("give_up_plans", &GiveUpPlans, "rows"_a, "most_idle"_a);
}

}  // namespace hps
