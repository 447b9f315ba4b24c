// Admission: which of a window's fresh rows an update makes stored ones, and an update that leaves
// the others as they are.
//
// Above it: admission_body.h, which launches these on the host; no device launches them so far.
// Below it: table/admission.h, which decides of one key; updates.h. Order: FlagFresh, [sum up
// ranks], ListFresh, FindBeside where keys wait by rows of another cache; Admit...; then
// ApplyAdmitted in the place of Apply.
#pragma once

#include "gpu_cache/find.h"
#include "gpu_cache/updates.h"
#include "table/admission.h"

namespace hps {

// The fresh rows of a plan's window, and which keys an update withholds. K is their number.
struct FreshList {
  int32_t* ranks;     // [window] flag, then rank, of the fresh rows
  uint32_t* ids;      // [K]
  uint64_t* keys;     // [K]
  int64_t* beside;    // [K] slots of these keys in another cache, or kNoSlot
  uint8_t* withheld;  // [N] 1: the row, which is fresh, is to stay as it is; zero before Admit
};

struct ListFreshArgs {
  CacheArgs cache;
  BatchArgs batch;
  FreshList fresh;
  int64_t bound;  // work items: the window's keys, or more
};

struct FindBesideArgs {
  CacheArgs beside;
  FreshList fresh;
  uint32_t* num_missing;  // of them, and whose rows are on their way; zero before FindBeside
  int64_t count;          // K
};

struct AdmitArgs {
  CacheArgs cache;
  BatchArgs batch;
  FreshList fresh;
  CacheArgs beside;        // the records, or the rows whose scores count; or nothing
  const uint32_t* shows;   // [N] occurrences of each key; of a table with records
  const uint32_t* clicks;  // [N] of these, with label 1; or null
  int64_t count;           // K
  float least;             // shows, or score
  LifeRules rules;         // of the scores
  uint64_t number;         // of the update
  double probability;
};

struct ApplyAdmittedArgs {
  ApplyArgs apply;
  const uint8_t* withheld;  // [N] as FreshList has it
};

inline namespace HPS_BUILD {

// i: below bound. Then ranks are summed up.
template <class Group>
HPS_HD void FlagFreshOne(Group, const ListFreshArgs& args, int64_t i) {
  const bool is_in = IsInWindow(args.batch, i);
  const int64_t slot = is_in ? args.batch.slots[WindowId(args.batch, i)] : 0;
  args.fresh.ranks[i] = is_in && (args.cache.table.marks[slot].flags & kFresh) != 0;
}

// i: below bound.
template <class Group>
HPS_HD void ListFreshOne(Group, const ListFreshArgs& args, int64_t i) {
  const int32_t rank = args.fresh.ranks[i];
  if (rank == (i == 0 ? 0 : args.fresh.ranks[i - 1])) return;
  const int64_t id = WindowId(args.batch, i);
  args.fresh.ids[rank - 1] = static_cast<uint32_t>(id);
  args.fresh.keys[rank - 1] = args.batch.unique_keys[id];
}

// i: a listed key.
template <class Group>
HPS_HD void FindBesideOne(Group group, const FindBesideArgs& args, int64_t i) {
  if (i >= args.count) return;
  const int64_t slot = FindKey(group, args.beside, args.fresh.keys[i]);
  group.elect([&] {
    args.fresh.beside[i] = slot;
    if (slot != kNoSlot && args.beside.clock->keeps_stamps) Touch(args.beside, slot);
    const bool is_here = slot != kNoSlot && !(args.beside.table.marks[slot].flags & kPending);
    if (!is_here) AtomicAdd(args.num_missing, uint32_t{1});
  });
}

// i: a listed key. Its record counts the update.
template <class Group>
HPS_HD void AdmitCountedOne(Group, const AdmitArgs& args, int64_t i) {
  if (i >= args.count) return;
  const uint32_t id = args.fresh.ids[i];
  const CountRule rule = {args.least, args.cache.more_shows, args.beside.period, args.beside.rules};
  const uint32_t clicks = args.clicks == nullptr ? 0 : args.clicks[id];
  const bool is_admitted =
      CountWaiting(rule, args.shows[id], clicks, RowAt(args.beside.table, args.fresh.beside[i]),
                   RowAt(args.cache.table, args.batch.slots[id]));
  args.fresh.withheld[id] = !is_admitted;
  MarkUpdated(args.beside, args.fresh.beside[i], i);
}

// i: a listed key. Admitted by the score of its row beside, as whose counts its own then begin.
template <class Group>
HPS_HD void AdmitScoredOne(Group, const AdmitArgs& args, int64_t i) {
  if (i >= args.count) return;
  const uint32_t id = args.fresh.ids[i];
  const int64_t slot = args.fresh.beside[i];
  const RowStatistics& counted = *StatisticsOfRow(RowAt(args.beside.table, slot));
  const float power = DecayUntil(args.rules, counted, args.beside.period);
  const float score = Score(args.rules, counted.show, counted.click) * power;
  const bool is_stored = (args.beside.table.marks[slot].flags & kFresh) == 0;
  const bool is_admitted = is_stored && score >= args.least;
  args.fresh.withheld[id] = !is_admitted;
  if (is_admitted && args.cache.table.has_statistics()) {
    *StatisticsOfRow(RowAt(args.cache.table, args.batch.slots[id])) = {
        counted.show * power, counted.click * power, args.cache.period, kNeverDies};
  }
}

// i: a listed key.
template <class Group>
HPS_HD void AdmitDrawnOne(Group, const AdmitArgs& args, int64_t i) {
  if (i >= args.count) return;
  const double drawn =
      DrawAdmission(args.cache.initializer.stream, args.fresh.keys[i], args.number);
  args.fresh.withheld[args.fresh.ids[i]] = drawn >= args.probability;
}

// i: below bound. Apart from ApplyOne, so that tables which admit every key pay nothing for it.
template <OptimizerKind kKind, class Group>
HPS_HD void ApplyAdmittedOne(Group group, const ApplyAdmittedArgs& args, int64_t i) {
  const BatchArgs& batch = args.apply.batch;
  if (IsInWindow(batch, i) && args.withheld[WindowId(batch, i)]) return;
  ApplyOne<kKind>(group, args.apply, i);
}

}  // namespace HPS_BUILD
}  // namespace hps
