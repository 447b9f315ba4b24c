// GpuCache: the rows of one table that a device holds, as the host can run it: the device's own
// algorithms, looped over on host memory, but for those that host_batch.h names.
//
// Above it: ParameterServer, through the bindings; tests, which launch the same verbs on emulated
// lanes. Below it: kernels.h, the bodies that the CUDA cache launches. It keeps the same contract
// as DramCache (hps/contracts/row_cache.py), verb by verb, and takes the same slots; a batch goes
// through
//     MakePlan, Find, Reserve (pins), [victims and missing rows: the caller's business], Fill, then
//     Gather / Pool / Apply / Assign, Release
// Verbs are serialised by the caller and run in parallel inside. Owns its memory; the thread pool
// is shared.
#pragma once

#include <memory>
#include <string>

#include "common/host_memory.h"
#include "gpu_cache/gpu_plan.h"
#include "gpu_cache/host_launcher.h"
#include "gpu_cache/table_memory.h"

namespace hps {

struct GpuCacheOptions {
  RowLayout layout;
  OptimizerNumbers numbers;
  InitializerSpec initializer;
  Rounding rounding = Rounding::kNearest;  // of narrow rows, by updates
  float more_shows = 0.0f;  // of an occurrence without a click, see ShowsOf in life_rules.h
  int64_t capacity_bytes = 0;
};

template <class Launcher>
class GpuCacheOver {
 public:
  // kConfig if the budget is too small for a table, kCapacity if the machine has not the memory.
  static Status Open(const GpuCacheOptions& options, Launcher launcher,
                     std::unique_ptr<GpuCacheOver>* cache);

  void MakePlan(const uint64_t* keys, int64_t count, GpuPlan* plan);
  // MakePlan and Find over the whole batch; fills out [count, dim] if nothing is missing. Returns
  // the number of missing keys.
  int64_t Pull(const uint64_t* keys, int64_t count, GpuPlan* plan, float* out);
  // MakePlan and Find over the whole batch; if nothing is missing, pools its bags to their places
  // in out. Returns the number of missing keys.
  int64_t PullPooled(const uint64_t* keys, int64_t count, const BagsView& bags, GpuPlan* plan,
                     OutputValues out);
  // Looks up unique keys [first, first + count), the plan's window from now on; a negative count is
  // all from `first` on. Returns the missing.
  int64_t Find(GpuPlan* plan, int64_t first, int64_t count);
  // Marks those of the plan's keys that are here as wanted, whatever the window: they give way only
  // where all do. A mark ends with the row's next use.
  void Want(GpuPlan* plan);
  // Pins the window and takes slots for its missing keys. False: it cannot be pinned, nothing
  // changed.
  bool Reserve(GpuPlan* plan);
  // Takes back a Reserve that was not filled: victims return, pins drop.
  void Cancel(GpuPlan* plan);
  // Takes back what the plan holds, however far it came: Cancel, Release or nothing.
  void Abandon(GpuPlan* plan);
  // Puts rows of the missing keys in place, in the order of plan->missing_keys(); where found[i] is
  // 0 the row is initialised: fresh, or stored and dirty if `create`.
  void Fill(GpuPlan* plan, const uint8_t* rows, const uint8_t* found, float lr, bool create);
  void Release(GpuPlan* plan);

  // Copies the window's embeddings to all their positions in out [L, dim].
  void Gather(const GpuPlan& plan, float* out);
  // Sums or means of bags, of a window that is the whole batch, to their places in out.
  void Pool(GpuPlan* plan, const BagsView& bags, OutputValues out);
  // Row images [window, row_bytes] of a pinned window, in the plan's order.
  void ReadRows(const GpuPlan& plan, uint8_t* images);
  // MakePlan, Find over the whole batch, and, if nothing is missing, SumGradients and FindOverflow:
  // *worst is what they returned, else -1. Returns the number of missing keys.
  int64_t SumHere(const uint64_t* keys, int64_t count, const float* gradients, float lr,
                  GpuPlan* plan, int64_t* worst);
  // Sums gradients per unique key: of occurrences [L, dim], or of bags, which are at their places,
  // unless `bags` is null. The first unique key with a non-finite sum, or -1.
  // In a table with statistics it also counts: labels [L] of the occurrences, 0 or 1, or null.
  int64_t SumGradients(GpuPlan* plan, GradientValues gradients, const BagsView* bags,
                       const uint8_t* labels = nullptr);
  int64_t SumGradients(GpuPlan* plan, const float* gradients, const BagsView* bags = nullptr,
                       const uint8_t* labels = nullptr) {
    return SumGradients(plan, GradientValues{gradients}, bags, labels);
  }
  // True if FindOverflow of the plan's sums may find a key.
  bool MayOverflow(const GpuPlan& plan, float lr) const;
  // The first unique key of the window, all of whose rows are here, whose update by the plan's sums
  // would not leave its row finite, or -1. Changes no row.
  int64_t FindOverflow(GpuPlan* plan, float lr);
  // From now on every update is tried: there is a row that is not tame (optimizer/trial.h).
  void Watch() { args_.clock->is_watched = 1; }
  bool is_watched() const { return args_.clock->is_watched != 0; }
  void Apply(GpuPlan* plan, float lr);
  // In which updates count from now on, in a table with statistics.
  void SetPeriod(uint32_t period) { args_.period = period; }
  // By which such rows decay and die from now on; what they point to outlives the cache.
  void SetRules(const LifeRules& rules) { args_.rules = rules; }
  // Drops the rows that are dead in the period; there are no pins, and none of these rows is dirty.
  // Returns how many.
  int64_t DropDead(uint32_t period);
  // Admission: which of the window's fresh rows the next Apply of the plan, whose sums are there,
  // is to make stored ones; it leaves the others as they are.
  //
  // Lists the window's fresh rows, and looks their keys up in another table, if one is given;
  // returns how many it lacks, with those whose rows are on their way.
  int64_t ListFresh(GpuPlan* plan, GpuCacheOver* beside);
  // Counts the update of each listed key in its record, a row of `records` with statistics, which
  // lies where ListFresh has found it. A key that has been shown `least` times is admitted: its
  // record is emptied, and its row begins with the counts of before.
  void AdmitCounted(GpuPlan* plan, GpuCacheOver* records, float least);
  // Admits the listed keys whose rows of `scores`, where ListFresh has found them, have at least
  // that score, decayed to the period, by the rules of that table, or else by others. A row that
  // counts begins with the decayed counts of that one.
  void AdmitScored(GpuPlan* plan, const GpuCacheOver& scores, float least, const LifeRules& others);
  // Admits each listed key with a probability, by a draw on (initializer's stream, key, number).
  void AdmitDrawn(GpuPlan* plan, uint64_t number, double probability);
  // Sets the window's rows from rows [L, dim] (a key's last occurrence); state [L, state_floats] or
  // null to start it anew; statistics [L], or null: they stay, but for the last period.
  void Assign(GpuPlan* plan, const float* rows, const float* state, const RowStatistics* statistics,
              float lr);
  // Makes the window's fresh rows stored ones, with the state of a new row. Returns how many.
  int64_t Create(GpuPlan* plan, float lr);
  // What absent keys read as, into out [count, dim]; takes no slot.
  void InitialWeights(const uint64_t* keys, int64_t count, float* out);

  // presence[i]: 0 absent, 1 stored, 2 fresh, 3 stored and dirty, 4 pending.
  void Contains(const uint64_t* keys, int64_t count, uint8_t* presence);
  // Drops keys; presence[i] as Contains before it. kConfig, and nothing changed, if one is pinned.
  Status Erase(const uint64_t* keys, int64_t count, uint8_t* presence);
  // Copies stored rows (only dirty ones, which it marks, if `dirty_only`) from slot `cursor` on, up
  // to `most`; returns how many and moves the cursor behind the last slot looked at (-1 at the
  // end).
  int64_t Scan(int64_t* cursor, bool dirty_only, int64_t most, uint8_t* rows);
  // The dirty rows that a scan copied from slots [first, last), and that have not changed since,
  // are safely below; last < 0 means to the end.
  void MarkClean(int64_t first, int64_t last);
  void Clear();

  // True if none of values[count] is NaN or infinite.
  bool AreFinite(const float* values, int64_t count) const {
    return launcher_.key_loops().find_largest(values, count) < kInfinityBits;
  }

  bool IsCurrent(const GpuPlan& plan) const;
  ThreadPool* pool() const { return launcher_.pool(); }
  const RowLayout& layout() const { return options_.layout; }
  const TableShape& shape() const { return args_.table.shape; }
  const CacheArgs& args() const { return args_; }
  int64_t memory_bytes() const { return memory_.bytes(); }
  int64_t count(CacheCounter counter) const { return CountOf(args_, counter); }
  uint64_t epoch() const { return epoch_; }

 private:
  GpuCacheOver(const GpuCacheOptions& options, Launcher launcher);

  static constexpr int64_t kSlotsAScan = 1 << 16;  // looked at in one go

  // Where the verbs of a plan run.
  Launcher LauncherOf(const GpuPlan& plan) const {
    return plan.is_alone() ? launcher_.alone() : launcher_;
  }
  void RunRounds(const Launcher& launcher, const ReserveArgs& args);
  AdmitArgs AdmitArgsOf(GpuPlan* plan) const;
  // work(wrap) with wrap(group) as suits the table's rows.
  template <class Work>
  void ForRows(Work work) const;

  const GpuCacheOptions options_;
  const Launcher launcher_;
  HostMemory memory_;
  CacheArgs args_ = {};
  Failure failure_ = {};  // never set: the host hears of a refused gradient at once
  Array<int32_t> scan_ranks_;
  Array<int64_t> erase_slots_;
  uint64_t epoch_ = 1;
};

using GpuCache = GpuCacheOver<HostLauncher>;
extern template class GpuCacheOver<HostLauncher>;

}  // namespace hps
