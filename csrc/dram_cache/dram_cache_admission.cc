// The verbs of DramCache that decide which new keys come by a row.
#include <vector>

#include "common/check.h"
#include "common/key_hash.h"
#include "dram_cache/dram_cache.h"

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

RowStatistics* StatisticsOf(const TableView& table, int64_t slot) {
  return reinterpret_cast<RowStatistics*>(RowAt(table, slot) + kStatisticsAt);
}

// A number from 0 to below 1.
double Draw(uint64_t stream, uint64_t key, uint64_t number) {
  const uint64_t hash = MixKey(MixKey(key ^ stream) + MixKey(~number));
  return static_cast<double>(hash >> 11) * 0x1p-53;
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
  // Of a record with a show: its score, which does not decay, is no reason to die.
  const uint32_t dies_at =
      view.rules.unseen < kMostGap ? view.period + view.rules.unseen + 1 : kNeverDies;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    int64_t num_created = 0;
    int64_t num_dirtied = 0;
    ForListed(view, *worker, [&](int64_t i, int64_t slot) {
      const uint32_t id = worker->fresh[i];
      RowStatistics* const record = StatisticsOf(view.table, slot);
      const RowStatistics before = {record->show, record->click, view_.period, kNeverDies};
      record->show += static_cast<float>(worker->counts[id]);
      if (worker->clicks != nullptr) record->click += static_cast<float>(worker->clicks[id]);
      record->last_period = view.period;
      record->dies_at = dies_at;
      if (record->show >= least) {
        *StatisticsOf(view_.table, worker->slots[id]) = before;  // to which the update adds
        const RowStatistics empty = {0.0f, 0.0f, view.period, kNeverDies};
        SetStatistics(RowAt(view.table, slot), empty, view.rules);
      } else {
        worker->withheld[id] = 1;
      }
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
      const RowStatistics& counted = *StatisticsOf(view.table, slot);
      const uint32_t gap = view.period - counted.last_period;
      const float power = rules.powers[gap < kMostGap ? gap : kMostGap];
      const float score = Score(rules, counted.show, counted.click) * power;
      const bool is_stored = (view.table.marks[slot].flags & kFresh) == 0;
      const bool is_admitted = is_stored && score >= least;
      worker->withheld[worker->fresh[i]] = !is_admitted;
      if (counts && is_admitted) {  // as the other row is in this period; the update adds to both
        *StatisticsOf(view_.table, worker->slots[worker->fresh[i]]) = {
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
      const double drawn = Draw(stream, worker->fresh_keys[i], number);
      worker->withheld[worker->fresh[i]] = drawn >= probability;
    }
  });
}

}  // namespace hps
