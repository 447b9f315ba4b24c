// RecordMarks: see record_marks.h.
//
// Above it: record_marks.h. Below it: common/hash.
#include "ssd_store/record_marks.h"

#include <algorithm>
#include <new>
#include <set>
#include <stdexcept>

#include "common/hash.h"

namespace hps {
namespace {

constexpr uint64_t kAhead = 16;  // records whose marks are asked for before they are looked at
constexpr uint64_t kAtOnce = 1024;

}  // namespace

uint64_t RecordMarks::Of(const void* row, uint64_t size) {
  const uint64_t hash = Xxh64(row, size, 0);
  return hash == 0 ? 1 : hash;
}

bool RecordMarks::Note(const RecordPlace* places, uint64_t count, const uint64_t* marks) {
  try {
    std::vector<uint64_t>* own = nullptr;
    uint64_t number = 0;
    for (uint64_t i = 0; i < count; ++i) {
      if (own == nullptr || places[i].segment != number) {
        number = places[i].segment;
        own = &segments_[number];
      }
      if (places[i].record >= own->size()) own->resize(places[i].record + 1);
      (*own)[places[i].record] = marks[i];
    }
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::length_error&) {
    return false;
  }
  return true;
}

void RecordMarks::Find(const RecordPlace* places, uint64_t count, uint64_t* marks) const {
  static constexpr uint64_t kNothing = 0;
  const uint64_t* where[kAtOnce];
  const std::vector<uint64_t>* own = nullptr;
  uint64_t number = 0;
  for (uint64_t first = 0; first < count; first += kAtOnce) {
    const uint64_t size = std::min(kAtOnce, count - first);
    for (uint64_t i = 0; i < size; ++i) {
      const RecordPlace& place = places[first + i];
      if (place.segment != number) {
        number = place.segment;
        const auto found = segments_.find(number);
        own = found == segments_.end() ? nullptr : &found->second;
      }
      const bool is_there = own != nullptr && place.record < own->size();
      where[i] = is_there ? own->data() + place.record : &kNothing;
    }
    for (uint64_t i = 0; i < size; ++i) {
      if (i + kAhead < size) __builtin_prefetch(where[i + kAhead]);
      marks[first + i] = *where[i];
    }
  }
}

void RecordMarks::Keep(const std::vector<uint64_t>& segments) {
  const std::set<uint64_t> kept(segments.begin(), segments.end());
  for (auto next = segments_.begin(); next != segments_.end();) {
    next = kept.count(next->first) > 0 ? std::next(next) : segments_.erase(next);
  }
}

uint64_t RecordMarks::memory_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [number, marks] : segments_) bytes += marks.capacity() * sizeof(uint64_t);
  return bytes;
}

}  // namespace hps
