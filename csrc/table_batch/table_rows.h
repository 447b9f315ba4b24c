// TableRows: the rows of one table in a batch, whichever cache of the host has them.
//
// Above it: table_batch.h; the bindings, which make one of each table. Below it: DramCache with its
// BatchPlan, the host build of gpu_cache with its GpuPlan. A call is a verb on all of a table's
// keys, so that being virtual costs nothing. Verbs are serialised by the caller; those of different
// tables may run at the same time once each works alone.
#pragma once

#include <cstdint>

#include "batch/bags.h"
#include "common/thread_pool.h"
#include "table/row_layout.h"

namespace hps {

class TableRows {
 public:
  TableRows() = default;
  TableRows(const TableRows&) = delete;
  TableRows& operator=(const TableRows&) = delete;
  virtual ~TableRows() = default;

  virtual ThreadPool* pool() const = 0;
  virtual const RowLayout& layout() const = 0;
  // True if none of values[count] is NaN or infinite.
  virtual bool AreFinite(const float* values, int64_t count) const = 0;
  // From the next batch on one thread, the caller's, works on all of it; or as many as there are.
  virtual void WorkAlone(bool is_alone) = 0;

  // Looks up keys[count]; pools their bags to their places in out if none is missing. Returns how
  // many are.
  virtual int64_t PullPooled(const uint64_t* keys, int64_t count, const BagsView& bags,
                             OutputValues out) = 0;
  // Looks up keys[count]; returns how many are missing.
  virtual int64_t Find(const uint64_t* keys, int64_t count) = 0;
  // The same of the keys that the rows of another table have found last, in a cache of this kind.
  virtual int64_t FindAs(const TableRows& other) = 0;
  // True if the batch's rows are known to be where they were.
  virtual bool IsCurrent() const = 0;
  // Looks the batch up again, unless it is current.
  virtual int64_t FindAgain() = 0;
  // Pins the rows of a batch of which none is missing. False: they cannot be pinned.
  virtual bool Pin() = 0;
  // Drops pins, whatever a verb left behind.
  virtual void Abandon() = 0;

  // As the caches have them.
  virtual void Pool(const BagsView& bags, OutputValues out) = 0;
  virtual int64_t SumGradients(GradientValues gradients, const BagsView& bags,
                               const uint8_t* labels) = 0;
  virtual int64_t FindOverflow(float lr) = 0;
  virtual void Apply(float lr) = 0;

  virtual bool holds_pins() const = 0;
  virtual int64_t num_unique() const = 0;
  virtual int64_t num_occurrences() const = 0;
  virtual const uint64_t* keys() const = 0;
};

// The rows that a cache has, and the plan of their keys.
template <class Cache, class Plan>
class RowsIn final : public TableRows {
 public:
  explicit RowsIn(Cache* cache) : cache_(cache) {}

  ThreadPool* pool() const override { return cache_->pool(); }
  const RowLayout& layout() const override { return cache_->layout(); }
  bool AreFinite(const float* values, int64_t count) const override {
    return cache_->AreFinite(values, count);
  }
  void WorkAlone(bool is_alone) override { plan_.WorkAlone(is_alone); }

  int64_t PullPooled(const uint64_t* keys, int64_t count, const BagsView& bags,
                     OutputValues out) override {
    return cache_->PullPooled(keys, count, bags, &plan_, out);
  }
  int64_t Find(const uint64_t* keys, int64_t count) override {
    cache_->MakePlan(keys, count, &plan_);
    return cache_->Find(&plan_, 0, -1);
  }
  int64_t FindAs(const TableRows& other) override {
    const Plan& plan = static_cast<const RowsIn&>(other).plan_;
    if constexpr (requires { cache_->MakePlanAs(plan, &plan_); }) {
      cache_->MakePlanAs(plan, &plan_);
      return cache_->Find(&plan_, 0, -1);
    }
    return Find(plan.keys(), plan.num_occurrences());
  }
  bool IsCurrent() const override { return cache_->IsCurrent(plan_); }
  int64_t FindAgain() override { return IsCurrent() ? 0 : cache_->Find(&plan_, 0, -1); }
  bool Pin() override {
    if (!cache_->Reserve(&plan_)) return false;
    cache_->Fill(&plan_, nullptr, nullptr, 0.0f, false);
    return true;
  }
  void Abandon() override { cache_->Abandon(&plan_); }

  void Pool(const BagsView& bags, OutputValues out) override { cache_->Pool(&plan_, bags, out); }
  int64_t SumGradients(GradientValues gradients, const BagsView& bags,
                       const uint8_t* labels) override {
    return cache_->SumGradients(&plan_, gradients, &bags, labels);
  }
  int64_t FindOverflow(float lr) override { return cache_->FindOverflow(&plan_, lr); }
  void Apply(float lr) override { cache_->Apply(&plan_, lr); }

  bool holds_pins() const override {
    return plan_.state == Plan::State::kReserved || plan_.state == Plan::State::kPinned;
  }
  int64_t num_unique() const override { return plan_.num_unique(); }
  int64_t num_occurrences() const override { return plan_.num_occurrences(); }
  const uint64_t* keys() const override { return plan_.keys(); }

  Plan* plan() { return &plan_; }

 private:
  Cache* const cache_;
  Plan plan_;
};

}  // namespace hps
