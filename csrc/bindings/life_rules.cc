// Python's view of table/life_table.h: the rules by which rows decay and die.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bindings/bind.h"
#include "bindings/cache_options.h"
#include "common/float_mode.h"
#include "table/life_table.h"

namespace nb = nanobind;

namespace hps {
namespace {

using namespace nb::literals;
using FloatVector = Vector<const float>;
using PeriodVector = Vector<const uint32_t>;

// As nb::new_ wants it.
LifeTable* MakeTable(uint32_t unseen, float min_score, float decay, float nonclick, float click) {
  return new LifeTable({std::min(unseen, kMostGap), min_score, decay, nonclick, click});
}

// value(rules, i) of each of `count` rows, as a new array.
template <typename Value, typename ValueAt>
auto OfEach(const LifeTable& table, size_t count, ValueAt value) {
  NewVector<Value> values(count);
  const LifeRules rules = table.rules();
  {
    const nb::gil_scoped_release unlocked;
    const DefaultFloatMode mode;
    for (size_t i = 0; i < count; ++i) values.data[i] = value(rules, i);
  }
  return values.Give();
}

void CheckLengths(const FloatVector& show, const FloatVector& click, const PeriodVector& periods) {
  CheckShape(show.size() == click.size() && show.size() == periods.size(),
             "show, click and periods of one length are needed");
}

auto DiesAtOf(const LifeTable& table, FloatVector show, FloatVector click,
              PeriodVector last_period) {
  CheckLengths(show, click, last_period);
  return OfEach<uint32_t>(table, show.size(), [&](const LifeRules& rules, size_t i) {
    return DiesAt(rules, show.data()[i], click.data()[i], last_period.data()[i]);
  });
}

auto ScoresOf(const LifeTable& table, FloatVector show, FloatVector click, PeriodVector gap) {
  CheckLengths(show, click, gap);
  return OfEach<float>(table, show.size(), [&](const LifeRules& rules, size_t i) {
    const float power = rules.powers[std::min(gap.data()[i], kMostGap)];
    return Score(rules, show.data()[i], click.data()[i]) * power;
  });
}

}  // namespace

void BindLifeRules(nb::module_& module) {
  nb::class_<LifeTable>(module, "LifeRules")
      .def(nb::new_(&MakeTable), nb::kw_only(), "unseen"_a, "min_score"_a, "decay"_a, "nonclick"_a,
           "click"_a)
      .def_prop_ro("unseen", [](const LifeTable& table) { return table.numbers().unseen; })
      .def_prop_ro("min_score", [](const LifeTable& table) { return table.numbers().min_score; })
      .def_prop_ro("decay", [](const LifeTable& table) { return table.numbers().decay; })
      .def_prop_ro("nonclick", [](const LifeTable& table) { return table.numbers().nonclick; })
      .def_prop_ro("click", [](const LifeTable& table) { return table.numbers().click; })
      .def("dies_at", &DiesAtOf, "show"_a.noconvert(), "click"_a.noconvert(),
           "last_period"_a.noconvert())
      .def("scores", &ScoresOf, "show"_a.noconvert(), "click"_a.noconvert(), "gap"_a.noconvert());
  module.attr("MAX_GAP") = kMostGap;
}

}  // namespace hps
