// The powers of a decay, once.
//
// Above it: life_table.h. Below it: nothing.
#include "table/life_table.h"

#include "common/float_mode.h"

namespace hps {

LifeTable::LifeTable(const LifeNumbers& numbers) : numbers_(numbers), powers_(kMostGap + 1) {
  const DefaultFloatMode mode;
  float power = 1.0f;
  for (float& entry : powers_) {
    entry = power;
    power *= numbers.decay;
  }
}

}  // namespace hps
