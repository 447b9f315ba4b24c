// Arena: one piece of a device's memory, of which parts are had and given back; ArenaPart: one of
// them, which is given back when nobody has it any more.
//
// Above it: arena.cc; hps/gpu_cache/arena.py, which says who asks for parts, and what happens where
// there is none. Below it: nanobind. All is under the GIL, so that no interrupt leaves a part
// that is neither free nor anybody's.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>

namespace nb = nanobind;

namespace hps {

// Which parts of a piece are free.
class FreeParts {
 public:
  static constexpr int64_t kAlignment = 256;  // of parts

  explicit FreeParts(int64_t num_bytes) : room_(num_bytes / kAlignment * kAlignment) {
    if (room_ > 0) free_[0] = room_;
    num_free_ = room_;
  }

  // Bytes of a part for so many.
  static int64_t RoomOf(int64_t num_bytes) {
    return std::max<int64_t>(1, (num_bytes + kAlignment - 1) / kAlignment) * kAlignment;
  }

  // Where a part of so many bytes begins, a multiple of kAlignment; nothing if none is so large.
  // The start of the smallest free one that is large enough, or the end of the last one.
  std::optional<int64_t> Take(int64_t room, bool from_end) {
    auto found = free_.end();
    for (auto one = free_.begin(); one != free_.end(); ++one) {
      if (one->second < room) continue;
      if (from_end || found == free_.end() || one->second < found->second) found = one;
    }
    if (found == free_.end()) return std::nullopt;
    const auto [start, size] = *found;
    const int64_t offset = from_end ? start + size - room : start;
    free_.erase(found);
    if (size > room) free_[from_end ? start : start + room] = size - room;
    num_free_ -= room;
    most_used_ = std::max(most_used_, room_ - num_free_);
    return offset;
  }

  // A part that was taken is free again, and one with what lies beside it.
  void GiveBack(int64_t offset, int64_t room) {
    num_free_ += room;
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + room) {
      room += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += room;
        return;
      }
    }
    free_[offset] = room;
  }

  int64_t num_used() const { return room_ - num_free_; }
  int64_t most_used() const { return most_used_; }
  int64_t largest() const {
    int64_t size = 0;
    for (const auto& one : free_) size = std::max(size, one.second);
    return size;
  }

 private:
  std::map<int64_t, int64_t> free_;  // bytes by offset; no two lie side by side
  int64_t room_, num_free_, most_used_ = 0;
};

class ArenaPart {
 public:
  ArenaPart(std::shared_ptr<FreeParts> parts, nb::object memory, int64_t address, int64_t offset,
            int64_t num_bytes)
      : parts_(std::move(parts)),
        memory_(std::move(memory)),
        address_(address),
        offset_(offset),
        num_bytes_(num_bytes) {}
  ~ArenaPart() { parts_->GiveBack(offset_, FreeParts::RoomOf(num_bytes_)); }
  ArenaPart(const ArenaPart&) = delete;
  ArenaPart& operator=(const ArenaPart&) = delete;

  int64_t address() const { return address_ + offset_; }
  int64_t num_bytes() const { return num_bytes_; }
  // uint8 [num_bytes], a view that does not keep the part.
  nb::object View() const {
    return memory_[nb::slice(nb::int_(offset_), nb::int_(offset_ + num_bytes_), nb::none())];
  }

 private:
  std::shared_ptr<FreeParts> parts_;
  nb::object memory_;  // of the arena, a tensor
  int64_t address_, offset_, num_bytes_;
};

class Arena {
 public:
  Arena(nb::object memory, int64_t address, int64_t num_bytes)
      : parts_(std::make_shared<FreeParts>(num_bytes)),
        memory_(std::move(memory)),
        address_(address),
        num_bytes_(num_bytes) {}

  // Null if no free part is so large.
  std::unique_ptr<ArenaPart> Take(int64_t num_bytes, bool from_end) {
    const std::optional<int64_t> offset = parts_->Take(FreeParts::RoomOf(num_bytes), from_end);
    if (!offset) return nullptr;
    return std::make_unique<ArenaPart>(parts_, memory_, address_, *offset, num_bytes);
  }

  int64_t address() const { return address_; }
  int64_t num_bytes() const { return num_bytes_; }
  const FreeParts& parts() const { return *parts_; }

 private:
  std::shared_ptr<FreeParts> parts_;
  nb::object memory_;
  int64_t address_, num_bytes_;
};

}  // namespace hps
