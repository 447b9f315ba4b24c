// LifeTable: the rules of one table with the powers of its decay, which the caches' LifeRules point
// into.
//
// Above it: the bindings, which keep it as long as a cache has its rules. Below it: life_rules.h.
// Immutable.
#pragma once

#include <vector>

#include "table/life_rules.h"

namespace hps {

// What a table's owner says; numbers are checked where they are declared, in Python.
struct LifeNumbers {
  uint32_t unseen = kMostGap;  // kMostGap: any number of periods
  float min_score = 0.0f;
  float decay = 1.0f;
  float nonclick = 0.0f;
  float click = 0.0f;
};

class LifeTable {
 public:
  explicit LifeTable(const LifeNumbers& numbers);

  const LifeNumbers& numbers() const { return numbers_; }
  LifeRules rules() const {
    return {powers_.data(), numbers_.min_score, numbers_.nonclick, numbers_.click, numbers_.unseen};
  }

 private:
  const LifeNumbers numbers_;
  std::vector<float> powers_;
};

}  // namespace hps
