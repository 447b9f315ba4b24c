// Keys, rows and gradients on their way between the ranks of a training, on a device: keys by
// owner, sums that may travel or not, floats in the formats of the wire and back.
//
// Above it: kernels.h. Below it: sums.h, csrc/common. A batch's keys are deduplicated as in any
// plan; its distinct keys then have places: owner after owner, of each in order of first
// occurrence. Rows come in the order of places, so that slots of the plan are places, and the same
// Pool and Gather read what came as read a table; gradients are summed by id as in a table, and
// leave in the order of places. What travels between two ranks is a run of rows of each table. Of a
// run, int8 has the scales of all rows, then their codes (hps/common/wire.py).
#pragma once

#include "common/half.h"
#include "common/xxh64_words.h"
#include "gpu_cache/sums.h"

namespace hps {

// Of one table. Owners of all tables lie behind each other, and are numbered in one space, so that
// one sort serves all: a table has num_ranks, and one more for what is no key.
struct DivideArgs {
  BatchArgs batch;
  uint32_t* owners;          // [L] of each id, from first_owner on
  const uint32_t* sorted;    // [L] the same, ascending
  const int64_t* positions;  // [L] where they came from, of all tables
  int64_t first_position;    // of the table: L of those before it
  uint32_t first_owner;
  uint32_t num_ranks;
  uint32_t num_virtual;  // shards
  uint32_t* ids;         // [N] of places
  uint64_t* told_keys;   // [L] by place, memory of the host
  int64_t* told_starts;  // [num_ranks + 1] where each owner's places start; N
};

// What of gradients was rounded away, by the key's hash: see hps/cluster/exchange/residuals.py.
struct KeptRests {
  uint64_t* keys;      // [num_slots]
  uint32_t* is_used;   // [num_slots]
  uint32_t* last;      // [num_slots] the last place that comes to a slot, plus 1; else 0
  float* rows;         // [num_slots, dim]
  uint32_t num_slots;  // 0: none is kept
};

// What is to be known of a table's sums before one of them travels.
struct Verdict {
  uint32_t refused;  // ~place of the first sum that must not travel; 0: none
  uint32_t largest;  // magnitude as bits, where it is above `ordinary`
};

struct JudgeArgs {
  BatchArgs batch;
  const uint32_t* ids;  // [N] of places
  TermArgs terms;       // of the sums
  float* sums;          // [N, dim] by id
  KeptRests kept;
  Verdict* verdict;
  int32_t dim;
  float divisor;
  uint32_t ordinary;  // magnitudes that are of no interest
  uint32_t limit;     // the largest that may travel
};

enum class WireFormat : int32_t { kFloat32, kFloat16, kBfloat16, kInt8 };

// A run of rows of one table for one rank: those of places [first, first + count).
struct SendArgs {
  CacheArgs cache;
  BatchArgs batch;
  const float* values;  // [., dim] by id, or by place where ids are null; null: the rows of the
                        // table, at the slots of occurrences
  const uint32_t* ids;  // of places
  KeptRests kept;
  uint8_t* message;  // of the run
  int64_t first;
  int64_t count;
  int32_t dim;
  WireFormat wire;
};

// A run that came.
struct ReceiveArgs {
  const uint8_t* message;
  float* rows;  // [count, dim]
  int64_t count;
  int32_t dim;
  WireFormat wire;
};

inline constexpr float kLargestCode = 127.0f;

inline namespace HPS_BUILD {

// i: an id, or above them, below L. Then owners are sorted.
template <class Group>
HPS_HD void NameOwnerOne(Group, const DivideArgs& args, int64_t i) {
  uint64_t owner = args.num_ranks;
  if (i < args.batch.numbers->num_unique) {
    owner =
        ShardOfKey(args.batch.unique_keys[i], args.num_virtual) * args.num_ranks / args.num_virtual;
  }
  args.owners[i] = args.first_owner + static_cast<uint32_t>(owner);
}

// The first of a table's sorted owners that is no smaller.
HPS_HD int64_t StartOfOwner(const DivideArgs& args, uint32_t owner) {
  int64_t low = 0, high = args.batch.num_occurrences;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (args.sorted[middle] < owner) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// i: a place, or above them, or an owner. The whole batch is the plan's window from now on.
template <class Group>
HPS_HD void GroupKeyOne(Group, const DivideArgs& args, int64_t i) {
  const BatchArgs& batch = args.batch;
  const int64_t num_unique = batch.numbers->num_unique;
  if (i == 0) {
    batch.numbers->window_first = 0;
    batch.numbers->window_size = num_unique;
  }
  if (i <= args.num_ranks) {
    args.told_starts[i] = StartOfOwner(args, args.first_owner + static_cast<uint32_t>(i));
  }
  if (i >= num_unique) return;
  const int64_t id = args.positions[i] - args.first_position;
  args.ids[i] = static_cast<uint32_t>(id);
  batch.slots[id] = i;
  args.told_keys[i] = batch.unique_keys[id];
}

HPS_HD int64_t SlotOfRest(const KeptRests& kept, uint64_t key) {
  return static_cast<int64_t>(ShardOfKey(key, kept.num_slots));
}

// i: a place. Sums its gradients up, divides that, and adds what was kept of the key.
template <class Group>
HPS_HD void JudgeSumOne(Group group, const JudgeArgs& args, int64_t i) {
  const uint32_t id = args.ids[i];
  const int64_t dim = args.dim;
  const auto terms = SumOfKey(args.terms, dim, id);
  float* const sum = args.sums + id * dim;
  const float* rest = nullptr;
  if (args.kept.num_slots != 0) {
    const uint64_t key = args.batch.unique_keys[id];
    const int64_t slot = SlotOfRest(args.kept, key);
    const bool is_own = args.kept.is_used[slot] != 0 && args.kept.keys[slot] == key;
    if (is_own) rest = args.kept.rows + slot * dim;
  }
  uint32_t largest = 0;
  group.for_each(dim, [&](int64_t d) {
    float value = terms[d] / args.divisor;
    if (rest != nullptr) value = value + rest[d];
    sum[d] = value;
    const uint32_t bits = MagnitudeBits(value);
    largest = largest < bits ? bits : largest;
  });
  if (largest > args.ordinary) AtomicMax(&args.verdict->largest, largest);
  if (largest > args.limit) AtomicMax(&args.verdict->refused, ~static_cast<uint32_t>(i));
}

// i: in a run of gradients. Of keys that share a slot the last one is to have it.
template <class Group>
HPS_HD void MarkLastOne(Group, const SendArgs& args, int64_t i) {
  const int64_t place = args.first + i;
  const int64_t slot = SlotOfRest(args.kept, args.batch.unique_keys[args.ids[place]]);
  AtomicMax(args.kept.last + slot, static_cast<uint32_t>(place + 1));
}

// The whole number next to a magnitude far below 2^22, the even one of two that are as near.
HPS_HD float RoundedToWhole(float value) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: beyond it floats are whole numbers
  return (value + kShift) - kShift;
}

// A row as it travels, by `store(d, value)` of what the receiver will read.
template <class Group, class Store>
HPS_HD void SendAs(Group group, const SendArgs& args, int64_t i, const float* row, Store store) {
  const int64_t dim = args.dim;
  if (args.wire == WireFormat::kFloat32) {
    float* const out = reinterpret_cast<float*>(args.message) + i * dim;
    return group.for_each(dim, [=](int64_t d) { out[d] = row[d]; });
  }
  if (args.wire != WireFormat::kInt8) {
    auto* const out = reinterpret_cast<uint16_t*>(args.message) + i * dim;
    const bool is_float16 = args.wire == WireFormat::kFloat16;
    return group.for_each(dim, [=](int64_t d) {
      const uint16_t bits = is_float16 ? Halved(row[d]).bits : Narrowed(row[d]).bits;
      out[d] = bits;
      store(d, is_float16 ? Widened(Half{bits}) : Widened(Bfloat16{bits}));
    });
  }
  const uint32_t magnitude = ~group.smallest(static_cast<uint32_t>(dim),
                                             [=](uint32_t d) { return ~MagnitudeBits(row[d]); });
  const float scale = FloatOf(magnitude) / kLargestCode;
  const bool is_finite = magnitude < kInfinityBits;
  // Scales lie at any address.
  group.for_each(4, [=](int64_t byte) {
    args.message[4 * i + byte] = static_cast<uint8_t>(BitsOf(scale) >> (8 * byte));
  });
  auto* const codes = reinterpret_cast<int8_t*>(args.message + 4 * args.count + i * dim);
  const float divisor = scale > 0 ? scale : FloatOf(kInfinityBits);
  group.for_each(dim, [=](int64_t d) {
    // A row that is not finite reads as such at the other end, by its scale.
    float code = is_finite ? RoundedToWhole(row[d] / divisor) : 1.0f;
    code = code > kLargestCode ? kLargestCode : code < -kLargestCode ? -kLargestCode : code;
    codes[d] = static_cast<int8_t>(code);
    store(d, static_cast<float>(codes[d]) * scale);
  });
}

// i: in a run. Puts a row into the message; of a gradient whose slot it is to have, what is rounded
// away is kept.
template <class Group>
HPS_HD void SendRowOne(Group group, const SendArgs& args, int64_t i) {
  const int64_t place = args.first + i;
  if (args.values == nullptr) {
    const int64_t slot = args.batch.slots[args.batch.inverse[place]];
    return SendAs(group, args, i, WeightsOf(group, args.cache, slot), [](int64_t, float) {});
  }
  const int64_t id = args.ids == nullptr ? place : args.ids[place];
  const float* const row = args.values + id * args.dim;
  if (args.kept.num_slots == 0) return SendAs(group, args, i, row, [](int64_t, float) {});
  const uint64_t key = args.batch.unique_keys[id];
  const int64_t slot = SlotOfRest(args.kept, key);
  const bool is_last = args.kept.last[slot] == place + 1;
  float* const rest = args.kept.rows + slot * args.dim;
  SendAs(group, args, i, row, [=](int64_t d, float read) {
    if (is_last) rest[d] = row[d] - read;
  });
  group.sync();
  if (!is_last) return;
  group.elect([&] {
    args.kept.keys[slot] = key;
    args.kept.is_used[slot] = 1;
    args.kept.last[slot] = 0;
  });
}

// i: in a run.
template <class Group>
HPS_HD void ReceiveRowOne(Group group, const ReceiveArgs& args, int64_t i) {
  const int64_t dim = args.dim;
  float* const row = args.rows + i * dim;
  if (args.wire == WireFormat::kFloat32) {
    const float* const from = reinterpret_cast<const float*>(args.message) + i * dim;
    return CopyFloats(group, row, from, dim);
  }
  if (args.wire != WireFormat::kInt8) {
    const auto* const from = reinterpret_cast<const uint16_t*>(args.message) + i * dim;
    const bool is_float16 = args.wire == WireFormat::kFloat16;
    return group.for_each(dim, [=](int64_t d) {
      row[d] = is_float16 ? Widened(Half{from[d]}) : Widened(Bfloat16{from[d]});
    });
  }
  uint32_t bits = 0;
  for (int byte = 0; byte < 4; ++byte) {
    bits |= static_cast<uint32_t>(args.message[4 * i + byte]) << (8 * byte);
  }
  const float scale = FloatOf(bits);
  const auto* const codes =
      reinterpret_cast<const int8_t*>(args.message + 4 * args.count + i * dim);
  group.for_each(dim, [=](int64_t d) { row[d] = static_cast<float>(codes[d]) * scale; });
}

}  // namespace HPS_BUILD
}  // namespace hps
