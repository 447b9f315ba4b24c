// TableStore's other half: rebuilding a table from the footers of a cut, and forgetting dead
// segments.
//
// Above it: table_store.h. Below it: index_build, segment, key_index. Only footers are read, never
// rows.
#include <algorithm>
#include <cerrno>
#include <mutex>

#include "ssd_store/index_build.h"
#include "ssd_store/table_store.h"

namespace hps {

void TableStore::Reset(std::vector<std::weak_ptr<Segment>>* retired) {
  writer_.reset();
  index_.Clear();
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment != nullptr) retired->push_back(segment);
  }
  segments_.clear();
  chunks_.clear();
  free_chunks_.clear();
}

Status TableStore::Load(const TableCut* cut, ThreadPool* pool,
                        std::vector<std::weak_ptr<Segment>>* retired) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  Reset(retired);
  if (cut == nullptr) return Status::Ok();
  for (const SegmentInfo& info : cut->segments) {
    segments_.push_back(SealedSegment(info));
    const auto ordinal = static_cast<uint32_t>(segments_.size() - 1);
    if (!AddChunks(ordinal, info.num_records)) return OutOfMemory();
  }
  IndexSources sources{context_, &schema_, segments_, &chunks_, cut->num_rows};
  const Status built = BuildIndex(sources, pool, &index_);
  if (built.os_error() == ENOMEM) return OutOfMemory();
  HPS_RETURN_IF_ERROR(built);
  if (index_.size() != cut->num_rows) {
    return Status(StatusCode::kCorruption, context_->folder + ": table '" + schema_.name +
                                               "' has " + std::to_string(index_.size()) +
                                               " rows in its segments, its manifest says " +
                                               std::to_string(cut->num_rows));
  }
  return Status::Ok();
}

std::shared_ptr<Segment> TableStore::SealedSegment(const SegmentInfo& info) const {
  auto segment = std::make_shared<Segment>();
  segment->path = context_->folder + "/" + FileName(kSegmentPrefix, info.number);
  segment->row_bytes = schema_.row_bytes;
  segment->info = info;
  segment->is_sealed = true;
  return segment;
}

void TableStore::RemoveSegment(uint32_t ordinal, std::vector<std::weak_ptr<Segment>>* retired) {
  std::shared_ptr<Segment>& segment = segments_[ordinal];
  free_chunks_.insert(free_chunks_.end(), segment->chunks.begin(), segment->chunks.end());
  retired->push_back(segment);
  segment.reset();
}

void TableStore::DropDead(std::vector<std::weak_ptr<Segment>>* retired) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  std::vector<uint32_t> by_age;
  for (uint32_t ordinal = 0; ordinal < segments_.size(); ++ordinal) {
    if (segments_[ordinal] != nullptr) by_age.push_back(ordinal);
  }
  std::sort(by_age.begin(), by_age.end(), [&](uint32_t left, uint32_t right) {
    const SegmentInfo& first = segments_[left]->info;
    const SegmentInfo& second = segments_[right]->info;
    return first.sequence != second.sequence ? first.sequence < second.sequence
                                             : first.generation < second.generation;
  });
  bool is_oldest = true;  // no older segment is left, whose records a tombstone could still hide
  for (const uint32_t ordinal : by_age) {
    const Segment& segment = *segments_[ordinal];
    const bool is_dead =
        segment.is_sealed && segment.live == 0 && (is_oldest || segment.info.num_tombstones == 0);
    if (is_dead) RemoveSegment(ordinal, retired);
    is_oldest = is_oldest && is_dead;
  }
}

std::vector<std::shared_ptr<const Segment>> TableStore::Segments() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  std::vector<std::shared_ptr<const Segment>> result;
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment != nullptr) result.push_back(segment);
  }
  return result;
}

}  // namespace hps
