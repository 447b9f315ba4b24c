// The batch verbs of DramCache: from a batch's keys to pinned rows and back.
#include "dram_cache/dram_cache.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "dram_cache/choose_loops.h"
#include "optimizer/safe_gradient.h"
#include "table/host_group.h"
#include "table/probe.h"
#include "table/table_shape.h"

namespace hps {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kRowsAhead = 16;     // asked for before the first of them is written
constexpr int64_t kTicksPerTurn = 64;  // the clock ticks once 1/64 of the slots were used

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

DramCache::DramCache(const DramCacheOptions& options, const KeyLoops* key_loops, ThreadPool* pool)
    : options_(options), key_loops_(key_loops), loops_(LoopsLike(key_loops)), pool_(pool) {}

Status DramCache::Open(const DramCacheOptions& options, ThreadPool* pool,
                       std::unique_ptr<DramCache>* cache) {
  const KeyLoops* loops = ChooseKeyLoops(options.instruction_set);
  if (loops == nullptr) {
    return Status(StatusCode::kConfig, "instruction set '" + options.instruction_set +
                                           "' is unknown or this processor lacks it; use 'auto'");
  }
  std::unique_ptr<DramCache> made(new DramCache(options, loops, pool));
  // The spill counts are rounded up to a cache line, and a page may be lost at the end.
  const TableOverhead overhead = {kBucketMarkBytes, kPage + 64};
  if (options.is_packed && !CanBePacked(options.layout)) {
    return Status(StatusCode::kConfig,
                  "rows with statistics, or of another optimizer than SGD, cannot be packed");
  }
  if (options.is_packed && options.rounding != Rounding::kNearest) {
    return Status(StatusCode::kConfig,
                  "rows that are rounded stochastically cannot be packed; use rounding='nearest'");
  }
  made->view_.packing = PackingOf(options.layout, options.is_packed);
  HPS_RETURN_IF_ERROR(ChooseShape(options.capacity_bytes, made->view_.packing.slot_bytes(),
                                  overhead, &made->full_shape_));
  HPS_RETURN_IF_ERROR(made->MapTable());
  *cache = std::move(made);
  return Status::Ok();
}

Status DramCache::MapTable() {
  TableView& table = view_.table;
  const int64_t slots = full_shape_.num_slots();
  const int64_t spill_bytes = RoundUp(full_shape_.num_buckets(), 64);
  const int64_t rows_bytes = slots * full_shape_.row_bytes;
  const int64_t bytes = rows_bytes + slots * (kBucketMarkBytes / kBucketSlots) + spill_bytes;
  HPS_RETURN_IF_ERROR(memory_.Map(RoundUp(bytes, kPage)));
  HPS_CHECK(memory_.bytes() <= options_.capacity_bytes);
  SetRows(&table, memory_.data(),
          is_packed() ? kPackedHeaderBytes : options_.layout.header_bytes());
  table.digests = table.rows + rows_bytes;
  table.marks = reinterpret_cast<SlotMark*>(table.digests + slots);
  table.pins = reinterpret_cast<uint8_t*>(table.marks + slots);
  table.spilled = table.pins + slots;
  table.shape = FirstShape(full_shape_);
  PreferHugePages();
  view_.kind = options_.layout.kind;
  view_.dim = static_cast<int32_t>(options_.layout.dim);
  view_.numbers = options_.numbers;
  view_.initializer = options_.initializer;
  view_.is_narrow = options_.layout.is_narrow;
  view_.rounding = options_.rounding;
  view_.more_shows = options_.more_shows;
  return Status::Ok();
}

// The clock by which rows age. It ticks with use, not with batches, so that its 256 values span
// several times the table's content whatever the batch size. While an eighth of the slots is free
// no row has to give way, and a batch is spared the cache line a key that its stamp costs.
void DramCache::AdvanceClock(int64_t num_used) {
  const int64_t num_slots = view_.table.shape.num_slots();
  view_.keeps_stamps = 8 * (num_rows_ + num_fresh_) > 7 * num_slots;
  used_since_tick_ += num_used;
  if (used_since_tick_ * kTicksPerTurn < num_slots) return;
  used_since_tick_ = 0;
  ++view_.now;
  SweepBuckets();
}

void DramCache::SweepBuckets() {
  const int64_t num_buckets = view_.table.shape.num_buckets();
  const int64_t num_swept = (num_buckets + kTicksPerTurn - 1) / kTicksPerTurn;
  for (int64_t i = 0; i < num_swept; ++i) {
    SlotMark* marks = view_.table.marks + sweep_bucket_ * kBucketSlots;
    for (int slot = 0; slot < kBucketSlots; ++slot) marks[slot] = Swept(marks[slot], view_.now);
    sweep_bucket_ = (sweep_bucket_ + 1) % num_buckets;
  }
}

void DramCache::MakePlan(const uint64_t* keys, int64_t count, BatchPlan* plan) {
  Abandon(plan);
  plan->MissPulledEach(count);
  plan->Build(keys, count, shape().num_parts, 0, pool_,
              [&](WorkerBatch* worker) { return key_loops_->deduplicate(worker, keys, count); });
}

void DramCache::MakePlanAs(const BatchPlan& other, BatchPlan* plan) {
  Abandon(plan);
  plan->MissPulledEach(other.num_occurrences());
  if (!plan->BuildAs(other, shape().num_parts, pool_)) {
    MakePlan(other.keys(), other.num_occurrences(), plan);
  }
}

int64_t DramCache::Pull(const uint64_t* keys, int64_t count, BatchPlan* plan, OutputRows out,
                        bool wants_plan) {
  Abandon(plan);
  if (!wants_plan && plan->ChoosePullEach(keys, count)) {
    const auto pull = [&](WorkerBatch* worker) {
      loops_->pull_each(view_, worker, keys, count, out);
    };
    const bool only_reads = !view_.keeps_stamps;
    if (plan->PullEach(keys, count, shape().num_parts, only_reads, pool_, pull) == 0) {
      counters_.hits += count;
      AdvanceClock(count);
      return 0;
    }
  }
  plan->Build(keys, count, shape().num_parts, view_.dim, pool_, [&](WorkerBatch* worker) {
    // Another worker may miss keys; what this one writes then is written again.
    return loops_->pull(view_, worker, keys, count, out);
  });
  return CountFound(plan);
}

int64_t DramCache::PullPooled(const uint64_t* keys, int64_t count, const BagsView& bags,
                              BatchPlan* plan, OutputValues out) {
  constexpr bool kWantsPlan = true;
  if (bags.are_rows()) return Pull(keys, count, plan, bags.rows_in(out, view_.dim), kWantsPlan);
  Abandon(plan);
  const bool in_place = pools_in_place();
  const auto look_up = in_place ? loops_->pull_slots : loops_->pull_values;
  plan->Build(keys, count, shape().num_parts, in_place ? 0 : view_.dim, pool_,
              [&](WorkerBatch* worker) { return look_up(view_, worker, keys, count); });
  const int64_t num_missing = CountFound(plan);
  if (num_missing > 0) return num_missing;
  if (in_place) {
    PoolInPlace(plan, bags, out);
  } else {
    plan->PoolValues(*key_loops_, bags, view_.dim, pool_, out);
  }
  return 0;
}

void DramCache::PoolInPlace(BatchPlan* plan, const BagsView& bags, OutputValues out) {
  const float* const first = FloatsAt(view_.table, 0) + kRowHeaderFloats;
  const int64_t stride = view_.table.shape.row_bytes / static_cast<int64_t>(sizeof(float));
  plan->PoolSlots(*key_loops_, bags, view_.dim, pool_, out, first, stride);
}

int64_t DramCache::Find(BatchPlan* plan, int64_t first, int64_t count) {
  HPS_CHECK(plan->state != BatchPlan::State::kReserved);
  HPS_CHECK(plan->state != BatchPlan::State::kPinned);
  HPS_CHECK(plan->state != BatchPlan::State::kEach);
  if (first == 0 && count < 0 && IsLookedUp(*plan)) return plan->num_missing();
  plan->SetWindow(first, count < 0 ? plan->num_unique() - first : count);
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) { loops_->find(view_, worker); });
  return CountFound(plan);
}

// What follows a look-up of the window: counters, the clock, the plan's state.
int64_t DramCache::CountFound(BatchPlan* plan) {
  const int64_t num_missing = plan->num_missing();
  counters_.hits += plan->window_size() - num_missing;
  counters_.misses += num_missing;
  AdvanceClock(plan->window_size());
  const bool is_whole = num_missing == 0 && plan->window_size() == plan->num_unique();
  plan->state = is_whole ? BatchPlan::State::kResolved : BatchPlan::State::kFound;
  plan->epoch = epoch_;
  plan->growth = growth_;
  return num_missing;
}

void DramCache::Want(BatchPlan* plan) {
  if (!view_.keeps_stamps) return;  // there is room, and a use would not take the mark off
  view_.has_wants = true;
  const TableView& table = view_.table;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    for (int64_t id = 0; id < worker->num_unique; ++id) {
      const uint64_t key = worker->keys[id];
      const int64_t slot = FindOne(HostGroup{}, table, PlaceOfHash(table.shape, MixKey(key)), key);
      if (slot != kNoSlot) table.marks[slot].flags |= kWanted;
    }
  });
}

bool DramCache::IsLookedUp(const BatchPlan& plan) const {
  if (plan.window_size() != plan.num_unique() || plan.epoch != epoch_) return false;
  if (plan.state == BatchPlan::State::kFound) return true;
  // What was missing of pinned rows that were released is here since.
  return plan.state == BatchPlan::State::kResolved && plan.num_missing() == 0;
}

bool DramCache::IsCurrent(const BatchPlan& plan) const {
  if (plan.state == BatchPlan::State::kPinned) return true;
  return plan.state == BatchPlan::State::kResolved && plan.epoch == epoch_;
}

// Pins the rows that were found. False, and nothing is pinned, if a pin count is at its limit.
bool DramCache::PinWindow(BatchPlan* plan) {
  uint8_t* pins = view_.table.pins;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    worker->result = worker->window_end;
    for (int64_t id = worker->window_begin; id < worker->window_end; ++id) {
      const int64_t slot = worker->slots[id];
      if (slot == kNoSlot) continue;
      if (pins[slot] == 255) {
        worker->result = id;
        return;
      }
      ++pins[slot];
    }
  });
  bool complete = true;
  plan->ForWorkersInTurn(
      [&](WorkerBatch* worker) { complete &= worker->result == worker->window_end; });
  if (!complete) UnpinFound(plan);
  return complete;
}

// Drops the pins of found rows, up to where PinWindow stopped.
void DramCache::UnpinFound(BatchPlan* plan) {
  uint8_t* pins = view_.table.pins;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    for (int64_t id = worker->window_begin; id < worker->result; ++id) {
      if (worker->slots[id] != kNoSlot) --pins[worker->slots[id]];
    }
  });
}

bool DramCache::Reserve(BatchPlan* plan) {
  const bool is_found =
      plan->state == BatchPlan::State::kFound || plan->state == BatchPlan::State::kResolved;
  HPS_CHECK(is_found && plan->epoch == epoch_);
  plan->num_victims = 0;
  plan->PrepareMissing();
  MakeRoom(plan->num_missing());
  Follow(plan);
  plan->epoch = epoch_;
  if (!PinWindow(plan)) {
    ++counters_.refusals;
    return false;
  }
  plan->ForWorkers(
      pool_, [&](WorkerBatch* worker) { worker->num_dirtied = loops_->reserve(view_, worker); });
  bool complete = true;
  plan->ForWorkersInTurn([&](WorkerBatch* worker) { complete &= worker->num_dirtied != 0; });
  if (!complete) {
    ++counters_.refusals;
    plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
      for (int64_t i = worker->num_reserved - 1; i >= 0; --i) {
        const uint32_t entry = worker->order[i];
        UndoOne(view_.table, worker->reservations[entry]);
        worker->slots[worker->missing[entry]] = kNoSlot;
      }
      worker->num_reserved = 0;
    });
    UnpinFound(plan);
    return false;
  }
  num_pins_ += plan->window_size();
  plan->ForWorkersInTurn([&](WorkerBatch* worker) { counters_.spared += worker->num_spared; });
  if (plan->num_missing() > 0) ++epoch_;
  plan->epoch = epoch_;
  plan->state = BatchPlan::State::kReserved;
  CountPending(plan, 1);
  CommitReservations(plan);  // may find no memory; what was taken can be abandoned by then
  return true;
}

void DramCache::CountEviction(const Reservation& reservation, int64_t sign) {
  counters_.second_bucket += reservation.spilled_from >= 0 ? sign : 0;
  if (!reservation.had_victim) return;
  if (reservation.victim_mark.flags & kFresh) {
    num_fresh_ -= sign;
    return;
  }
  num_rows_ -= sign;
  counters_.evictions += sign;
  if (reservation.victim_mark.flags & kDirty) {
    num_dirty_ -= sign;
    counters_.write_backs += sign;
  }
}

// Moves dirty victims to the write_back buffer, then writes the new keys into the headers.
void DramCache::CommitReservations(BatchPlan* plan) {
  const TableView& table = view_.table;
  const int64_t image_bytes = view_.packing.image_bytes;
  int64_t num_victims = 0;
  plan->ForWorkersInTurn([&](WorkerBatch* worker) {
    worker->result = num_victims;
    for (int64_t entry = 0; entry < worker->num_missing; ++entry) {
      CountEviction(worker->reservations[entry], 1);
      num_victims += IsWrittenBack(worker->reservations[entry]);
    }
  });
  uint8_t* buffer = plan->victims.Reserve(num_victims * image_bytes);
  plan->num_victims = num_victims;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    uint8_t* dst = buffer + worker->result * image_bytes;
    for (int64_t entry = 0; entry < worker->num_missing; ++entry) {
      if (entry + kRowsAhead < worker->num_missing) {  // Fill writes the rest of the row
        __builtin_prefetch(RowAt(table, worker->reservations[entry + kRowsAhead].slot), 1);
      }
      const Reservation& reservation = worker->reservations[entry];
      if (IsWrittenBack(reservation)) {
        GetImage(view_.packing, RowAt(table, reservation.slot), dst);
        dst += image_bytes;
      }
      SetKeyAt(table, reservation.slot, worker->keys[worker->missing[entry]]);
    }
  });
}

void DramCache::Cancel(BatchPlan* plan) {
  HPS_CHECK(plan->state == BatchPlan::State::kReserved);
  Follow(plan);
  CountPending(plan, -1);
  plan->ForWorkersInTurn([&](WorkerBatch* worker) {
    for (int64_t i = worker->num_reserved - 1; i >= 0; --i) {
      const uint32_t entry = worker->order[i];
      CountEviction(worker->reservations[entry], -1);
      UndoOne(view_.table, worker->reservations[entry]);
      worker->slots[worker->missing[entry]] = kNoSlot;
    }
    worker->num_reserved = 0;
    worker->result = worker->window_end;
  });
  UnpinFound(plan);
  num_pins_ -= plan->window_size();
  ++epoch_;
  plan->num_victims = 0;
  plan->state = BatchPlan::State::kKeys;
}

void DramCache::Abandon(BatchPlan* plan) {
  if (plan->state == BatchPlan::State::kReserved) {
    Cancel(plan);
  } else if (plan->state == BatchPlan::State::kPinned) {
    Release(plan);
  } else if (plan->state == BatchPlan::State::kEach) {
    GiveTaken(plan);
  }
}

void DramCache::Fill(BatchPlan* plan, const uint8_t* rows, const uint8_t* found, float lr,
                     bool create) {
  HPS_CHECK(plan->state == BatchPlan::State::kReserved);
  Follow(plan);
  CountPending(plan, -1);
  int64_t base = 0;
  plan->ForWorkersInTurn([&](WorkerBatch* worker) {
    worker->result = base;
    base += worker->num_missing;
  });
  const uint8_t unfound_flags = create ? kDirty : kFresh;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    const uint8_t* is_found = found + worker->result;
    loops_->fill(view_, worker, rows + worker->result * view_.packing.image_bytes, is_found, lr);
    worker->num_dirtied = 0;
    for (int64_t entry = 0; entry < worker->num_missing; ++entry) {
      const int64_t slot = worker->slots[worker->missing[entry]];
      view_.table.marks[slot].flags = is_found[entry] ? 0 : unfound_flags;
      if (create && is_found[entry] == 0 && view_.table.has_statistics()) {
        NoteSeen(RowAt(view_.table, slot), view_.period, view_.rules);
      }
      worker->num_dirtied += is_found[entry] == 0;
    }
  });
  int64_t num_unfound = 0;
  plan->ForWorkersInTurn([&](WorkerBatch* worker) { num_unfound += worker->num_dirtied; });
  num_rows_ += base - num_unfound;
  (create ? num_rows_ : num_fresh_) += num_unfound;
  if (create) num_created_ += num_unfound;
  if (create) num_dirty_ += num_unfound;
  plan->state = BatchPlan::State::kPinned;
}

void DramCache::Release(BatchPlan* plan) {
  HPS_CHECK(plan->state == BatchPlan::State::kPinned);
  Follow(plan);
  uint8_t* pins = view_.table.pins;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    for (int64_t id = worker->window_begin; id < worker->window_end; ++id) {
      --pins[worker->slots[id]];
    }
  });
  num_pins_ -= plan->window_size();
  const bool is_whole = plan->window_size() == plan->num_unique();
  // Rows may have moved since the reserve if other batches reserved meanwhile; the epoch tells.
  plan->state = is_whole ? BatchPlan::State::kResolved : BatchPlan::State::kFound;
}

void DramCache::Gather(BatchPlan* plan, OutputRows out) {
  Collect(plan);
  if (plan->window_end() == plan->num_unique()) Expand(plan, out);
}

void DramCache::Pool(BatchPlan* plan, const BagsView& bags, OutputValues out) {
  HPS_CHECK(plan->window_size() == plan->num_unique());
  if (bags.are_rows()) return Gather(plan, bags.rows_in(out, view_.dim));
  if (pools_in_place()) {
    HPS_CHECK(IsCurrent(*plan));
    Follow(plan);
    return PoolInPlace(plan, bags, out);
  }
  Collect(plan);
  plan->PoolValues(*key_loops_, bags, view_.dim, pool_, out);
}

void DramCache::Collect(BatchPlan* plan) {
  HPS_CHECK(IsCurrent(*plan));
  Follow(plan);
  plan->PrepareValues(view_.dim);
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) { loops_->collect(view_, *worker); });
}

void DramCache::Expand(BatchPlan* plan, OutputRows out) {
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    key_loops_->expand(*worker, view_.dim, plan->num_occurrences(), out);
  });
}

int64_t DramCache::SumHere(const uint64_t* keys, int64_t count, const float* gradients, float lr,
                           BatchPlan* plan, int64_t* worst) {
  Abandon(plan);
  *worst = -1;
  if (plan->ChooseFindEach(keys, count)) {
    if (FindEach(keys, count, gradients, lr, plan)) return 0;
    GiveTaken(plan);
  }
  plan->Build(keys, count, shape().num_parts, 0, pool_,
              [&](WorkerBatch* worker) { return key_loops_->deduplicate(worker, keys, count); });
  const int64_t num_missing = Find(plan, 0, -1);
  if (num_missing == 0) *worst = SumGradients(plan, gradients);
  if (num_missing == 0 && *worst < 0) *worst = FindOverflow(plan, lr);
  return num_missing;
}

// That no key occurs twice is seen by their rows: the second one finds its row taken.
bool DramCache::FindEach(const uint64_t* keys, int64_t count, const float* gradients, float lr,
                         BatchPlan* plan) {
  const int32_t dim = view_.dim;
  const uint32_t safe =
      is_watched() ? 0 : SafeGradientBits(view_.kind, view_.numbers, view_.initializer, lr);
  if (safe == 0) return false;  // every step is tried, which takes keys that are numbered
  plan->growth = growth_;
  const auto find = [&](WorkerBatch* worker) {
    const int64_t first = worker->window_begin;
    const uint32_t largest =
        key_loops_->find_largest(gradients + first * dim, (worker->window_end - first) * dim);
    // Which key it is, and whether it does overflow, the other way tells.
    worker->result = std::max(largest, kOrdinaryBits) > safe;
    loops_->find_each(view_, worker, keys, count);
  };
  if (!plan->FindEach(keys, count, shape().num_parts, gradients, dim, pool_, find)) return false;
  counters_.hits += count;
  AdvanceClock(count);
  plan->epoch = epoch_;
  return true;
}

// Takes back what FindEach has marked.
void DramCache::GiveTaken(BatchPlan* plan) {
  Follow(plan);
  SlotMark* marks = view_.table.marks;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    for (int64_t id = 0; id < worker->num_unique; ++id) {
      const int64_t slot = worker->slots[id];
      if (slot != kNoSlot) marks[slot].flags &= static_cast<uint8_t>(~kTaken);
    }
  });
  plan->Forget();
}

GradientView DramCache::ViewGradients(GradientValues gradients, const BagsView* bags,
                                      BatchPlan* plan) const {
  const int32_t dim = view_.dim;
  if (bags != nullptr) return plan->Spread(*bags, gradients, dim, pool_);
  return {gradients.wide, nullptr, nullptr, dim, gradients.narrow};
}

int64_t DramCache::SumGradients(BatchPlan* plan, GradientValues gradients, const BagsView* bags,
                                const uint8_t* labels) {
  const GradientView view = ViewGradients(gradients, bags, plan);
  plan->PrepareSums(view_.dim);
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    key_loops_->sum_gradients(worker, view_.dim, view);
    worker->largest = key_loops_->find_largest(worker->values, worker->num_unique * view_.dim);
  });
  if (view_.table.has_statistics()) plan->CountClicks(labels, pool_);
  plan->largest = kOrdinaryBits;
  plan->ForWorkersInTurn(
      [&](WorkerBatch* worker) { plan->largest = std::max(plan->largest, worker->largest); });
  if (plan->largest < kInfinityBits) return -1;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    worker->result = key_loops_->find_not_finite(worker->values, worker->num_unique, view_.dim);
  });
  return FirstToOccur(plan);
}

bool DramCache::AreFinite(const float* values, int64_t count) const {
  return key_loops_->find_largest(values, count) < kInfinityBits;
}

bool DramCache::MayOverflow(const BatchPlan& plan, float lr) const {
  if (is_watched()) return true;
  return plan.largest > SafeGradientBits(view_.kind, view_.numbers, view_.initializer, lr);
}

int64_t DramCache::FindOverflow(BatchPlan* plan, float lr) {
  if (plan->state == BatchPlan::State::kEach || !MayOverflow(*plan, lr)) return -1;
  HPS_CHECK(IsCurrent(*plan));
  Follow(plan);
  bool is_finite = true;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    worker->result = loops_->find_overflow(view_, worker, lr);
  });
  plan->ForWorkersInTurn([&](WorkerBatch* worker) { is_finite &= worker->result < 0; });
  // Such a gradient may leave a state that is not tame.
  if (view_.kind == OptimizerKind::kAdam || view_.kind == OptimizerKind::kFtrl) Watch();
  return is_finite ? -1 : FirstToOccur(plan);
}

// Of the keys that the workers name by `result`, the one that occurs first in the batch.
int64_t DramCache::FirstToOccur(BatchPlan* plan) {
  plan->SortPositions(*loops_, pool_);
  int64_t base = 0;
  int64_t worst = -1;
  uint32_t first_position = 0;
  plan->ForWorkersInTurn([&](WorkerBatch* worker) {
    if (worker->result >= 0) {
      const uint32_t position = worker->positions[worker->starts[worker->result]];
      if (worst < 0 || position < first_position) {
        worst = base + worker->result;
        first_position = position;
      }
    }
    base += worker->num_unique;
  });
  return worst;
}

void DramCache::Apply(BatchPlan* plan, float lr) {
  const bool is_each = plan->state == BatchPlan::State::kEach;
  HPS_CHECK(is_each ? plan->epoch == epoch_ : IsCurrent(*plan));
  Follow(plan);
  plan->ForWorkers(pool_,
                   [&](WorkerBatch* worker) { worker->result = loops_->apply(view_, worker, lr); });
  MarkUpdated(plan);
  plan->ReleaseWithheld();
  plan->ForWorkersInTurn([&](WorkerBatch* worker) {
    if (worker->is_wild) Watch();
  });
  if (is_each) plan->Forget();  // apply has given back what was taken
}

// Counts what the workers found when they set dirty and cleared fresh.
void DramCache::MarkUpdated(BatchPlan* plan) {
  plan->ForWorkersInTurn([&](WorkerBatch* worker) { CountUpdated(*worker); });
}

void DramCache::CountUpdated(const WorkerBatch& worker) {
  num_fresh_ -= worker.result;
  num_created_ += worker.result;
  num_rows_ += worker.result;
  num_dirty_ += worker.num_dirtied;
}

}  // namespace hps
