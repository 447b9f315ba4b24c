// hps._C.DeviceTable, DevicePlanState, DeviceMemory, SumsLayout, DeviceKeys, DeviceBags; see
// device_plan.h.
#include "bindings/device_plan.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>

#include "bindings/bind.h"
#include "bindings/cache_options.h"
#include "bindings/device_bags.h"

using namespace nb::literals;

namespace hps {
namespace {

nb::bytes BytesOf(const DevicePlanState& plan) {
  return nb::bytes(&plan.batch, sizeof(plan.batch));
}

// Memory for a batch of so many keys: BatchArgs with its arrays' addresses.
// Args:
//   memory: of which `part` is a part.
void SetArrays(DevicePlanState& plan, const nb::bytes& words, int64_t capacity, nb::object memory,
               nb::object part) {
  CheckShape(words.size() == sizeof(plan.batch), "the bytes of BatchArgs are needed");
  std::memcpy(&plan.batch, words.c_str(), sizeof(plan.batch));
  plan.capacity = capacity;
  plan.memory.Set(std::move(memory));
  plan.part = std::move(part);
}

// Memory for no batch: what it has is given back.
void DropArrays(DevicePlanState& plan) {
  plan.Clear();
  plan.batch = {};
  plan.capacity = -1;
  plan.memory.Set(nb::none());
  plan.part = nb::none();
}

void TakeNumbers(DevicePlanState& plan,
                 nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> words) {
  CheckShape(plan.asked_at >= 0 &&
                 words.size() >= static_cast<size_t>(plan.asked_at) + sizeof(plan.numbers),
             "the bytes of BatchNumbers are needed");
  std::memcpy(&plan.numbers, words.data() + plan.asked_at, sizeof(plan.numbers));
  plan.has_numbers = true;
  plan.known_unique = plan.numbers.num_unique;
}

void SetWindow(DevicePlanState& plan, int64_t first, int64_t count) {
  plan.first = first;
  plan.count = count;
  plan.has_rows = -1;
  plan.pins_if_whole = false;
  plan.ForgetNumbers();
}

// All keys of each batch are looked up next, and pinned by that where it is asked for, unless a row
// of the table may have all its pins: of that the host has to hear.
void StartWindows(const nb::list& plans, const std::vector<bool>& pins) {
  CheckShape(plans.size() == pins.size(), "whether each plan is to be pinned is needed");
  for (size_t i = 0; i < pins.size(); ++i) {
    auto* const plan = nb::cast<DevicePlanState*>(plans[i]);
    SetWindow(*plan, 0, -1);
    if (!pins[i] || plan->table.ptr->num_held >= DeviceTable::kMostPins) continue;
    plan->Hold();
    plan->pins_if_whole = true;
  }
}

// Of look-ups that are queued: a copy that brings the numbers of all, one behind the other, or None
// as long as there is none.
void NoteFound(const nb::list& plans, const nb::object& copy) {
  int64_t at = 0;
  for (const nb::handle one : plans) {
    auto* const plan = nb::cast<DevicePlanState*>(one);
    plan->asked = copy;
    plan->asked_at = at;
    plan->state = PlanState::kFound;
    plan->epoch = plan->table.ptr->epoch;
    at += static_cast<int64_t>(sizeof(BatchNumbers));
  }
}

std::optional<bool> HasRows(const DevicePlanState& plan) {
  if (plan.has_rows < 0) return std::nullopt;
  return plan.has_rows != 0;
}

// Those whose rows may not be in place, or of which the host does not know whether they are.
// Args:
//   whole: or whose window may not be all of the batch.
nb::list Uncertain(const nb::list& plans, bool whole) {
  nb::list found;
  for (const nb::handle one : plans) {
    const auto* const plan = nb::cast<DevicePlanState*>(one);
    const bool is_found = plan->state == PlanState::kFound && plan->has_rows > 0 &&
                          plan->epoch == plan->table.ptr->epoch && plan->is_surely_whole();
    const bool is_pinned = plan->state == PlanState::kPinned && (!whole || plan->is_surely_whole());
    if (!is_found && !is_pinned) found.append(one);
  }
  return found;
}

// Those that hold slots; the others hold nothing from now on.
nb::list Holding(const nb::list& plans) {
  nb::list found;
  for (const nb::handle one : plans) {
    auto* const plan = nb::cast<DevicePlanState*>(one);
    const bool is_idle = plan->state == PlanState::kKeys || plan->state == PlanState::kFound;
    if (is_idle && !plan->pins_if_whole) {
      plan->LetGo();
    } else {
      found.append(one);
    }
  }
  return found;
}

// Those that are in a state, with their keys.
nb::list InState(const nb::list& plans, PlanState state) {
  nb::list found;
  for (const nb::handle one : plans) {
    if (nb::cast<DevicePlanState*>(one)->state == state) found.append(one);
  }
  return found;
}

// Waits for the numbers of look-ups, and takes them; those that are not on their way.
nb::list TakeAllNumbers(const nb::list& plans) {
  nb::list others;
  nb::object last = nb::none();  // the copy that was waited for, which is of many plans
  nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> words;
  for (const nb::handle one : plans) {
    auto* const plan = nb::cast<DevicePlanState*>(one);
    if (plan->has_numbers || plan->num_occurrences == 0) continue;
    if (plan->asked.is_none()) {
      others.append(one);
      continue;
    }
    if (!plan->asked.is(last)) {
      words = nb::cast<decltype(words)>(plan->asked.attr("wait")());
      last = plan->asked;
    }
    TakeNumbers(*plan, words);
  }
  return others;
}

// The plans whose look-ups have pinned them, of look-ups whose numbers are known; the others hold
// nothing.
nb::list EndPinning(const nb::list& plans) {
  nb::list found;
  for (const nb::handle one : plans) {
    auto* const plan = nb::cast<DevicePlanState*>(one);
    if (plan->EndPinning()) {
      found.append(one);
    } else {
      plan->LetGo();
    }
  }
  return found;
}

// Missing rows were published: the plans pin their windows.
void SetPinned(const nb::list& plans) {
  for (const nb::handle one : plans) {
    auto* const plan = nb::cast<DevicePlanState*>(one);
    plan->state = PlanState::kPinned;
    plan->has_rows = 1;
  }
}

// True if a reserve may follow: each window was looked up, and no slot has moved since.
bool AreReservable(const nb::list& plans) {
  for (const nb::handle one : plans) {
    const auto* const plan = nb::cast<DevicePlanState*>(one);
    if (plan->state != PlanState::kFound || plan->epoch != plan->table.ptr->epoch) return false;
  }
  return true;
}

// A release is queued: rows may have moved since the reserve if other batches reserved meanwhile.
void SetReleased(const nb::list& plans) {
  for (const nb::handle one : plans) {
    auto* const plan = nb::cast<DevicePlanState*>(one);
    plan->state = PlanState::kFound;
    plan->given = nb::none();
    plan->pooling = {};
    plan->LetGo();
  }
}

// Nothing more is updated by the sums of plans.
void EndUpdates(const nb::list& plans) {
  for (const nb::handle one : plans) nb::cast<DevicePlanState*>(one)->EndUpdate();
}

void AppendMemory(const Owned<DeviceMemory>& memory, uint64_t stream, bool all, nb::list* found) {
  if (memory.ptr == nullptr) return;
  if (memory.ptr->IsNewTo(stream) || all) found->append(memory.owner);
}

// The memory of plans, of their tables and of their sums: all of it, or what a stream is new to.
nb::list MemoryOf(const nb::list& plans, uint64_t stream, bool all) {
  nb::list found;
  const SumsLayout* last = nullptr;
  for (const nb::handle one : plans) {
    const auto* const plan = nb::cast<DevicePlanState*>(one);
    AppendMemory(plan->table.ptr->memory, stream, all, &found);
    AppendMemory(plan->memory, stream, all, &found);
    if (plan->sums.ptr != nullptr && plan->sums.ptr != last) {
      const SumsLayout& sums = *plan->sums.ptr;
      AppendMemory(sums.memory, stream, all, &found);
      if (!sums.tensors.is_none() && (all || sums.stream != stream)) found.extend(sums.tensors);
    }
    last = plan->sums.ptr;
  }
  return found;
}

void BindPlan(nb::module_& module) {
  nb::enum_<PlanState>(module, "PlanState")
      .value("KEYS", PlanState::kKeys)
      .value("FOUND", PlanState::kFound)
      .value("RESERVING", PlanState::kReserving)
      .value("RESERVED", PlanState::kReserved)
      .value("PINNED", PlanState::kPinned);
  nb::class_<DevicePlanState>(module, "DevicePlanState")
      .def(nb::init<nb::object>(), "table"_a)
      .def_prop_ro("table", [](const DevicePlanState& plan) { return plan.table.owner; })
      .def_prop_ro("memory", [](const DevicePlanState& plan) { return plan.memory.owner; })
      .def_prop_ro("sums",
                   [](const DevicePlanState& plan) -> nb::object {
                     return plan.sums.ptr == nullptr ? nb::none() : plan.sums.owner;
                   })
      .def_prop_ro("batch", &BytesOf)
      .def("set_arrays", &SetArrays, "batch"_a, "capacity"_a, "memory"_a, "part"_a)
      .def("drop_arrays", &DropArrays)
      .def("clear", &DevicePlanState::Clear)
      .def_ro("part", &DevicePlanState::part)
      .def_ro("capacity", &DevicePlanState::capacity)
      .def_rw("state", &DevicePlanState::state)
      .def_rw("epoch", &DevicePlanState::epoch)
      .def_ro("pins_if_whole", &DevicePlanState::pins_if_whole)
      .def_ro("is_held", &DevicePlanState::is_held)
      .def_ro("num_occurrences", &DevicePlanState::num_occurrences)
      .def_ro("first", &DevicePlanState::first)
      .def_ro("count", &DevicePlanState::count)
      .def("start_window", &SetWindow, "first"_a, "count"_a)
      .def_prop_rw("has_rows", &HasRows,
                   [](DevicePlanState& plan, bool has_rows) { plan.has_rows = has_rows ? 1 : 0; })
      .def_ro("known_unique", &DevicePlanState::known_unique)
      .def_ro("has_numbers", &DevicePlanState::has_numbers)
      .def_rw("asked", &DevicePlanState::asked, nb::arg().none())
      .def_rw("asked_at", &DevicePlanState::asked_at)
      .def("take_numbers", &TakeNumbers, "words"_a)
      .def_prop_ro("told_missing",
                   [](const DevicePlanState& plan) { return plan.numbers.num_missing; })
      .def_rw("victims", &DevicePlanState::victims, nb::arg().none())
      .def_rw("missing", &DevicePlanState::missing, nb::arg().none())
      .def_rw("incoming", &DevicePlanState::incoming, nb::arg().none())
      .def_prop_ro("bound", &DevicePlanState::bound)
      .def_prop_ro("bound_of_unique", &DevicePlanState::bound_of_unique)
      .def_prop_ro("is_looked_up", &DevicePlanState::is_looked_up);
}

void BindKeysAndBags(nb::module_& module) {
  nb::class_<DeviceKeys>(module, "DeviceKeys")
      .def(nb::init<int32_t, int32_t>(), "device_type"_a, "device_number"_a)
      .def(
          "add",
          [](DeviceKeys& keys, const nb::list& given) {
            keys.tables.reserve(keys.tables.size() + given.size());
            for (const nb::handle one : given) {
              if (!keys.AddIfRight(one)) return false;
            }
            return true;
          },
          "keys"_a)
      .def("__len__", [](const DeviceKeys& keys) { return keys.tables.size(); })
      .def_prop_ro("count", &DeviceKeys::count)
      .def_prop_ro("num_of_host", &DeviceKeys::num_of_host)
      .def("piece", &DeviceKeys::Piece, "first"_a, "count"_a)
      .def_prop_ro("lengths",
                   [](const DeviceKeys& keys) {
                     std::vector<int64_t> lengths;
                     for (const KeysOfTable& one : keys.tables) lengths.push_back(one.count);
                     return lengths;
                   })
      .def_prop_ro("tensors", [](const DeviceKeys& keys) {
        nb::list tensors;
        for (const KeysOfTable& one : keys.tables) {
          if (one.is_on_device) tensors.append(one.owner);
        }
        return tensors;
      });
  nb::class_<DeviceBags>(module, "DeviceBags")
      .def(nb::init<int32_t, int32_t>(), "device_type"_a, "device_number"_a)
      .def("add", &DeviceBags::Add, "plan"_a, "offsets"_a.none(), "weights"_a.none(), "mean"_a,
           "values"_a, "lr"_a = 0.0f)
      .def("drop_empty", &DeviceBags::DropEmpty)
      .def("__len__", [](const DeviceBags& bags) { return bags.tables.size(); })
      .def("add_step", &DeviceBags::AddStep, "plan"_a, "lr"_a)
      .def(
          "keep", [](DeviceBags& bags, nb::object part) { bags.parts.append(part); }, "part"_a)
      .def_prop_ro("plans", &DeviceBags::Plans)
      .def_prop_ro("stacks",
                   [](const DeviceBags& bags) {
                     nb::list stacks;
                     for (const BagsOfPlan& one : bags.tables) {
                       CheckShape(one.stack.is_valid(), "bags of rows of stacks are needed");
                       stacks.append(one.stack);
                     }
                     return stacks;
                   })
      .def_ro("tensors", &DeviceBags::tensors);
}

}  // namespace

void BindDevicePlan(nb::module_& module) {
  nb::class_<DeviceMemory>(module, "DeviceMemory")
      .def(nb::init<nb::object>(), "memory"_a)
      .def_prop_ro("memory", &DeviceMemory::memory)
      .def("is_new_to", &DeviceMemory::IsNewTo, "stream"_a);
  nb::class_<DeviceTable>(module, "DeviceTable")
      .def(nb::init<const nb::bytes&, nb::object>(), "args"_a, "piece"_a)
      .def_prop_ro("piece", [](const DeviceTable& table) { return table.memory.owner; })
      .def_ro("num_swept", &DeviceTable::num_swept)
      .def_rw("epoch", &DeviceTable::epoch)
      .def_ro("num_held", &DeviceTable::num_held)
      .def_rw("number", &DeviceTable::number)
      .def("take_hits", [](DeviceTable& table) { return std::exchange(table.hits, 0); })
      .def_rw("is_watched", &DeviceTable::is_watched)
      .def_prop_ro("has_pins",
                   [](const DeviceTable& table) { return table.num_held < DeviceTable::kMostPins; })
      .def(
          "note_held", [](DeviceTable&, DevicePlanState& plan) { plan.Hold(); }, "plan"_a)
      .def("let_go", [](DeviceTable&, DevicePlanState& plan) { plan.LetGo(); }, "plan"_a);
  BindPlan(module);
  nb::class_<SumsLayout>(module, "SumsLayout")
      .def(
          "__init__",
          [](SumsLayout* layout, nb::object memory, const std::vector<uint64_t>& addresses,
             const std::vector<int64_t>& room) {
            constexpr size_t kNumArrays = SumsLayout::kNumArrays;
            CheckShape(addresses.size() == kNumArrays && room.size() == kNumArrays,
                       "an address and a size of each array are needed");
            new (layout) SumsLayout;
            layout->memory.Set(std::move(memory));
            std::copy(addresses.begin(), addresses.end(), layout->addresses);
            std::copy(room.begin(), room.end(), layout->room);
          },
          "memory"_a, "addresses"_a, "room"_a)
      .def_ro("num_pending", &SumsLayout::num_pending);
  BindKeysAndBags(module);
  module.def("start_windows", &StartWindows, "plans"_a, "pins"_a);
  module.def("note_found", &NoteFound, "plans"_a, "copy"_a.none());
  module.def("uncertain_plans", &Uncertain, "plans"_a, "whole"_a);
  module.def("holding_plans", &Holding, "plans"_a);
  module.def("plans_in", &InState, "plans"_a, "state"_a);
  module.def("take_numbers", &TakeAllNumbers, "plans"_a);
  module.def("end_pinning", &EndPinning, "plans"_a);
  module.def("are_reservable", &AreReservable, "plans"_a);
  module.def("set_pinned", &SetPinned, "plans"_a);
  module.def("set_released", &SetReleased, "plans"_a);
  module.def("end_updates", &EndUpdates, "plans"_a);
  module.def("memory_of", &MemoryOf, "plans"_a, "stream"_a, "all"_a);
}

}  // namespace hps
