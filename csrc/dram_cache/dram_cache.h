// DramCache: the rows of one table that host memory holds; a set-associative cache whose size
// follows its rows up to a budget.
//
// Above it: ParameterServer, through the bindings. Below it: csrc/table (where rows lie and which
// give way) and the batch loops (how a batch is worked through). A batch goes through verbs in this
// order:
//     MakePlan, Find, Reserve (pins), [victims and missing rows: the caller's business], Fill, then
//     Gather / Pool / Apply / Assign, Release
// (a caller that fails in between calls Abandon; MakePlan and the pulls do it for a plan left so),
// and Pull does MakePlan, Find and Gather at once where nothing is missing, PullPooled the same
// with Pool. Verbs are serialised by the caller and run in parallel inside. Owns its memory; the
// thread pool is shared.
#pragma once

#include <memory>
#include <string>

#include "batch/key_loops.h"
#include "common/host_memory.h"
#include "dram_cache/batch_plan.h"
#include "table/table_shape.h"

namespace hps {

struct DramCacheOptions {
  RowLayout layout;
  OptimizerNumbers numbers;
  InitializerSpec initializer;
  Rounding rounding = Rounding::kNearest;  // of narrow rows, by updates
  float more_shows = 0.0f;  // of an occurrence without a click, see ShowsOf in life_rules.h
  int64_t capacity_bytes = 0;
  // Slots hold key and weights alone, closely: of rows that have nothing else (row_packing.h).
  bool is_packed = false;
  std::string instruction_set = "auto";  // auto, avx512, avx2, plain
};

struct DramCacheCounters {
  int64_t hits = 0;           // keys of batches that were here; see num_looked_up
  int64_t misses = 0;         // and that were not
  int64_t evictions = 0;      // stored rows that gave way
  int64_t write_backs = 0;    // of these, rows that had to be written below
  int64_t refusals = 0;       // batches that could not be pinned
  int64_t second_bucket = 0;  // rows taken into their second bucket
  int64_t spared = 0;         // wanted rows that would have given way by their age
};

// kPending: a batch has taken a slot for the key and its row has not arrived; whether it is stored
// is to be asked below.
enum class Presence : uint8_t {
  kAbsent = 0,
  kStored = 1,
  kFresh = 2,
  kStoredDirty = 3,
  kPending = 4,
};

struct RowsHere {
  int64_t num_rows = 0;
  int64_t num_pinned = 0;  // of these, rows that someone has pinned
};

class DramCache {
 public:
  // kConfig if the budget is too small for a table, or rows cannot be packed; kCapacity if the
  // machine has not the memory.
  static Status Open(const DramCacheOptions& options, ThreadPool* pool,
                     std::unique_ptr<DramCache>* cache);

  // So many rows are to come, of a table that has few: it becomes as large as they need, at once.
  void Expect(int64_t num_rows);
  void MakePlan(const uint64_t* keys, int64_t count, BatchPlan* plan);
  // The same of the keys of another plan, maybe of another cache: copies what it can of it.
  void MakePlanAs(const BatchPlan& other, BatchPlan* plan);
  // MakePlan and Find over the whole batch; fills out, of `count` rows, if nothing is missing.
  // Returns the number of missing keys. Unless the plan is wanted, keys that hardly repeat are
  // looked up without deduplicating them; if none is missing the plan is empty afterwards.
  int64_t Pull(const uint64_t* keys, int64_t count, BatchPlan* plan, OutputRows out,
               bool wants_plan = false);
  // MakePlan and Find over the whole batch; if nothing is missing, pools its bags to their places
  // in out. Returns the number of missing keys.
  int64_t PullPooled(const uint64_t* keys, int64_t count, const BagsView& bags, BatchPlan* plan,
                     OutputValues out);
  // Looks up unique keys [first, first + count), all from `first` on if count is below 0: the
  // plan's window from now on. Returns the missing. A batch that was looked up, and of which no
  // slot can have moved since, is not looked up again.
  int64_t Find(BatchPlan* plan, int64_t first, int64_t count);
  // Marks those of the plan's keys that are here as wanted: they give way only where all do. A mark
  // ends with the row's next use.
  void Want(BatchPlan* plan);
  // Pins the window and takes slots for its missing keys. False: it cannot be pinned, nothing
  // changed.
  bool Reserve(BatchPlan* plan);
  // Takes back a Reserve that was not filled: victims return, pins drop.
  void Cancel(BatchPlan* plan);
  // Takes back what the plan holds, however far it came: Cancel, Release or nothing.
  void Abandon(BatchPlan* plan);
  // Puts rows of the missing keys in place, in the order of plan->missing_keys; where found[i] is 0
  // the row is initialised: fresh, or stored and dirty if `create`.
  void Fill(BatchPlan* plan, const uint8_t* rows, const uint8_t* found, float lr, bool create);
  void Release(BatchPlan* plan);

  // Collects the window's embeddings; with the batch's last window, writes all `count` rows of out.
  void Gather(BatchPlan* plan, OutputRows out);
  // Pools the bags of the batch, which the window is, to their places in out.
  void Pool(BatchPlan* plan, const BagsView& bags, OutputValues out);
  // MakePlan, Find over the whole batch, and, if nothing is missing, SumGradients and FindOverflow:
  // *worst is what they returned, else -1. Returns the number of missing keys. Keys that hardly
  // repeat are looked up without numbering them; if each turns out to be here, once, the plan is
  // good for one Apply, and the gradients must stay as they are until then or until Abandon.
  int64_t SumHere(const uint64_t* keys, int64_t count, const float* gradients, float lr,
                  BatchPlan* plan, int64_t* worst);
  // Sums gradients per unique key: of occurrences [count, dim], or of bags, which are at their
  // places, unless `bags` is null. The first unique key with a non-finite sum, or -1.
  // In a table with statistics it also counts: labels [count] of the occurrences, 0 or 1, or null.
  int64_t SumGradients(BatchPlan* plan, GradientValues gradients, const BagsView* bags,
                       const uint8_t* labels = nullptr);
  int64_t SumGradients(BatchPlan* plan, const float* gradients, const BagsView* bags = nullptr,
                       const uint8_t* labels = nullptr) {
    return SumGradients(plan, GradientValues{gradients}, bags, labels);
  }
  // True if FindOverflow of the plan's sums may find a key.
  bool MayOverflow(const BatchPlan& plan, float lr) const;
  // The first unique key of the window, all of whose rows are here, whose update by the plan's sums
  // would not leave its row finite, or -1. Changes no row.
  int64_t FindOverflow(BatchPlan* plan, float lr);
  // From now on every update is tried: there is a row that is not tame (optimizer/trial.h).
  void Watch() { is_watched_.store(true, std::memory_order_relaxed); }
  bool is_watched() const { return is_watched_.load(std::memory_order_relaxed); }
  void Apply(BatchPlan* plan, float lr);
  // In which updates count from now on, in a table with statistics.
  void SetPeriod(uint32_t period) { view_.period = period; }
  // By which such rows decay and die from now on; what they point to outlives the cache.
  void SetRules(const LifeRules& rules) { view_.rules = rules; }
  // Drops the rows that are dead in the period; there are no pins, and none of these rows is dirty.
  // Returns how many.
  int64_t DropDead(uint32_t period);
  // Admission: which of the window's fresh rows the next Apply of the plan, whose sums are there,
  // is to make stored ones; it leaves the others as they are.
  //
  // Lists the window's fresh rows, and looks their keys up in another table, if one is given;
  // returns how many it lacks, with those whose rows are on their way.
  int64_t ListFresh(BatchPlan* plan, DramCache* beside);
  // Counts the update of each listed key in its record, a row of `records` with statistics, which
  // lies where ListFresh has found it. A key that has been shown `least` times is admitted: its
  // record is emptied, and its row begins with the counts of before.
  void AdmitCounted(BatchPlan* plan, DramCache* records, float least);
  // Admits the listed keys whose rows of `scores`, where ListFresh has found them, have at least
  // that score, decayed to the period, by the rules of that table, or else by others. A row that
  // counts begins with the decayed counts of that one.
  void AdmitScored(BatchPlan* plan, const DramCache& scores, float least, const LifeRules& others);
  // Admits each listed key with a probability, by a draw on (initializer's stream, key, number).
  void AdmitDrawn(BatchPlan* plan, uint64_t number, double probability);
  // Sets the window's rows from rows [count, dim] (a key's last occurrence); state [count,
  // state_floats] or null to start it anew; statistics [count], or null: they stay, but for the
  // last period.
  void Assign(BatchPlan* plan, const float* rows, const float* state,
              const RowStatistics* statistics, float lr);
  // The same, without a plan, of those of keys[count] whose rows are here and not on their way:
  // done[i] is 1 of these, else 0. Takes no slot. Returns how many were set; of equal keys the last
  // one counts. One thread does it, for few keys.
  int64_t AssignHere(const uint64_t* keys, int64_t count, const float* rows, float lr,
                     uint8_t* done);
  // Makes the window's fresh rows stored ones, with the state of a new row. Returns how many.
  int64_t Create(BatchPlan* plan, float lr);
  // Copies the window's row images, in the order of its unique keys, to rows [window, row_bytes].
  void ReadRows(BatchPlan* plan, uint8_t* rows);
  // Without a plan, and without taking a slot: of distinct keys[count] those whose rows are stored
  // and in place here, and whose found[i] is 0. Copies their images to rows [count, row_bytes], at
  // i, and sets found[i] to 1.
  RowsHere ReadHere(const uint64_t* keys, int64_t count, uint8_t* rows, uint8_t* found);
  // The same the other way: sets rows from images [count, row_bytes] of distinct keys, each of
  // which tells its key; they are dirty then, and done[i] is 1. Returns how many were set.
  int64_t WriteHere(const uint8_t* rows, int64_t count, uint8_t* done);
  // What absent keys read as, into out [count, dim]; takes no slot.
  void InitialWeights(const uint64_t* keys, int64_t count, float* out) const;

  // True if none of values[count] is NaN or infinite.
  bool AreFinite(const float* values, int64_t count) const;

  Presence Contains(uint64_t key) const;
  // Drops keys; presence[i] tells what was dropped. kConfig, and nothing changed, if one is pinned.
  Status Erase(const uint64_t* keys, int64_t count, uint8_t* presence);
  // Copies stored rows (only dirty ones if `dirty_only`) from slot `cursor` on, up to `most`;
  // returns how many and moves the cursor behind the last slot looked at (-1 at the end).
  int64_t Scan(int64_t* cursor, bool dirty_only, int64_t most, uint8_t* rows) const;
  // The dirty rows in slots [first, last) are safely below; last < 0 means to the end.
  void MarkClean(int64_t first, int64_t last);
  void Clear();
  // How often the table has grown: cursors of Scan are good until it grows again.
  uint64_t num_growths() const { return growth_; }

  bool IsCurrent(const BatchPlan& plan) const;
  ThreadPool* pool() const { return pool_; }
  const RowLayout& layout() const { return options_.layout; }
  // What the budget allows; the table is as large as its rows need, up to that.
  const TableShape& shape() const { return full_shape_; }
  bool is_packed() const { return options_.is_packed; }
  const char* instruction_set() const { return loops_->name; }
  const DramCacheCounters& counters() const { return counters_; }
  // Of the table as large as it is now.
  int64_t memory_bytes() const;
  int64_t num_rows() const { return num_rows_; }
  int64_t num_fresh() const { return num_fresh_; }
  // Fresh rows that were stored since the cache was made; never falls.
  int64_t num_created() const { return num_created_; }
  int64_t num_dirty() const { return num_dirty_; }
  int64_t num_pins() const { return num_pins_; }
  uint64_t epoch() const { return epoch_; }

 private:
  static constexpr int32_t kMostCopiedColumns = 32;

  DramCache(const DramCacheOptions& options, const KeyLoops* key_loops, ThreadPool* pool);

  Status MapTable();
  const TableFill& fill() const { return is_packed() ? kPackedFill : kUsualFill; }
  void PreferHugePages();
  void MakeRoom(int64_t num_missing);
  bool Grow(const TableShape& shape);
  void Follow(BatchPlan* plan) const;
  void CountPending(BatchPlan* plan, int64_t sign);
  void AdvanceClock(int64_t num_used);
  void SweepBuckets();
  int64_t CountFound(BatchPlan* plan);
  bool IsLookedUp(const BatchPlan& plan) const;  // all of it, and that is still so
  bool FindEach(const uint64_t* keys, int64_t count, const float* gradients, float lr,
                BatchPlan* plan);
  int64_t FirstToOccur(BatchPlan* plan);
  void GiveTaken(BatchPlan* plan);
  // Rows whose copies would push what numbering needs out of the near caches are pooled from where
  // they lie (docs/decisions/0022-pooled-bags.md).
  bool pools_in_place() const { return !view_.is_narrow && view_.dim > kMostCopiedColumns; }
  void PoolInPlace(BatchPlan* plan, const BagsView& bags, OutputValues out);
  void Collect(BatchPlan* plan);
  void Expand(BatchPlan* plan, OutputRows out);
  GradientView ViewGradients(GradientValues gradients, const BagsView* bags, BatchPlan* plan) const;
  bool PinWindow(BatchPlan* plan);
  void UnpinFound(BatchPlan* plan);
  void CommitReservations(BatchPlan* plan);
  void CountEviction(const Reservation& reservation, int64_t sign);
  void MarkUpdated(BatchPlan* plan);
  void CountUpdated(const WorkerBatch& worker);

  const DramCacheOptions options_;
  const KeyLoops* const key_loops_;
  const BatchLoops* const loops_;
  ThreadPool* const pool_;
  HostMemory memory_;
  TableShape full_shape_;
  CacheView view_ = {};
  DramCacheCounters counters_;
  int64_t num_rows_ = 0;  // stored rows here: neither fresh nor pending
  int64_t num_fresh_ = 0;
  int64_t num_created_ = 0;
  int64_t num_dirty_ = 0;
  int64_t num_pins_ = 0;
  int64_t used_since_tick_ = 0;
  int64_t sweep_bucket_ = 0;
  uint64_t epoch_ = 1;
  std::atomic<bool> is_watched_{false};  // also set and asked for without the lock
  uint64_t growth_ = 0;                  // how often the table has grown
  int64_t num_pending_ = 0;              // slots reserved and not filled
  int64_t pending_victims_ = 0;          // of these, such as a row had to leave
  int64_t pause_growth_ = 0;             // keys to be missed before growing is tried again
};

}  // namespace hps
