// Who works on which table, and the verbs of a step over all of them.
#include "table_batch/table_batch.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "common/check.h"
#include "common/float_mode.h"

namespace hps {
namespace {

constexpr int64_t kWorkAThread = 4096;  // keys and bags; below this another thread costs more

int64_t WorkOf(const std::vector<TablePiece>& pieces) {
  int64_t work = 0;
  for (const TablePiece& piece : pieces) work += piece.count + piece.num_bags;
  return work;
}

// Copies offsets to out [num_bags + 1], so that they begin at `first`. False unless they rise from
// the piece's first to its last key; *are_single becomes false unless each bag has one.
template <class Offset>
bool CopyOffsets(const TablePiece& piece, int64_t first, int64_t* out, bool* are_single) {
  const auto* offsets = static_cast<const Offset*>(piece.offsets);
  // Without signs, for differences of wrong offsets may be of any size.
  const auto at = [=](int64_t bag) { return static_cast<uint64_t>(int64_t{offsets[bag]}); };
  const uint64_t shift = static_cast<uint64_t>(first) - at(0);
  bool is_falling = false, is_uneven = false;
  for (int64_t bag = 0; bag < piece.num_bags; ++bag) {
    is_falling |= offsets[bag + 1] < offsets[bag];
    is_uneven |= at(bag + 1) - at(bag) != 1;
    out[bag] = static_cast<int64_t>(at(bag) + shift);
  }
  out[piece.num_bags] = static_cast<int64_t>(at(piece.num_bags) + shift);
  *are_single &= !is_uneven;
  return !is_falling && at(piece.num_bags) - at(0) == static_cast<uint64_t>(piece.count);
}

// The bag of one occurrence: its row, or that times its weight.
void WriteSingle(const float* row, const float* weight, int64_t dim, int64_t place,
                 OutputValues out) {
  for (int64_t d = 0; d < dim; ++d) {
    const float value = weight == nullptr ? row[d] : row[d] * *weight;
    if (out.narrow != nullptr) {
      out.narrow[place + d] = Narrowed(value);
    } else {
      out.wide[place + d] = value;
    }
  }
}

}  // namespace

TableBatch::TableBatch(std::vector<std::unique_ptr<TableRows>> rows, TableCounts* counts)
    : pool_(rows[0]->pool()), counts_(counts) {
  for (std::unique_ptr<TableRows>& own : rows) parts_.emplace_back().rows = std::move(own);
}

void TableBatch::Begin(const std::vector<std::vector<TablePiece>>& pieces, int64_t num_examples) {
  Release();
  stage_ = Stage::kBegun;
  num_examples_ = num_examples;
  for (size_t table = 0; table < parts_.size(); ++table) {
    Part& part = parts_[table];
    part.pieces = pieces[table];
    part.count = part.num_bags = 0;
    for (const TablePiece& piece : part.pieces) {
      part.count += piece.count;
      part.num_bags += piece.num_bags;
    }
    part.is_refused = false;
    part.num_missing = part.num_found = 0;
    part.culprit = -1;
  }
  for (Part& part : parts_) part.followers.clear();
  for (size_t table = 0; table < parts_.size(); ++table) {
    const size_t leader = parts_[table].leader = FindLeader(table);
    if (leader != table) parts_[leader].followers.push_back(table);
  }
  DealOut();
}

// The first table that has the very same keys: itself, or one before it.
size_t TableBatch::FindLeader(size_t table) const {
  const Part& part = parts_[table];
  if (part.pieces.size() != 1 || part.count == 0) return table;
  for (size_t i = 0; i < table; ++i) {
    const Part& other = parts_[i];
    if (other.pieces.size() == 1 && other.count == part.count &&
        other.pieces[0].keys == part.pieces[0].keys) {
      return i;
    }
  }
  return table;
}

// The largest table first, to the thread with the least work so far; tables with the same keys go
// together.
void TableBatch::DealOut() {
  std::vector<int64_t> work(parts_.size());
  for (size_t table = 0; table < parts_.size(); ++table) {
    work[parts_[table].leader] += WorkOf(parts_[table].pieces);
  }
  const int64_t whole = std::accumulate(work.begin(), work.end(), int64_t{0});
  num_threads_ =
      static_cast<int>(std::clamp<int64_t>(1 + whole / kWorkAThread, 1, pool_->num_threads()));
  shared_.clear();
  for (size_t table = 0; table < parts_.size(); ++table) {
    Part& part = parts_[table];
    if (part.leader != table) continue;
    const bool is_large = num_threads_ > 1 && work[table] * num_threads_ > whole;
    part.thread = kAllThreads;
    part.rows->WorkAlone(!is_large);
    for (const size_t follower : part.followers) parts_[follower].rows->WorkAlone(!is_large);
    if (!is_large) shared_.push_back(table);
  }
  std::stable_sort(shared_.begin(), shared_.end(),
                   [&](size_t left, size_t right) { return work[left] > work[right]; });
  std::vector<int64_t> loads(static_cast<size_t>(num_threads_));
  for (const size_t table : shared_) {
    const auto lightest = std::min_element(loads.begin(), loads.end());
    *lightest += work[table];
    parts_[table].thread = static_cast<int>(lightest - loads.begin());
  }
}

template <class Task>
void TableBatch::ForParts(Task task) {
  const auto run_one = [&](size_t table) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    task(table, &parts_[table]);
    counts_->seconds[table] += std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto run = [&](size_t table) {
    run_one(table);
    for (const size_t follower : parts_[table].followers) run_one(follower);
  };
  for (size_t table = 0; table < parts_.size(); ++table) {
    Part& part = parts_[table];
    part.is_claimed.store(false, std::memory_order_relaxed);
    if (part.leader == table && part.thread == kAllThreads) run(table);
  }
  // There and back: what the last verb left in a near cache is what this one begins with.
  std::reverse(shared_.begin(), shared_.end());
  if (num_threads_ == 1 || shared_.size() <= 1) {
    const DefaultFloatMode mode;  // the pool sees to it otherwise
    for (const size_t table : shared_) run(table);
    return;
  }
  pool_->Run([&](int thread) {
    if (thread >= num_threads_) return;
    for (const bool is_own : {true, false}) {
      for (const size_t table : shared_) {
        Part& part = parts_[table];
        if (is_own && part.thread != thread) continue;
        if (part.is_claimed.load(std::memory_order_relaxed)) continue;
        if (!part.is_claimed.exchange(true, std::memory_order_relaxed)) run(table);
      }
    }
  });
}

// Copies what the caller may change; returns the keys, for as long as the caller's are good.
const uint64_t* TableBatch::Take(Part* part) {
  const std::vector<TablePiece> pieces = std::move(part->pieces);
  part->pieces.clear();
  // Of a table all pieces have weights, or none.
  part->has_weights = !pieces.empty() && pieces[0].weights != nullptr;
  part->are_single = true;
  int64_t* offsets = part->offsets.Reserve(part->num_bags + 1);
  offsets[0] = 0;
  uint64_t* joined = pieces.size() > 1 ? part->joined_keys.Reserve(part->count) : nullptr;
  float* weights = part->has_weights ? part->weights.Reserve(part->count) : nullptr;
  int64_t first = 0;
  for (const TablePiece& piece : pieces) {
    const bool is_right = piece.is_narrow
                              ? CopyOffsets<int32_t>(piece, first, offsets, &part->are_single)
                              : CopyOffsets<int64_t>(piece, first, offsets, &part->are_single);
    part->is_refused |= !is_right;
    const auto size = static_cast<size_t>(piece.count);
    if (joined != nullptr && size > 0) {
      std::memcpy(joined + first, piece.keys, size * sizeof(uint64_t));
    }
    if (weights != nullptr && size > 0) {
      std::memcpy(weights + first, piece.weights, size * sizeof(float));
    }
    first += piece.count;
    offsets += piece.num_bags;
  }
  if (weights != nullptr) part->is_refused |= !part->rows->AreFinite(weights, part->count);
  return joined != nullptr || pieces.empty() ? joined : pieces[0].keys;
}

BagsView TableBatch::View(const Part& part, const FeaturePlaces& places, int64_t width) const {
  BagsView bags = {};
  bags.offsets = part.offsets.data();
  bags.weights = part.has_weights ? part.weights.data() : nullptr;
  bags.num_examples = num_examples_;
  bags.num_features = num_examples_ == 0 ? 0 : part.num_bags / num_examples_;
  bags.is_mean = places.is_mean;
  bags.are_single = part.are_single;
  bags.stride = width;
  bags.columns = places.columns.data();
  return bags;
}

void TableBatch::CountFound(size_t table, Part* part, int64_t num_missing) {
  part->num_missing = num_missing;
  part->num_found = num_missing == 0 ? part->rows->num_unique() : 0;
  counts_->hits[table] += part->num_found;
}

void TableBatch::Pull(const std::vector<FeaturePlaces>& places, int64_t width, OutputValues out) {
  stage_ = Stage::kTaken;
  ForParts([&](size_t table, Part* part) {
    const uint64_t* keys = Take(part);
    if (part->is_refused) return;
    const BagsView bags = View(*part, places[table], width);
    CountFound(table, part, part->rows->PullPooled(keys, part->count, bags, out));
  });
}

void TableBatch::Hold() {
  stage_ = Stage::kTaken;
  ForParts([this](size_t table, Part* part) {
    const uint64_t* keys = Take(part);
    if (part->is_refused) return;
    const Part& leader = parts_[part->leader];
    const bool is_again = &leader != part && !leader.is_refused;
    CountFound(table, part,
               is_again ? part->rows->FindAs(*leader.rows) : part->rows->Find(keys, part->count));
    if (part->num_missing == 0) part->num_missing = part->rows->Pin() ? 0 : 1;
  });
}

void TableBatch::Pool(const std::vector<FeaturePlaces>& places, int64_t width, OutputValues out) {
  ForParts(
      [&](size_t table, Part* part) { part->rows->Pool(View(*part, places[table], width), out); });
}

std::vector<size_t> TableBatch::LayOver(const std::vector<const RowOverlay*>& overlays,
                                        const std::vector<FeaturePlaces>& places, int64_t width,
                                        OutputValues out) const {
  std::vector<size_t> left;
  for (size_t table = 0; table < parts_.size(); ++table) {
    const Part& part = parts_[table];
    if (overlays[table] == nullptr || part.is_refused) continue;
    const RowOverlay& overlay = *overlays[table];
    HPS_CHECK(overlay.dim() == part.rows->layout().dim);
    const BagsView bags = View(part, places[table], width);
    const uint64_t* const keys = part.rows->keys();
    bool is_done = true;
    BagNumber number(bags, 0);
    for (int64_t bag = 0; bag < bags.num_bags(); ++bag, number.Next()) {
      const int64_t first = bags.offsets[bag], end = bags.offsets[bag + 1];
      const bool is_single = end - first == 1;
      if (!is_single && !is_done) continue;
      for (int64_t i = first; i < end; ++i) {
        const float* const row = overlay.Find(keys[i]);
        if (row == nullptr) continue;
        is_done &= is_single;
        if (!is_single) break;
        const float* const weight = bags.weights == nullptr ? nullptr : bags.weights + i;
        const int64_t place = bags.place(number.feature, number.example, overlay.dim());
        WriteSingle(row, weight, overlay.dim(), place, out);
      }
    }
    if (!is_done) left.push_back(table);
  }
  return left;
}

void TableBatch::PoolOver(size_t table, const RowOverlay& overlay, const float* values,
                          const FeaturePlaces& places, int64_t width, OutputValues out) {
  const Part& part = parts_[table];
  HPS_CHECK(overlay.dim() == part.rows->layout().dim);
  const uint64_t* const keys = part.rows->keys();
  const float** const rows = pooling_.PrepareRows(part.count);
  for (int64_t i = 0; i < part.count; ++i) {
    const float* const row = overlay.Find(keys[i]);
    rows[i] = row != nullptr ? row : values + i * overlay.dim();
  }
  pooling_.Pool(*ChooseKeyLoops("auto"), View(part, places, width), overlay.dim(), pool_, out);
}

void TableBatch::Find() {
  // Most often all are, and no thread is woken for it.
  const bool are_current = std::all_of(parts_.begin(), parts_.end(),
                                       [](const Part& part) { return part.rows->IsCurrent(); });
  if (are_current) {
    for (Part& part : parts_) part.num_missing = 0;
    return;
  }
  ForParts([](size_t, Part* part) { part->num_missing = part->rows->FindAgain(); });
}

void TableBatch::Sum(const std::vector<FeaturePlaces>& places, int64_t width,
                     GradientValues gradients, const uint8_t* labels,
                     const std::vector<float>& rates) {
  ForParts([&](size_t table, Part* part) {
    const BagsView bags = View(*part, places[table], width);
    const uint8_t* own = nullptr;
    if (labels != nullptr && part->rows->layout().has_statistics) {
      uint8_t* const spread = part->labels.Reserve(part->count);
      SpreadLabels(bags, labels, spread);
      own = spread;
    }
    part->culprit = part->rows->SumGradients(gradients, bags, own);
    if (part->culprit < 0) part->culprit = part->rows->FindOverflow(rates[table]);
  });
}

void TableBatch::Apply(const std::vector<float>& rates) {
  ForParts([&](size_t table, Part* part) {
    counts_->steps[table] += part->count > 0;
    part->rows->Apply(rates[table]);
  });
}

void TableBatch::Release() {
  const bool holds = std::any_of(parts_.begin(), parts_.end(),
                                 [](const Part& part) { return part.rows->holds_pins(); });
  if (holds) ForParts([](size_t, Part* part) { part->rows->Abandon(); });
}

}  // namespace hps
