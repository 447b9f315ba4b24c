// LevelTwo: which sectors of 32 bytes a second-level cache of a given size would read from a
// device's memory, and write back to it; Arrays: whose sectors they are.
//
// Above it: accesses.h. Below it: nothing. The sector that was used longest ago gives way. A sector
// that is written is not read before: its bytes are marked one by one until they are all there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

namespace grid {

enum Kind : int { kRead = 0, kWrite = 1, kAtomic = 2 };

class LevelTwo {
 public:
  // Empty, with room for so many sectors.
  void Reset(size_t num_sectors) {
    room_ = num_sectors;
    uses_.clear();
    held_.clear();
  }

  // Adds to counts[0] sectors read from memory, to counts[1] those written; returns their sum.
  int64_t Touch(uint64_t sector, Kind kind, int64_t* counts) {
    if (room_ == 0) return 0;
    int64_t moved = 0;
    const auto found = held_.find(sector);
    if (found != held_.end()) {
      uses_.splice(uses_.begin(), uses_, found->second);
    } else {
      if (held_.size() == room_) moved += Drop(counts);
      uses_.push_front({sector, false});
      held_.emplace(sector, uses_.begin());
      if (kind != kWrite) ++counts[0], ++moved;
    }
    if (kind != kRead) uses_.front().is_dirty = true;
    return moved;
  }

  // Writes everything back; counts as Touch.
  void Flush(int64_t* counts) {
    while (!uses_.empty()) Drop(counts);
  }

 private:
  struct Held {
    uint64_t sector;
    bool is_dirty;
  };

  int64_t Drop(int64_t* counts) {
    const Held last = uses_.back();
    uses_.pop_back();
    held_.erase(last.sector);
    counts[1] += last.is_dirty;
    return last.is_dirty;
  }

  size_t room_ = 0;
  std::list<Held> uses_;  // the last used first
  std::unordered_map<uint64_t, std::list<Held>::iterator> held_;
};

// What was counted of an array. What is written back late counts for whom it made room.
struct OfArray {
  uint64_t first;  // address
  int64_t sectors, memory;
};

class Arrays {
 public:
  // By address; memory before the first is nobody's, and counts for it.
  Arrays(const uint64_t* firsts, int64_t count) {
    for (int64_t i = 0; i < count; ++i) all_.push_back({firsts[i], 0, 0});
    if (all_.empty()) all_.push_back({0, 0, 0});
  }
  OfArray* of(uint64_t sector) {
    const auto after =
        std::upper_bound(all_.begin(), all_.end(), sector * 32 + 31,
                         [](uint64_t address, const OfArray& one) { return address < one.first; });
    return &*(after == all_.begin() ? after : after - 1);
  }
  const std::vector<OfArray>& all() const { return all_; }

 private:
  std::vector<OfArray> all_;
};

}  // namespace grid
