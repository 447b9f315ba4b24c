// Look-ups, compiled once an instruction set.
//
// Above it: batch_loops_body.h. Below it: csrc/table, expand_body.h. A group of keys goes through
// three stages, each behind the next: hash and ask for the bucket's lines; compare digests and ask
// for the row; check the key and use the row.
#pragma once

#include "batch/expand_body.h"
#include "dram_cache/batch_loops.h"
#include "optimizer/lanes.h"
#include "table/host_group.h"
#include "table/row_copy.h"

namespace hps {
inline namespace HPS_BUILD {

inline constexpr int kGroup = 8;

// What becomes of a row that was found.
enum class Taking {
  kSlot,    // only its slot is wanted
  kFirst,   // the same, and to know whether a key before it in the batch has that slot
  kValue,   // its embedding goes to the worker's values, as Collected
  kOutput,  // its embedding goes to the key's one position in the output
};

// A group of keys on its way through a look-up.
struct LookupStage {
  uint64_t first[kGroup];
  uint64_t second[kGroup];
  uint64_t digests[kGroup];
  uint64_t candidates[kGroup];  // slots of the first bucket that have the digest
};

inline void AskForBuckets(const TableView& table, const uint64_t* keys, int count,
                          LookupStage* stage) {
  const TableShape shape = table.shape;
  // Whole groups, so that the arithmetic is done in wide registers; keys are padded for it.
  for (int i = 0; i < kGroup; ++i) {
    const uint64_t hash = MixKey(keys[i]);
    stage->first[i] = FirstBucket(shape, hash);
    stage->second[i] = SecondBucket(shape, hash);
    stage->digests[i] = DigestOf(hash);
  }
  for (int i = 0; i < count; ++i) {
    __builtin_prefetch(table.digests + stage->first[i] * kBucketSlots);
  }
}

// Asks for the first `bytes` of a row; rows are aligned, so that as many of its last share a line.
template <bool kWrite = false>
inline void PrefetchRow(const uint8_t* row, int64_t bytes, int64_t alignment) {
  const int64_t end = bytes - alignment;
  for (int64_t line = 0; line < end; line += 64) __builtin_prefetch(row + line, kWrite);
  __builtin_prefetch(row + bytes - 1, kWrite);
}

// The weights of a row, whichever type they have.
template <class Weight>
inline const Weight* WeightsAt(const TableView& table, int64_t slot) {
  return reinterpret_cast<const Weight*>(FloatsAt(table, slot) + kRowHeaderFloats);
}

// Compares digests, then asks for the rows: in a loop of its own and short, because a prefetch
// retires only once its page is known, and how many such waits go on at once is up to how many
// prefetches the processor has in view.
template <int kDim, Taking kTaking, class Weight>
inline void AskForRows(const CacheView& cache, int count, LookupStage* stage) {
  const int64_t dim = kDim > 0 ? kDim : cache.dim;
  constexpr bool kOnlySlots = kTaking == Taking::kSlot || kTaking == Taking::kFirst;
  const TableView& table = cache.table;
  const int64_t useful_bytes =
      table.header_bytes() + (kOnlySlots ? 0 : int64_t{sizeof(Weight)} * dim);
  const HostGroup group;
  int64_t slots[2 * kGroup];
  int num_slots = 0;
  for (int i = 0; i < count; ++i) {
    const auto bucket = static_cast<int64_t>(stage->first[i]);
    const auto digest = static_cast<uint8_t>(stage->digests[i]);
    const uint64_t mask = group.match(table.digests + bucket * kBucketSlots, digest);
    stage->candidates[i] = mask;
    // In one bucket of five some other key has the same digest, so a second candidate counts too.
    const uint64_t others = mask & (mask - 1);
    slots[num_slots] = bucket * kBucketSlots + (mask == 0 ? 0 : LowestBit(mask));
    num_slots += mask != 0;
    slots[num_slots] = bucket * kBucketSlots + (others == 0 ? 0 : LowestBit(others));
    num_slots += others != 0;
    if (mask == 0 && table.spilled[bucket] != 0) {
      __builtin_prefetch(table.digests + stage->second[i] * kBucketSlots);
    }
  }
  const int64_t alignment = cache.alignment();
  for (int i = 0; i < num_slots; ++i) {
    PrefetchRow(RowAt(table, slots[i]), useful_bytes, alignment);
  }
  if (!cache.keeps_stamps && kTaking != Taking::kFirst) return;
  for (int i = 0; i < num_slots; ++i) __builtin_prefetch(table.marks + slots[i], 1);
}

inline int64_t SlotOf(const TableView& table, const LookupStage& stage, int i, uint64_t key) {
  const auto bucket = static_cast<int64_t>(stage.first[i]);
  for (uint64_t left = stage.candidates[i]; left != 0; left &= left - 1) {
    const int64_t slot = bucket * kBucketSlots + LowestBit(left);
    if (KeyAt(table, slot) == key) return slot;
  }
  if (table.spilled[bucket] == 0) return kNoSlot;
  const auto digest = static_cast<uint8_t>(stage.digests[i]);
  return FindInBucket(HostGroup{}, table, static_cast<int64_t>(stage.second[i]), digest, key);
}

template <int kDim, bool kStream, Taking kTaking, class Weight, class Collected>
inline void CheckKeys(const CacheView& cache, WorkerBatch* worker, int64_t first, int count,
                      const LookupStage& stage, OutputRows out) {
  const TableView& table = cache.table;
  const int64_t dim = kDim > 0 ? kDim : cache.dim;
  for (int i = 0; i < count; ++i) {
    const int64_t id = first + i;
    const int64_t slot = SlotOf(table, stage, i, worker->keys[id]);
    worker->slots[id] = slot;
    if (slot == kNoSlot) {
      worker->missing[worker->num_missing++] = static_cast<uint32_t>(id);
      continue;
    }
    if (cache.keeps_stamps) table.marks[slot] = Touched(table.marks[slot], cache.now);
    if constexpr (kTaking == Taking::kFirst) {
      uint8_t& flags = table.marks[slot].flags;
      worker->num_repeats += (flags & kTaken) != 0;
      flags |= kTaken;
    }
    const Weight* weights = WeightsAt<Weight>(table, slot);
    if constexpr (kTaking == Taking::kValue) {
      CopyColumns<kDim>(weights, cache.dim, ValuesAs<Collected>(*worker) + id * dim);
    }
    if constexpr (kTaking == Taking::kOutput) {
      WriteRow<kDim, kStream>(weights, cache.dim,
                              out.values + worker->scan_positions[id] * out.stride);
    }
  }
}

// Look-ups on their way, as keys become available. Weight is float, or Bfloat16 in a narrow table;
// Collected is either.
template <int kDim, bool kStream, Taking kTaking, class Weight = float, class Collected = float>
class Lookup {
 public:
  // Looks up the worker's keys from its window's begin on; `out` is for Taking::kOutput.
  Lookup(const CacheView& cache, WorkerBatch* worker, OutputRows out)
      : cache_(cache), worker_(worker), out_(out), begin_(worker->window_begin) {
    worker->num_missing = 0;
  }

  // Goes on as far as whole groups of the first `available` keys allow.
  void UpTo(int64_t available) {
    while ((num_asked_ + 1) * kGroup <= available) {
      Ask(kGroup);
      if (num_asked_ > kRowsBehind) AskRows(num_asked_ - kRowsBehind - 1, kGroup);
      if (num_asked_ > kCheckBehind) Check(num_asked_ - kCheckBehind - 1, kGroup);
    }
  }

  // Looks up all that is left of `total` keys.
  void Finish(int64_t total) {
    UpTo(total);
    const auto rest = static_cast<int>(total - num_asked_ * kGroup);
    if (rest > 0) Ask(rest);
    const auto length = [&](int64_t group) {
      return static_cast<int>(total - group * kGroup < kGroup ? total - group * kGroup : kGroup);
    };
    const int64_t first_left = num_checked_ / kGroup;
    const int64_t asked_rows = num_asked_rows_;
    for (int64_t group = asked_rows; group < num_asked_; ++group) AskRows(group, length(group));
    for (int64_t group = first_left; group < num_asked_; ++group) Check(group, length(group));
  }

  int64_t num_checked() const { return num_checked_; }

 private:
  static constexpr int64_t kRowsBehind = 2;
  static constexpr int64_t kCheckBehind = 5;
  static constexpr int64_t kRing = 8;

  void Ask(int count) {
    AskForBuckets(cache_.table, worker_->keys + begin_ + num_asked_ * kGroup, count,
                  &stages_[num_asked_ % kRing]);
    ++num_asked_;
  }
  void AskRows(int64_t group, int count) {
    AskForRows<kDim, kTaking, Weight>(cache_, count, &stages_[group % kRing]);
    num_asked_rows_ = group + 1;
  }
  void Check(int64_t group, int count) {
    CheckKeys<kDim, kStream, kTaking, Weight, Collected>(cache_, worker_, begin_ + group * kGroup,
                                                         count, stages_[group % kRing], out_);
    num_checked_ += count;
  }

  const CacheView& cache_;
  WorkerBatch* const worker_;
  const OutputRows out_;
  const int64_t begin_;
  int64_t num_asked_ = 0;  // groups
  int64_t num_asked_rows_ = 0;
  int64_t num_checked_ = 0;  // keys
  LookupStage stages_[kRing];
};

}  // namespace HPS_BUILD
}  // namespace hps
