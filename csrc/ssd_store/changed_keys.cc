// Which segments are one checkpoint's alone, and what their footers name.
//
// Above it: changed_keys.h. Below it: segment, file_cache.
#include "ssd_store/changed_keys.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include "ssd_store/file_cache.h"
#include "ssd_store/segment.h"

namespace hps {
namespace {

using Segments = std::vector<std::shared_ptr<const Segment>>;
using IsWanted = std::function<bool(uint64_t record)>;

std::set<uint64_t> NumbersOf(const Segments& segments) {
  std::set<uint64_t> numbers;
  for (const auto& segment : segments) numbers.insert(segment->info.number);
  return numbers;
}

Status AddKeys(FileCache* cache, const Segment& segment, const IsWanted& is_wanted,
               bool has_tombstones, std::vector<uint64_t>* keys) {
  std::shared_ptr<File> file;
  HPS_RETURN_IF_ERROR(cache->Open(segment.info.number, segment.path, &file));
  FooterVisitor visitor;
  visitor.keys = [&](uint64_t first, const uint64_t* words, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      if (is_wanted(first + i)) keys->push_back(words[i]);
    }
  };
  if (has_tombstones) {
    visitor.tombstones = [&](const Tombstone* tombstones, uint64_t count) {
      for (uint64_t i = 0; i < count; ++i) keys->push_back(tombstones[i].key);
    };
  }
  return ReadFooter(file.get(), segment, visitor);
}

Status AddAll(FileCache* cache, const Segments& segments, const std::set<uint64_t>& others,
              std::vector<uint64_t>* keys) {
  for (const auto& segment : segments) {
    if (others.count(segment->info.number) > 0) continue;
    HPS_RETURN_IF_ERROR(AddKeys(cache, *segment, [](uint64_t) { return true; }, true, keys));
  }
  return Status::Ok();
}

}  // namespace

Status ChangedKeys(const TableStore& before, uint32_t before_period, const TableStore& after,
                   uint32_t after_period, FileCache* cache, std::vector<uint64_t>* keys) {
  keys->clear();
  const Segments old = before.Segments();
  const Segments now = after.Segments();
  const std::set<uint64_t> old_numbers = NumbersOf(old);
  const std::set<uint64_t> new_numbers = NumbersOf(now);
  HPS_RETURN_IF_ERROR(AddAll(cache, old, new_numbers, keys));
  HPS_RETURN_IF_ERROR(AddAll(cache, now, old_numbers, keys));
  for (const auto& segment : old) {
    if (new_numbers.count(segment->info.number) == 0) continue;
    const std::vector<uint32_t>& deaths = segment->deaths;
    const uint32_t first = std::min(before_period, after_period);
    const uint32_t last = std::max(before_period, after_period);
    const auto dies = [&](uint32_t death) { return first < death && death <= last; };
    if (std::none_of(deaths.begin(), deaths.end(), dies)) continue;
    HPS_RETURN_IF_ERROR(AddKeys(
        cache, *segment, [&](uint64_t record) { return dies(deaths[record]); }, false, keys));
  }
  std::sort(keys->begin(), keys->end());
  keys->erase(std::unique(keys->begin(), keys->end()), keys->end());
  return Status::Ok();
}

}  // namespace hps
