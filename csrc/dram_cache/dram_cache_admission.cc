// The verbs of DramCache that decide which new keys come by a row.
#include <vector>

#include "common/check.h"
#include "dram_cache/dram_cache.h"
#include "table/admission.h"

namespace hps {
namespace {

constexpr int64_t kAhead = 16;  // rows asked for before the first of them is used

// Calls body(i, slot) for each of a worker's listed keys, with its slot in another table.
template <class Body>
void ForListed(const CacheView& beside, const WorkerBatch& worker, Body body) {
  for (int64_t i = 0; i < worker.num_listed; ++i) {
    if (i + kAhead < worker.num_listed) {
      __builtin_prefetch(RowAt(beside.table, worker.beside[i + kAhead]), 1);
      __builtin_prefetch(beside.table.marks + worker.beside[i + kAhead], 1);
    }
    body(i, worker.beside[i]);
  }
}

}  // namespace

int64_t DramCache::ListFresh(BatchPlan* plan, DramCache* beside) {
  HPS_CHECK(plan->state != BatchPlan::State::kEach && IsCurrent(*plan));
  Follow(plan);
  plan->PrepareFresh();
  const SlotMark* const marks = view_.table.marks;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    int64_t count = 0;
    for (int64_t id = worker->window_begin; id < worker->window_end; ++id) {
      if (id + kAhead < worker->window_end) __builtin_prefetch(marks + worker->slots[id + kAhead]);
      worker->fresh[count] = static_cast<uint32_t>(id);
      worker->fresh_keys[count] = worker->keys[id];
      count += (marks[worker->slots[id]].flags & kFresh) != 0;
    }
    worker->num_listed = count;
    worker->result = 0;
    if (beside == nullptr) return;
    __builtin_memset(worker->fresh_keys + count, 0, KeyShares::kKeyPadding * sizeof(uint64_t));
    std::vector<uint32_t> missing(static_cast<size_t>(count));
    WorkerBatch other = {};
    other.keys = worker->fresh_keys;
    other.slots = worker->beside;
    other.missing = missing.data();
    other.num_unique = other.window_end = count;
    beside->loops_->find(beside->view_, &other);
    worker->result = other.num_missing;
    if (beside->num_pending_ == 0) return;
    ForListed(beside->view_, *worker, [&](int64_t, int64_t slot) {
      if (slot == kNoSlot) return;
      worker->result += (beside->view_.table.marks[slot].flags & kPending) != 0;
    });
  });
  int64_t num_missing = 0;
  plan->ForWorkersInTurn([&](WorkerBatch* worker) { num_missing += worker->result; });
  return num_missing;
}

void DramCache::AdmitCounted(BatchPlan* plan, DramCache* records, float least) {
  HPS_CHECK(IsCurrent(*plan) && view_.table.has_statistics());
  Follow(plan);
  const CacheView& view = records->view_;
  HPS_CHECK(view.table.has_statistics() && view.rules.powers != nullptr);
  const CountRule rule = {least, view_.more_shows, view.period, view.rules};
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    int64_t num_created = 0;
    int64_t num_dirtied = 0;
    ForListed(view, *worker, [&](int64_t i, int64_t slot) {
      const uint32_t id = worker->fresh[i];
      const uint32_t clicks = worker->clicks == nullptr ? 0 : worker->clicks[id];
      const bool is_admitted =
          CountWaiting(rule, worker->counts[id], clicks, RowAt(view.table, slot),
                       RowAt(view_.table, worker->slots[id]));
      worker->withheld[id] = !is_admitted;
      uint8_t& flags = view.table.marks[slot].flags;
      num_created += (flags & kFresh) != 0;
      num_dirtied += (flags & kDirty) == 0;
      flags = static_cast<uint8_t>((flags & ~kFresh) | kDirty);
    });
    worker->result = num_created;
    worker->num_dirtied = num_dirtied;
  });
  records->MarkUpdated(plan);
}

void DramCache::AdmitScored(BatchPlan* plan, const DramCache& scores, float least,
                            const LifeRules& others) {
  HPS_CHECK(IsCurrent(*plan) && scores.view_.table.has_statistics());
  Follow(plan);
  const CacheView& view = scores.view_;
  const LifeRules& rules = view.rules.powers == nullptr ? others : view.rules;
  const bool counts = view_.table.has_statistics();
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    ForListed(view, *worker, [&](int64_t i, int64_t slot) {
      const RowStatistics& counted = *StatisticsOfRow(RowAt(view.table, slot));
      const float power = DecayUntil(rules, counted, view.period);
      const float score = Score(rules, counted.show, counted.click) * power;
      const bool is_stored = (view.table.marks[slot].flags & kFresh) == 0;
      const bool is_admitted = is_stored && score >= least;
      worker->withheld[worker->fresh[i]] = !is_admitted;
      if (counts && is_admitted) {  // as the other row is in this period; the update adds to both
        *StatisticsOfRow(RowAt(view_.table, worker->slots[worker->fresh[i]])) = {
            counted.show * power, counted.click * power, view_.period, kNeverDies};
      }
    });
  });
}

void DramCache::AdmitDrawn(BatchPlan* plan, uint64_t number, double probability) {
  HPS_CHECK(IsCurrent(*plan));
  const uint64_t stream = view_.initializer.stream;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    for (int64_t i = 0; i < worker->num_listed; ++i) {
      const double drawn = DrawAdmission(stream, worker->fresh_keys[i], number);
      worker->withheld[worker->fresh[i]] = drawn >= probability;
    }
  });
}

}  // namespace hps
