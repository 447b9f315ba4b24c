// LifeRules: by which a row with statistics decays and dies.
//
// Above it: the updates of both caches, on host and device. Below it: row_layout.h. A row's shows
// and clicks are those of its last period; in a later one they are multiplied by decay^gap, once,
// when an update or an assignment makes up for the gap. From them follows the period of death,
// which the row carries: in it, and in every later one, the row is absent. Everything is float32
// products, sums and comparisons, each rounded, so that it has the same bits everywhere; the
// readable twin is hps/common/life_rules.py.
#pragma once

#include "table/row_layout.h"

namespace hps {

// Gaps count up to here; a row whose rules let it live longer than this unseen never dies.
inline constexpr uint32_t kMostGap = 65535;

struct LifeRules {
  // decay^gap for gaps up to kMostGap, by successive products; null: rows neither decay nor die.
  const float* powers;
  float min_score;  // a row with a smaller decayed score is dead; 0: none is
  float nonclick;   // what a show without a click is worth
  float click;      // what a click is worth
  uint32_t unseen;  // a row that was not updated for more periods is dead; kMostGap: none is
};

inline namespace HPS_BUILD {

HPS_HD float Score(const LifeRules& rules, float show, float click) {
  const float nonclicks = show - click;
  return rules.nonclick * nonclicks + rules.click * click;
}

// The first period in which a row is dead that was last updated in `last`; kNeverDies if there is
// none. It is alive in `last`.
HPS_HD uint32_t DiesAt(const LifeRules& rules, float show, float click, uint32_t last) {
  const float score = Score(rules, show, click);
  // In the gaps from 1 on: none below `low` is deadly, `high` is, or there is none.
  uint32_t low = 1;
  uint32_t high = rules.unseen < kMostGap ? rules.unseen + 1 : kMostGap;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (score * rules.powers[middle] < rules.min_score) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const bool is_deadly = rules.unseen < kMostGap || score * rules.powers[low] < rules.min_score;
  return is_deadly ? last + low : kNeverDies;
}

// Shows and clicks of a row as they are in `period`, with `shows` and `clicks` more of an update.
// Both come from whole numbers of the batch, so that the order of its occurrences is no matter.
HPS_HD void AddCounts(uint8_t* row, float shows, float clicks, uint32_t period,
                      const LifeRules& rules) {
  auto* const statistics = reinterpret_cast<RowStatistics*>(row + kStatisticsAt);
  float show = statistics->show;
  float click = statistics->click;
  if (rules.powers != nullptr) {
    const uint32_t gap = period - statistics->last_period;
    const float power = rules.powers[gap < kMostGap ? gap : kMostGap];
    show *= power;
    click *= power;
  }
  show += shows;
  click += clicks;
  statistics->show = show;
  statistics->click = click;
  statistics->last_period = period;
  if (rules.powers != nullptr) statistics->dies_at = DiesAt(rules, show, click, period);
}

// The shows of `occurrences` of a key, `clicks` of them with label 1: one each, and `more_shows`
// beside it for each that is no click, where these are a sample.
HPS_HD float ShowsOf(uint32_t occurrences, uint32_t clicks, float more_shows) {
  const float more = more_shows * static_cast<float>(occurrences - clicks);
  return static_cast<float>(occurrences) + more;
}

// An update in a period, of `occurrences`, `clicks` of them with label 1.
HPS_HD void CountUpdate(uint8_t* row, uint32_t occurrences, uint32_t clicks, float more_shows,
                        uint32_t period, const LifeRules& rules) {
  AddCounts(row, ShowsOf(occurrences, clicks, more_shows), static_cast<float>(clicks), period,
            rules);
}

// A row that was given a value otherwise: it is seen, and counts nothing.
HPS_HD void NoteSeen(uint8_t* row, uint32_t period, const LifeRules& rules) {
  AddCounts(row, 0.0f, 0.0f, period, rules);
}

HPS_HD void SetStatistics(uint8_t* row, const RowStatistics& statistics, const LifeRules& rules) {
  auto* const target = reinterpret_cast<RowStatistics*>(row + kStatisticsAt);
  target->show = statistics.show;
  target->click = statistics.click;
  target->last_period = statistics.last_period;
  target->dies_at = rules.powers == nullptr
                        ? kNeverDies
                        : DiesAt(rules, statistics.show, statistics.click, statistics.last_period);
}

}  // namespace HPS_BUILD

}  // namespace hps
