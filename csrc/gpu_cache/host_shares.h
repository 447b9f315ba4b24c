// HostShares: which host thread works on which occurrences of a batch: all of a key's are one
// thread's, in order.
//
// Above it: host_launcher.h, gpu_plan.h. Below it: cache_args.h. A thread owns a stretch of the id
// table's entries, so that no line of it goes back and forth between threads. The batch is gone
// through in as many pieces as there are owners; each piece has a list for each owner.
#pragma once

#include <algorithm>

#include "common/array.h"
#include "gpu_cache/cache_args.h"

namespace hps {

class HostShares {
 public:
  struct List {
    const uint32_t* positions;
    int64_t length;
  };

  // Makes room for a batch of `count` keys, of which `num_owners` threads have a share each.
  void Reserve(int64_t count, int num_owners, uint64_t id_mask) {
    count_ = count;
    num_owners_ = num_owners;
    id_mask_ = id_mask;
    most_a_list_ = count / num_owners + 1;
    positions_.Reserve(most_a_list_ * num_owners * num_owners);
    lengths_stride_ = (num_owners + 7) / 8 * 8;
    lengths_.Reserve(num_owners * lengths_stride_);
  }

  // Copies the keys of one piece and lists its occurrences; leaves in `places` where each is looked
  // for first, for what the host asks for ahead.
  void CopyPiece(const uint64_t* keys, int piece, uint64_t* own_keys, uint32_t* places) {
    const int64_t begin = count_ * piece / num_owners_;
    const int64_t end = count_ * (piece + 1) / num_owners_;
    const auto owners = static_cast<uint64_t>(num_owners_);
    const int bits = __builtin_popcountll(id_mask_);
    uint32_t* const lists = positions_.data() + piece * num_owners_ * most_a_list_;
    int64_t* const lengths = lengths_.data() + piece * lengths_stride_;
    std::fill_n(lengths, num_owners_, 0);
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t entry = EntryOfKey(keys[i], id_mask_);
      const auto owner = static_cast<int64_t>(entry * owners >> bits);
      own_keys[i] = keys[i];
      places[i] = static_cast<uint32_t>(entry);
      lists[owner * most_a_list_ + lengths[owner]++] = static_cast<uint32_t>(i);
    }
  }

  // The occurrences of a piece that are the owner's, in order.
  List list(int piece, int owner) const {
    return {positions_.data() + (piece * num_owners_ + owner) * most_a_list_,
            lengths_[piece * lengths_stride_ + owner]};
  }

  int num_owners() const { return num_owners_; }

 private:
  int64_t count_ = 0;
  int num_owners_ = 1;
  uint64_t id_mask_ = 0;
  int64_t most_a_list_ = 0;
  int64_t lengths_stride_ = 0;  // whole lines: each piece's are another thread's
  Array<uint32_t> positions_;
  Array<int64_t> lengths_;
};

}  // namespace hps
