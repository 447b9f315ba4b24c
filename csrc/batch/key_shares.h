// KeyShares: a batch's keys divided over the threads of the host, and the memory of each share.
//
// Above it: key_plan.h, BatchPlan of dram_cache, GpuPlan of gpu_cache's host build, the bindings of
// both caches (SetOccurrences). Below it:
// key_share.h, whose KeyShare it fills in. A thread owns some of the 64 sub-parts by the hash's top
// six bits, so all occurrences of a key are one thread's. Any assignment gives the same result.
// Memory is kept for the next batch. Not thread-safe but where told.
#pragma once

#include <cstring>
#include <deque>

#include "batch/key_share.h"
#include "common/array.h"

namespace hps {

// By the hash's top six bits; a table's parts are groups of them.
inline constexpr int kNumSubparts = 64;

class KeyShares {
 public:
  static constexpr int64_t kKeyPadding = 64;  // look-ups read whole groups of keys

  KeyShares() = default;
  KeyShares(const KeyShares&) = delete;
  KeyShares& operator=(const KeyShares&) = delete;

  // A batch of `count` keys comes, for as many threads as are worth it. Each of `num_parts` (a
  // power of two up to 64), the sub-parts [p * 64 / num_parts, (p + 1) * 64 / num_parts), will go
  // to one thread whole.
  void Begin(int64_t count, int64_t num_parts, int num_threads);
  // Decides who owns which parts of keys[count].
  void ChooseOwners(const uint64_t* keys);
  // Copies the owner's piece of the keys; all owners at once.
  void CopyKeys(int owner, const uint64_t* keys);
  // Makes room for the owner's share of the keys, which nobody has numbered yet; all at once.
  void Prepare(int owner, KeyShare* share);

  // Has the prepared share numbered by deduplicate(), which returns false if it needs a larger id
  // table; all owners at once.
  template <class Deduplicate>
  void Number(int owner, KeyShare* share, Deduplicate deduplicate) {
    do {
      GrowIdTable(owner, share);
    } while (!deduplicate());
    memories_[owner].last_unique = share->num_unique;
    share->num_ids = share->num_unique;
    std::memset(share->keys + share->num_unique, 0, kKeyPadding * sizeof(uint64_t));
  }

  // The batch that has begun, of as many owners, has the keys of another one: takes over who owns
  // which of its parts.
  void TakeOwners(const KeyShares& other);
  // Has the prepared share numbered as the owner's share of that one; all owners at once.
  void CopyNumbers(int owner, const KeyShare& from, KeyShare* share);
  // What the shares came to: `num_unique` distinct keys, and no share with more than `most`
  // occurrences.
  void NoteNumbered(int64_t num_unique, int64_t most);
  // Makes room to number the share's keys together with those of the others.
  void PrepareJoin(int owner, KeyShare* share);
  // Makes room for what sums of `dim` floats need besides the sums.
  void PrepareSums(int owner, int32_t dim, KeyShare* share);
  // Counts the occurrences of each of the share's keys that have label 1, labels[L] being 0 or 1;
  // null: there are no labels. All owners at once.
  void CountClicks(int owner, const uint8_t* labels, KeyShare* share);

  // True unless keys[count] probably repeat: by the last batch that was numbered, and by a sample.
  bool SeemDistinct(const uint64_t* keys, int64_t count);
  // True if keys[count] are this batch's, byte for byte.
  bool Matches(const uint64_t* keys, int64_t count) const;
  void Empty() { num_occurrences_ = num_owners_ = 0; }

  int num_owners() const { return num_owners_; }
  int64_t num_occurrences() const { return num_occurrences_; }
  const uint64_t* keys() const { return keys_.data(); }

 private:
  struct Memory {
    Array<uint32_t> id_table, ids, scan_positions, joint_ids, counts, clicks, hot_ids, youngest,
        older;
    Array<uint64_t> keys;
    Array<float> aside;
    int64_t last_unique = 0;  // of the batch before: sizes the id table of the next
    uint64_t parts = 0;       // the owner's, where there are several
  };

  int64_t Sample(const uint64_t* keys, int64_t count);
  void SpreadParts(const uint64_t* keys);
  void GrowIdTable(int owner, KeyShare* share);

  std::deque<Memory> memories_;  // the first num_owners_ are in use, the others keep their memory
  int num_owners_ = 0;
  Array<uint64_t> keys_;
  Array<uint64_t> sample_;  // hashes of sampled keys
  Array<uint64_t> seen_;    // bits of them
  int64_t num_occurrences_ = 0;
  int64_t num_parts_ = 1;
  int num_spread_owners_ = 0;     // that the parts are spread over, or 0
  int64_t num_parts_spread_ = 0;  // parts that are spread
  bool is_balanced_ = false;      // of the last batch that was numbered: no owner had too much
  bool has_repeats_ = false;      // and its keys repeated
};

// What each occurrence of the share's keys stands for, in the place of one show and its label,
// after their sums: shows[L] and of these clicks[L], of all occurrences of the batch. Null: one
// show each, and the clicks that were counted. A share that counted no clicks takes none.
void SetOccurrences(const uint32_t* shows, const uint32_t* clicks, KeyShare* share);

}  // namespace hps
