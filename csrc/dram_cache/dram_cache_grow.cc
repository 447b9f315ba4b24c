// How DramCache grows: its table takes more buckets once its rows need them, up to the budget.
//
// Above it: dram_cache.cc, which makes room before it takes slots. Below it: csrc/table. Every
// part of a table grows for itself, in place and in one pass from its last bucket to its first: a
// row's first bucket never has a lower number in a larger table, so what a row moves onto has moved
// already. A part is tried on counters before any row moves, so growing is done or refused whole.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "common/check.h"
#include "dram_cache/ask_for_keys.h"
#include "dram_cache/dram_cache.h"
#include "table/table_shape.h"

namespace hps {
namespace {

constexpr int64_t kHugeFrom = 1 << 20;  // bytes of an array from which on it lies on huge pages

// Looks the rows of keys [first, end) up again that were found; false if one is not here any more.
bool FollowSome(const TableView& table, WorkerBatch* worker, int64_t first, int64_t end) {
  KeyPlace places[kAskedTogether];
  AskForKeys(table, worker->keys + first, end - first, sizeof(uint64_t), places);
  bool are_here = true;
  for (int64_t id = first; id < end; ++id) {
    if (worker->slots[id] == kNoSlot) continue;
    worker->slots[id] = FindOne(HostGroup{}, table, places[id - first], worker->keys[id]);
    are_here &= worker->slots[id] != kNoSlot;
  }
  return are_here;
}

// One part of a table, from a shape to a larger one.
class PartGrowth {
 public:
  PartGrowth(const TableView& table, const TableShape& larger, int64_t part)
      : from_(table), to_(table), part_(part) {
    to_.shape = larger;
  }

  // Whether every row finds a slot; takes the memory that Move needs.
  bool Fits() {
    counts_.resize(static_cast<size_t>(to_.shape.buckets_per_part));
    if (!Walk<false>()) return false;
    aside_.reserve(static_cast<size_t>(num_aside_));
    aside_rows_.resize(static_cast<size_t>(num_aside_ * to_.shape.row_bytes));
    return true;
  }

  // Moves the rows; after Fits, if that was so.
  void Move() {
    for (int64_t i = 0; i < to_.shape.buckets_per_part; ++i) to_.spilled[BucketOf(i)] = 0;
    HPS_CHECK(Walk<true>());
  }

 private:
  struct Aside {
    KeyPlace place;
    SlotMark mark;
    uint8_t pins;
  };

  int64_t BucketOf(int64_t i) const { return (i << to_.shape.part_bits) + part_; }
  uint8_t& CountOf(int64_t bucket) {
    return counts_[static_cast<size_t>(bucket >> to_.shape.part_bits)];
  }

  // Rows that were in their first bucket go to, or stay in, their new first one while that is
  // asked for; the others are set aside and get a place when all these have theirs. False, and
  // only without kMoves, if one gets none.
  template <bool kMoves>
  bool Walk() {
    std::fill(counts_.begin(), counts_.end(), uint8_t{0});
    aside_.clear();
    num_aside_ = 0;
    for (int64_t i = from_.shape.buckets_per_part - 1; i >= 0; --i) {
      const int64_t bucket = BucketOf(i);
      if (i > 0) AskFor<kMoves>(BucketOf(i - 1));
      uint64_t rows = ~FreeSlots(HostGroup{}, from_, bucket);
      for (; rows != 0; rows &= rows - 1)
        Take<kMoves>(bucket, bucket * kBucketSlots + LowestBit(rows));
    }
    for (const Aside& row : aside_) {
      if (!PlaceAside<kMoves>(row)) return false;
    }
    return true;
  }

  // Asks for what Take reads of the rows of a bucket: their keys, or all of them.
  template <bool kMoves>
  void AskFor(int64_t bucket) const {
    const int64_t bytes = kMoves ? from_.shape.row_bytes : int64_t{sizeof(uint64_t)};
    uint64_t rows = ~FreeSlots(HostGroup{}, from_, bucket);
    for (; rows != 0; rows &= rows - 1) {
      const uint8_t* row = RowAt(from_, bucket * kBucketSlots + LowestBit(rows));
      for (int64_t line = 0; line < bytes; line += 64) AskForLine(row + line);
      AskForLine(row + bytes - 1);
    }
  }

  template <bool kMoves>
  void Take(int64_t bucket, int64_t slot) {
    const uint64_t hash = MixKey(KeyAt(from_, slot));
    const KeyPlace place = PlaceOfHash(to_.shape, hash);
    const bool was_first = static_cast<int64_t>(FirstBucket(from_.shape, hash)) == bucket;
    const bool stays = was_first && place.first == bucket;
    if (!stays && !(was_first && CountOf(place.first) < kFirstRoundSlots)) {
      if (kMoves) SetAside(slot);
      aside_.push_back({place, from_.marks[slot], from_.pins[slot]});
      ++num_aside_;
      if (kMoves) Empty(slot);
      return;
    }
    ++CountOf(place.first);
    if (!kMoves || stays) return;
    Put(place.first, place.digest, from_.marks[slot], from_.pins[slot], RowAt(from_, slot));
    Empty(slot);
  }

  template <bool kMoves>
  bool PlaceAside(const Aside& row) {
    int64_t bucket = row.place.first;
    const bool is_full = CountOf(bucket) >= kFirstRoundSlots;
    if (is_full && CountOf(row.place.second) < CountOf(bucket)) bucket = row.place.second;
    if (CountOf(bucket) == kBucketSlots) return false;
    ++CountOf(bucket);
    if (!kMoves) return true;
    const int64_t index = &row - aside_.data();
    Put(bucket, row.place.digest, row.mark, row.pins,
        aside_rows_.data() + index * to_.shape.row_bytes);
    if (bucket != row.place.first) PlainCounts{}.increase(to_.spilled + row.place.first);
    return true;
  }

  void SetAside(int64_t slot) {
    std::memcpy(aside_rows_.data() + num_aside_ * to_.shape.row_bytes, RowAt(from_, slot),
                static_cast<size_t>(to_.shape.row_bytes));
  }

  void Put(int64_t bucket, uint8_t digest, SlotMark mark, uint8_t pins, const uint8_t* row) {
    const int64_t slot = FirstFree(HostGroup{}, to_, bucket);
    to_.digests[slot] = digest;
    to_.marks[slot] = mark;
    to_.pins[slot] = pins;
    std::memcpy(RowAt(to_, slot), row, static_cast<size_t>(to_.shape.row_bytes));
  }

  void Empty(int64_t slot) {
    from_.digests[slot] = 0;
    from_.marks[slot] = {};
    from_.pins[slot] = 0;
  }

  TableView from_;
  TableView to_;
  int64_t part_;
  int64_t num_aside_ = 0;
  std::vector<uint8_t> counts_;  // rows that have their place, by bucket of the part
  std::vector<Aside> aside_;
  std::vector<uint8_t> aside_rows_;
};

}  // namespace

int64_t DramCache::memory_bytes() const {
  const TableShape& shape = view_.table.shape;
  if (shape.buckets_per_part == full_shape_.buckets_per_part) return memory_.bytes();
  return shape.num_slots() * shape.row_bytes + shape.num_buckets() * kBucketMarkBytes;
}

// A table's arrays each grow at their end. Small ones stay on small pages: a huge one would take
// more memory than their rows do.
void DramCache::PreferHugePages() {
  const TableView& table = view_.table;
  if (table.shape.buckets_per_part == full_shape_.buckets_per_part) {
    memory_.PreferHugePages(0, memory_.bytes());
    return;
  }
  const int64_t slots = table.shape.num_slots();
  const auto prefer = [&](const void* array, int64_t bytes) {
    if (bytes < kHugeFrom) return;
    memory_.PreferHugePages(static_cast<const uint8_t*>(array) - memory_.data(), bytes);
  };
  prefer(table.rows, slots * table.shape.row_bytes);
  prefer(table.digests, slots);
  prefer(table.marks, slots * static_cast<int64_t>(sizeof(SlotMark)));
  prefer(table.pins, slots);
  prefer(table.spilled, table.shape.num_buckets());
}

void DramCache::Expect(int64_t num_rows) {
  const TableShape& shape = view_.table.shape;
  const TableShape larger = LeastShapeForRows(shape, full_shape_, num_rows, fill());
  // A victim that may yet be put back has its place in the table as it is.
  if (larger.buckets_per_part > shape.buckets_per_part && pending_victims_ == 0) Grow(larger);
}

// Grows the table if so many more rows need it. Where that cannot be, rows give way as in a table
// that has its full size. A batch that misses nothing may be reserved by a thread without the turn,
// beside a push that relies on its slots: it never makes the table grow.
void DramCache::MakeRoom(int64_t num_missing) {
  if (num_missing == 0) return;
  const TableShape& shape = view_.table.shape;
  if (shape.buckets_per_part == full_shape_.buckets_per_part) return;
  const int64_t num_rows = num_rows_ + num_fresh_ + num_pending_ + num_missing;
  const TableShape larger = ShapeForRows(shape, full_shape_, num_rows, fill());
  if (larger.buckets_per_part == shape.buckets_per_part) return;
  // A victim that may yet be put back has its place in the table as it is.
  if (pending_victims_ > 0) return;
  pause_growth_ -= num_missing;
  if (pause_growth_ > 0) return;
  pause_growth_ = 0;
  if (!Grow(larger)) pause_growth_ = shape.num_slots();
}

// False, and nothing has changed, if some row would find no slot or memory is short. Keys that
// someone chose for it can do that.
bool DramCache::Grow(const TableShape& larger) {
  TableShape& shape = view_.table.shape;
  std::vector<PartGrowth> parts;
  std::atomic<bool> fits{true};
  try {
    for (int64_t i = 0; i < shape.num_parts; ++i) parts.emplace_back(view_.table, larger, i);
    DealOut(pool_, parts.size(), [&](size_t part, int) {
      if (fits && !parts[part].Fits()) fits = false;
    });
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (!fits) return false;
  const TableShape smaller = shape;
  shape = larger;
  PreferHugePages();
  shape = smaller;
  DealOut(pool_, parts.size(), [&](size_t part, int) { parts[part].Move(); });
  shape = larger;
  ++growth_;
  ++epoch_;
  return true;
}

// Looks the plan's slots up again if the table has grown since.
void DramCache::Follow(BatchPlan* plan) const {
  if (plan->growth == growth_) return;
  plan->growth = growth_;
  const TableView& table = view_.table;
  const bool is_reserved = plan->state == BatchPlan::State::kReserved;
  const bool is_pinned = is_reserved || plan->state == BatchPlan::State::kPinned;
  plan->ForWorkers(pool_, [&](WorkerBatch* worker) {
    for (int64_t id = worker->window_begin; id < worker->window_end; id += kAskedTogether) {
      const int64_t end = std::min(id + kAskedTogether, worker->window_end);
      HPS_CHECK(FollowSome(table, worker, id, end) || !is_pinned);
    }
    for (int64_t entry = 0; is_reserved && entry < worker->num_missing; ++entry) {
      const int64_t id = worker->missing[entry];
      const KeyPlace place = PlaceOfHash(table.shape, MixKey(worker->keys[id]));
      Reservation& reservation = worker->reservations[entry];
      reservation.slot = worker->slots[id];
      reservation.spilled_from = reservation.slot / kBucketSlots == place.first ? -1 : place.first;
    }
  });
}

void DramCache::CountPending(BatchPlan* plan, int64_t sign) {
  plan->ForWorkersInTurn([&](WorkerBatch* worker) {
    num_pending_ += sign * worker->num_missing;
    for (int64_t entry = 0; entry < worker->num_missing; ++entry) {
      pending_victims_ += worker->reservations[entry].had_victim ? sign : 0;
    }
  });
}

}  // namespace hps
