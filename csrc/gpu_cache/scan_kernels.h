// Rows by key and by slot, outside of batches: contains, erase, scan, mark_clean.
//
// Above it: kernels.h. Below it: csrc/table/probe.h. A scan of dirty rows marks what it copies as
// being on its way down; an update takes that mark back, and mark_clean cleans only what bears it,
// so a row that changed while it was exported stays dirty.
#pragma once

#include "gpu_cache/find.h"
#include "table/row_pieces.h"

namespace hps {

struct KeysArgs {
  CacheArgs cache;
  const uint64_t* keys;    // [count]
  uint8_t* presence;       // [count] 0 absent, 1 stored, 2 fresh, 3 stored and dirty, 4 pending
  int64_t* slots;          // [count] scratch of erase
  uint32_t* first_pinned;  // number of the first key that an erase finds pinned; all ones before
};

struct ScanArgs {
  CacheArgs cache;
  int64_t first;       // slot
  int64_t count;       // slots looked at, one at least
  int64_t most;        // rows that `rows` has room for
  int32_t dirty_only;  // and marks them as being exported
  int32_t* ranks;      // [count] flag, then rank, of slots to be copied
  uint8_t* rows;       // [most, row_bytes]
  int64_t* result;     // [2] rows copied, slot to go on from
};

struct DropDeadArgs {
  CacheArgs cache;
  uint32_t period;
};

inline namespace HPS_BUILD {

HPS_HD uint8_t PresenceOf(const TableView& table, int64_t slot) {
  if (slot == kNoSlot) return 0;
  const uint8_t flags = table.marks[slot].flags;
  if (flags & kPending) return 4;
  if (flags & kFresh) return 2;
  return flags & kDirty ? 3 : 1;
}

// i: a key.
template <class Group>
HPS_HD void ContainsOne(Group group, const KeysArgs& args, int64_t i) {
  const int64_t slot = FindKey(group, args.cache, args.keys[i]);
  group.elect([&] { args.presence[i] = PresenceOf(args.cache.table, slot); });
}

// i: a key.
template <class Group>
HPS_HD void FindErasedOne(Group group, const KeysArgs& args, int64_t i) {
  const int64_t slot = FindKey(group, args.cache, args.keys[i]);
  group.elect([&] {
    args.slots[i] = slot;
    args.presence[i] = PresenceOf(args.cache.table, slot);
    if (slot == kNoSlot || args.cache.table.pins[slot] == 0) return;
    AtomicMin(args.first_pinned, static_cast<uint32_t>(i));
  });
}

// i: a key. Drops it, if none was found pinned. A key given twice is dropped by the one that
// empties the digest.
template <class Group>
HPS_HD void EraseOne(Group, const KeysArgs& args, int64_t i) {
  const TableView& table = args.cache.table;
  const int64_t slot = args.slots[i];
  if (*args.first_pinned != kNoPosition || slot == kNoSlot) return;
  if (AtomicChange(table.digests + slot, [](uint8_t) { return uint8_t{0}; }) == 0) return;
  const int64_t first = PlaceOfKey(args.cache, args.keys[i]).first;
  if (slot / kBucketSlots != first) SharedCounts{}.decrease(table.spilled + first);
  const uint8_t flags = table.marks[slot].flags;
  Count(args.cache, flags & kFresh ? kCountFresh : kCountRows, i, -1);
  if (flags & kDirty) Count(args.cache, kCountDirty, i, -1);
  table.marks[slot] = {};
}

// i: a slot. Nothing is pinned, and no dead row is dirty.
template <class Group>
HPS_HD void DropDeadOne(Group, const DropDeadArgs& args, int64_t i) {
  const TableView& table = args.cache.table;
  if (table.digests[i] == 0 || (table.marks[i].flags & kFresh)) return;
  if (!IsDead(RowAt(table, i), args.period)) return;
  const int64_t first = PlaceOfKey(args.cache, KeyAt(table, i)).first;
  if (i / kBucketSlots != first) SharedCounts{}.decrease(table.spilled + first);
  Count(args.cache, kCountRows, i, -1);
  table.digests[i] = 0;
  table.marks[i] = {};
}

// i: a slot of those looked at. Then ranks are summed up.
template <class Group>
HPS_HD void FlagScannedOne(Group, const ScanArgs& args, int64_t i) {
  const TableView& table = args.cache.table;
  const int64_t slot = args.first + i;
  const uint8_t flags = table.marks[slot].flags;
  const uint8_t kept_out = kFresh | kPending;
  const bool is_stored = table.digests[slot] != 0 && !(flags & kept_out);
  args.ranks[i] = is_stored && (!args.dirty_only || flags & kDirty);
}

// i: a slot of those looked at. Copies the first `most` rows of those flagged.
template <class Group>
HPS_HD void CopyScannedOne(Group group, const ScanArgs& args, int64_t i) {
  const TableView& table = args.cache.table;
  const int64_t slot = args.first + i;
  const int64_t rank = args.ranks[i];
  const bool is_flagged = rank != (i == 0 ? 0 : args.ranks[i - 1]);
  if (i == args.count - 1 && rank <= args.most) {
    group.elect([&] {
      args.result[0] = rank;
      args.result[1] = slot + 1;
    });
  }
  if (!is_flagged) return;
  if (rank == args.most + 1) {
    group.elect([&] {
      args.result[0] = args.most;
      args.result[1] = slot;
    });
  }
  if (rank > args.most) return;
  const int64_t row_bytes = table.shape.row_bytes;
  CopyRow(group, args.rows + (rank - 1) * row_bytes, RowAt(table, slot), row_bytes);
  if (args.dirty_only) group.elect([&] { table.marks[slot].flags |= kExporting; });
}

// i: a slot of those looked at. Its row is safely below, unless it changed since it was copied.
template <class Group>
HPS_HD void MarkCleanOne(Group, const ScanArgs& args, int64_t i) {
  uint8_t& flags = args.cache.table.marks[args.first + i].flags;
  if (!(flags & kExporting)) return;
  flags = static_cast<uint8_t>(flags & ~(kDirty | kExporting));
  Count(args.cache, kCountDirty, i, -1);
}

}  // namespace HPS_BUILD
}  // namespace hps
