// The rounds of a reserve, in order, and the grouping that each needs: one list, which the host
// build walks (batch_verbs_body.h) and the launcher of a device, too
// (hps/gpu_cache/device_cache.py).
//
// Above it: batch_verbs_body.h, csrc/bindings/gpu_kernels.cc. Below it: reserve_kernels.h, which
// says what a round does.
#pragma once

#include "gpu_cache/reserve_kernels.h"

namespace hps {

struct ReserveRound {
  int32_t number;     // ReserveArgs::round
  Grouping grouping;  // ReserveArgs::grouping
  bool groups;        // the lists are to be made for it; else those of an earlier round are taken
};

inline constexpr ReserveRound kReserveRounds[] = {{1, kByFirst, true},  {2, kByEmptier, true},
                                                  {3, kByFirst, false}, {4, kBySecond, true},
                                                  {5, kByFirst, false}, {6, kBySecondAgain, true}};
// Of a table that had no free slot when the window was looked up: victims alone.
inline constexpr ReserveRound kReserveRoundsOfFullTable[] = {{5, kByFirst, true},
                                                             {6, kBySecondAgain, true}};

// Calls visit(round) for each round of a reserve.
template <class Visit>
inline void ForReserveRounds(bool is_full, const Visit& visit) {
  if (is_full) {
    for (const ReserveRound& round : kReserveRoundsOfFullTable) visit(round);
  } else {
    for (const ReserveRound& round : kReserveRounds) visit(round);
  }
}

// Rounds ascend to the last one, and lists are made before they are taken.
template <size_t kCount>
constexpr bool IsSound(const ReserveRound (&rounds)[kCount]) {
  bool is_made[kNumGroupings] = {};
  for (size_t i = 0; i < kCount; ++i) {
    if (i > 0 && rounds[i].number <= rounds[i - 1].number) return false;
    is_made[rounds[i].grouping] = is_made[rounds[i].grouping] || rounds[i].groups;
    if (!is_made[rounds[i].grouping]) return false;
  }
  return rounds[kCount - 1].number == kNumRounds;
}
static_assert(IsSound(kReserveRounds) && IsSound(kReserveRoundsOfFullTable));

}  // namespace hps
