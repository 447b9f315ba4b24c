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

auto DiesAtOf(const LifeTable& table, FloatVector show, FloatVector click,
              PeriodVector last_period) {
  CheckShape(show.size() == click.size() && show.size() == last_period.size(),
             "show, click and last_period of one length are needed");
  NewVector<uint32_t> dies_at(show.size());
  const LifeRules rules = table.rules();
  {
    const nb::gil_scoped_release unlocked;
    const DefaultFloatMode mode;
    for (size_t i = 0; i < show.size(); ++i) {
      dies_at.data[i] = DiesAt(rules, show.data()[i], click.data()[i], last_period.data()[i]);
    }
  }
  return dies_at.Give();
}

auto ScoresOf(const LifeTable& table, FloatVector show, FloatVector click, PeriodVector gap) {
  CheckShape(show.size() == click.size() && show.size() == gap.size(),
             "show, click and gap of one length are needed");
  NewVector<float> scores(show.size());
  const LifeRules rules = table.rules();
  {
    const nb::gil_scoped_release unlocked;
    const DefaultFloatMode mode;
    for (size_t i = 0; i < show.size(); ++i) {
      const uint32_t known = std::min(gap.data()[i], kMostGap);
      scores.data[i] = Score(rules, show.data()[i], click.data()[i]) * rules.powers[known];
    }
  }
  return scores.Give();
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
