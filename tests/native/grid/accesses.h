// Accesses: what one lane reads and writes, instruction by instruction; CountWarps: how many
// sectors of 32 bytes the instructions of whole warps touch.
//
// Above it: grid.cc, hooks.cc. Below it: level_two.h. An instruction is known by its place in the
// code and how often the lane has come by it within an item. What the compiler has split into
// neighbouring parts of 16 aligned bytes is taken as one access, as a device's compiler has it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "level_two.h"

namespace grid {

// Of counts[]: sectors by kind, instructions by kind (a warp's), sectors that differ within a
// warp's turn (those items that its groups work on together) by kind, instructions that some lanes
// with an item miss, sectors that a second-level cache reads from memory and writes to it.
inline constexpr int kSectors = 0, kInstructions = 3, kDistinct = 6, kDivergent = 9;
inline constexpr int kMemory = 10;
inline constexpr int kNumCounts = 12;

struct Access {
  int32_t item;
  Kind kind;
  uint64_t place;
  int32_t number;  // of this place within the item
  uint64_t first, end;

  auto key() const { return std::tie(item, kind, place, number); }
};

class Accesses {
 public:
  // None yet; no more than `most` are kept.
  void Clear(size_t most) {
    most_ = most;
    all_.clear();
    seen_.clear();
    item_ = -1;
    fresh_ = 0;
  }
  void BeginItem() {
    ++item_;
    seen_.clear();
    NoteMeeting();
  }
  void NoteMeeting() { fresh_ = all_.size(); }
  int32_t num_items() const { return item_ + 1; }
  const std::vector<Access>& all() const { return all_; }

  void Add(Kind kind, uint64_t address, int64_t size, uint64_t place) {
    const uint64_t end = address + static_cast<uint64_t>(size);
    const size_t from = std::max(fresh_, all_.size() > 8 ? all_.size() - 8 : 0);
    for (size_t i = all_.size(); kind != kAtomic && i > from; --i) {
      Access& other = all_[i - 1];
      if (other.kind != kind || other.first / 16 != address / 16) continue;
      if (address < other.end && other.first < end) break;  // the same bytes again
      other.first = std::min(other.first, address);
      other.end = std::max(other.end, end);
      return;
    }
    if (all_.size() >= most_) return;
    all_.push_back({item_, kind, place, NumberOf(place), address, end});
  }

 private:
  int32_t NumberOf(uint64_t place) {
    for (auto& [other, number] : seen_) {
      if (other == place) return ++number;
    }
    seen_.emplace_back(place, 0);
    return 0;
  }

  std::vector<Access> all_;
  std::vector<std::pair<uint64_t, int32_t>> seen_;
  int32_t item_ = -1;
  size_t fresh_ = 0, most_ = 0;
};

// Sectors of accesses [begin, end), sorted, each once.
template <class It>
inline std::vector<uint64_t> SectorsOf(It begin, It end) {
  std::vector<uint64_t> sectors;
  for (; begin != end; ++begin) {
    for (uint64_t at = begin->first / 32; at <= (begin->end - 1) / 32; ++at) sectors.push_back(at);
  }
  std::sort(sectors.begin(), sectors.end());
  sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
  return sectors;
}

// The same in the order of the accesses, which does not depend on where memory lies.
template <class It>
inline std::vector<uint64_t> SectorsInOrder(It begin, It end) {
  std::unordered_set<uint64_t> seen;
  std::vector<uint64_t> sectors;
  for (; begin != end; ++begin) {
    for (uint64_t at = begin->first / 32; at <= (begin->end - 1) / 32; ++at) {
      if (seen.insert(at).second) sectors.push_back(at);
    }
  }
  return sectors;
}

// What a warp's instructions did to each sector at one turn.
struct Turn {
  int32_t item;
  Kind kind;
  std::vector<uint64_t> sectors;
};

// Adds to counts[kNumCounts] and, by array, to the arrays' own; `lanes` are those of whole warps.
// The second-level cache sees the warps turn by turn.
inline void CountWarps(const std::vector<const Accesses*>& lanes, size_t warp_lanes,
                       LevelTwo* level_two, Arrays* arrays, int64_t* counts) {
  std::vector<Turn> turns;
  for (size_t first = 0; first < lanes.size(); first += warp_lanes) {
    std::vector<Access> all;
    std::vector<int64_t> with_item;
    for (size_t i = first; i < first + warp_lanes; ++i) {
      const auto& own = lanes[i]->all();
      all.insert(all.end(), own.begin(), own.end());
      const auto num_items = static_cast<size_t>(lanes[i]->num_items());
      if (num_items > with_item.size()) with_item.resize(num_items);
      for (size_t item = 0; item < num_items; ++item) ++with_item[item];
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Access& a, const Access& b) { return a.key() < b.key(); });
    for (auto at = all.begin(); at != all.end();) {
      const auto end =
          std::find_if(at, all.end(), [&](const Access& a) { return a.key() != at->key(); });
      const std::vector<uint64_t> sectors = SectorsOf(at, end);
      counts[kSectors + at->kind] += static_cast<int64_t>(sectors.size());
      for (const uint64_t sector : sectors) ++arrays->of(sector)->sectors;
      ++counts[kInstructions + at->kind];
      counts[kDivergent] += at->item >= 0 && end - at < with_item[static_cast<size_t>(at->item)];
      at = end;
    }
    for (auto at = all.begin(); at != all.end();) {
      const auto end = std::find_if(at, all.end(), [&](const Access& a) {
        return std::tie(a.item, a.kind) != std::tie(at->item, at->kind);
      });
      turns.push_back({at->item, at->kind, SectorsInOrder(at, end)});
      counts[kDistinct + at->kind] += static_cast<int64_t>(turns.back().sectors.size());
      at = end;
    }
  }
  std::stable_sort(turns.begin(), turns.end(),
                   [](const Turn& a, const Turn& b) { return a.item < b.item; });
  for (const Turn& turn : turns) {
    for (const uint64_t sector : turn.sectors) {
      const int64_t moved = level_two->Touch(sector, turn.kind, counts + kMemory);
      arrays->of(sector)->memory += moved;
    }
  }
}

void NoteAccess(Kind kind, const void* address, int64_t size, const void* place);

}  // namespace grid
