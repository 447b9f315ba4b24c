// Which waiting keys come by a row: what is decided of one key, by the count of its record, by the
// score of its row in another table, or by a draw.
//
// Above it: the admission of both caches. Below it: life_rules.h. Everything is float32 arithmetic,
// each step rounded, and whole numbers, so that keys are admitted alike wherever rows lie.
#pragma once

#include "common/key_hash.h"
#include "table/life_rules.h"

namespace hps {

// By which the records of waiting keys count.
struct CountRule {
  float least;       // shows that admit a key
  float more_shows;  // of the row's table, see ShowsOf
  uint32_t period;   // in which its updates count
  LifeRules rules;   // of the records
};

inline namespace HPS_BUILD {

HPS_HD RowStatistics* StatisticsOfRow(uint8_t* row) {
  return reinterpret_cast<RowStatistics*>(row + kStatisticsAt);
}

// Counts an update in a key's record, of so many occurrences and clicks, which show as those of the
// row's table do; both are rows with statistics. If that admits the key, empties the record, has
// the row begin with what was counted before, to which the update adds, and returns true.
HPS_HD bool CountWaiting(const CountRule& rule, uint32_t occurrences, uint32_t clicks,
                         uint8_t* record, uint8_t* row) {
  RowStatistics* const counted = StatisticsOfRow(record);
  const RowStatistics before = {counted->show, counted->click, rule.period, kNeverDies};
  const float show = before.show + ShowsOf(occurrences, clicks, rule.more_shows);
  if (show >= rule.least) {
    *StatisticsOfRow(row) = before;
    SetStatistics(record, {0.0f, 0.0f, rule.period, kNeverDies}, rule.rules);
    return true;
  }
  // Of a record with a show: its score, which does not decay, is no reason to die.
  const bool is_mortal = rule.rules.unseen < kMostGap;
  *counted = {show, before.click + static_cast<float>(clicks), rule.period,
              is_mortal ? rule.period + rule.rules.unseen + 1 : kNeverDies};
  return false;
}

// By what shows and clicks of a row are multiplied in a period.
HPS_HD float DecayUntil(const LifeRules& rules, const RowStatistics& counted, uint32_t period) {
  const uint32_t gap = period - counted.last_period;
  return rules.powers[gap < kMostGap ? gap : kMostGap];
}

// A number from 0 to below 1.
HPS_HD double DrawAdmission(uint64_t stream, uint64_t key, uint64_t number) {
  const uint64_t hash = MixKey(MixKey(key ^ stream) + MixKey(~number));
  return static_cast<double>(hash >> 11) * 0x1p-53;
}

}  // namespace HPS_BUILD
}  // namespace hps
