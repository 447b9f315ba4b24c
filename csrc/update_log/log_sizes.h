// LogSizes: how many bytes of records follow a record, in bounded memory.
//
// Above it: update_log, log_scan. Below it: nothing. Exact for the newest thousands of records;
// when there are more, every second entry goes, and an answer counts up to one gap too much.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace hps {

class LogSizes {
 public:
  uint64_t bytes() const { return total_ - base_; }

  void Add(uint64_t number, uint64_t bytes) {
    total_ += bytes;
    entries_.push_back({number, total_});
    if (entries_.size() > kMostEntries) Thin();
  }
  // The newest record, of so many bytes, goes.
  void Remove(uint64_t number, uint64_t bytes) {
    total_ -= bytes;
    if (!entries_.empty() && entries_.back().number == number) entries_.pop_back();
  }
  // Records up to `number` count no more; `newest` is the newest record's.
  void Cut(uint64_t number, uint64_t newest) {
    while (!entries_.empty() && entries_.front().number <= number) {
      base_ = entries_.front().total;
      entries_.pop_front();
    }
    if (number >= newest) base_ = total_;
  }

 private:
  static constexpr size_t kMostEntries = 8192;
  struct Entry {
    uint64_t number = 0;
    uint64_t total = 0;  // with this record
  };

  void Thin() {
    std::deque<Entry> kept;
    for (size_t i = 1; i < entries_.size(); i += 2) kept.push_back(entries_[i]);
    entries_ = std::move(kept);
  }

  std::deque<Entry> entries_;
  uint64_t total_ = 0;
  uint64_t base_ = 0;
};

}  // namespace hps
