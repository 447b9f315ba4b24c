// TableBatch: a step's keys of several tables, with a plan a table; each verb works on all of them
// in one call.
//
// Above it: the bindings. Below it: table_rows.h, whatever cache a table's rows lie in. A table
// with more than a thread's share of the keys is worked on by all threads together. Each other
// table is one thread's from verb to verb, whose near cache has its plan then, unless another
// thread is done with its own before. Tables with the very same keys count as one table here, and
// Hold numbers their keys once.
// Verbs are serialised by the caller. While rows of these tables are on their way Pull and Hold may
// meet such, which the caller then asks for; Pool, Sum and Apply need rows in place. The caches and
// the thread pool are shared.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "batch/pooling.h"
#include "batch/row_overlay.h"
#include "common/array.h"
#include "table_batch/table_rows.h"

namespace hps {

// Keys of one table, and how they form bags.
struct TablePiece {
  const uint64_t* keys;  // [count]
  int64_t count;
  const void* offsets;   // [num_bags + 1] of 64 or 32 bits; the first need not be 0
  bool is_narrow;        // of 32
  int64_t num_bags;      // features of so many examples, feature after feature
  const float* weights;  // [count] or null
};

// Where a table's features have their values in the rows of an output, or of its gradients.
struct FeaturePlaces {
  bool is_mean;
  std::vector<int64_t> columns;  // of each feature
};

// What the batches of the same tables have counted together, of each table: keys that Pull and Hold
// found where they found all, the wall clock of all verbs, and steps that had keys of it.
struct TableCounts {
  explicit TableCounts(size_t num_tables)
      : hits(num_tables), seconds(num_tables), steps(num_tables) {}

  std::vector<int64_t> hits;
  std::vector<double> seconds;
  std::vector<int64_t> steps;
};

class TableBatch {
 public:
  // kNothing: Begin comes next. kBegun: Pull or Hold. kTaken: the other verbs, of tables that were
  // not refused.
  enum class Stage { kNothing, kBegun, kTaken };

  // Rows of each table of one server, one at least; their caches share a pool of threads.
  TableBatch(std::vector<std::unique_ptr<TableRows>> rows, TableCounts* counts);
  TableBatch(const TableBatch&) = delete;
  TableBatch& operator=(const TableBatch&) = delete;

  // The batch becomes these pieces of each table, side by side; arrays must live until the next
  // Pull or Hold returns, which copy them. What the batch held is abandoned.
  void Begin(const std::vector<std::vector<TablePiece>>& pieces, int64_t num_examples);

  // Makes plans, looks all keys up, and pools the bags of tables with no missing key to their
  // places in out [examples, width].
  void Pull(const std::vector<FeaturePlaces>& places, int64_t width, OutputValues out);
  // Makes plans, looks all keys up, and pins the tables with no missing key whose pins can be had.
  void Hold();
  // Pools the bags of pinned rows to their places in out [examples, width].
  void Pool(const std::vector<FeaturePlaces>& places, int64_t width, OutputValues out);
  // After Pull, once all rows have been pooled: reads rows of overlays (of each table one, or null)
  // in place of the tables'. Returns the tables that have such a key in a bag with others, which
  // are for PoolOver to do; all other bags are done.
  std::vector<size_t> LayOver(const std::vector<const RowOverlay*>& overlays,
                              const std::vector<FeaturePlaces>& places, int64_t width,
                              OutputValues out) const;
  // Pools the bags of one table anew, from what it has for each key, values [keys, dim], and from
  // the overlay.
  void PoolOver(size_t table, const RowOverlay& overlay, const float* values,
                const FeaturePlaces& places, int64_t width, OutputValues out);
  // Looks up again what may have moved.
  void Find();
  // Sums gradients by key, and looks for a sum, or a row after its step, that is not finite. Those
  // of bags are at their places in gradients [examples, width]. Tables with statistics also count:
  // labels [examples], 0 or 1, are those of an example's occurrences; null: there are none.
  void Sum(const std::vector<FeaturePlaces>& places, int64_t width, GradientValues gradients,
           const uint8_t* labels, const std::vector<float>& rates);
  // Applies each table's optimizer once a key.
  void Apply(const std::vector<float>& rates);
  // Gives pins back, whatever a verb left behind.
  void Release();

  // Of a table after the verbs.
  Stage stage() const { return stage_; }
  // Its offsets do not rise as they must, or a weight is not finite.
  bool is_refused(size_t table) const { return parts_[table].is_refused; }
  // Keys of the last look-up that were not there. Of Hold also 1 where pins could not be had.
  int64_t num_missing(size_t table) const { return parts_[table].num_missing; }
  // The key whose sum, or whose row after the step, is not finite, or -1.
  int64_t culprit(size_t table) const { return parts_[table].culprit; }
  // What the last Pull or Hold has found of a table is looked up again.
  void TakeBackHits(size_t table) {
    counts_->hits[table] -= std::exchange(parts_[table].num_found, 0);
  }
  // Of a table that was not refused: the keys of its plan.
  const uint64_t* keys(size_t table) const { return parts_[table].rows->keys(); }
  // What the batch has of a table, as it was taken.
  int64_t num_keys(size_t table) const { return parts_[table].count; }
  const int64_t* offsets(size_t table) const { return parts_[table].offsets.data(); }
  const float* weights(size_t table) const {  // or null
    return parts_[table].has_weights ? parts_[table].weights.data() : nullptr;
  }
  TableRows* rows(size_t table) const { return parts_[table].rows.get(); }
  size_t num_tables() const { return parts_.size(); }
  int64_t num_examples() const { return num_examples_; }
  int64_t num_bags(size_t table) const { return parts_[table].num_bags; }

 private:
  static constexpr int kAllThreads = -1;

  struct Part {
    std::unique_ptr<TableRows> rows;
    std::vector<TablePiece> pieces;  // until they are taken
    Array<uint64_t> joined_keys;     // of several pieces
    Array<int64_t> offsets;          // [num_bags + 1] from 0 to count
    Array<float> weights;
    Array<uint8_t> labels;  // [count]
    int64_t count = 0;
    int64_t num_bags = 0;
    bool has_weights = false;
    bool are_single = false;
    bool is_refused = false;
    int64_t num_missing = 0;
    int64_t num_found = 0;  // that were counted as hits
    int64_t culprit = -1;
    int thread = kAllThreads;       // that works on it
    size_t leader = 0;              // the first table with the very same keys
    std::vector<size_t> followers;  // tables with its keys, which are worked on right after it
    std::atomic<bool> is_claimed{false};
  };

  void DealOut();
  size_t FindLeader(size_t table) const;
  static const uint64_t* Take(Part* part);
  void CountFound(size_t table, Part* part, int64_t num_missing);
  BagsView View(const Part& part, const FeaturePlaces& places, int64_t width) const;
  // Calls task(number, part) for each table, in parallel.
  template <class Task>
  void ForParts(Task task);

  ThreadPool* const pool_;
  TableCounts* const counts_;
  Stage stage_ = Stage::kNothing;
  std::deque<Part> parts_;
  std::vector<size_t> shared_;  // tables for a thread each, the largest first
  int num_threads_ = 1;         // that share them
  int64_t num_examples_ = 0;
  Pooling pooling_;  // of PoolOver
};

}  // namespace hps
