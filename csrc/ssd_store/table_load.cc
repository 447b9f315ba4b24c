// TableStore's other half: rebuilding a table from the footers of a cut.
//
// Above it: table_store.h. Below it: segment, key_index. Only footers are read, never rows.
#include <mutex>

#include "ssd_store/table_store.h"

namespace hps {

Status TableStore::Load(const TableCut* cut, std::vector<std::weak_ptr<Segment>>* retired) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  writer_.reset();
  ++num_loads_;
  busy_.clear();
  set_aside_.clear();
  index_.Clear();
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment != nullptr) retired->push_back(segment);
  }
  segments_.clear();
  chunks_.clear();
  free_chunks_.clear();
  if (cut == nullptr) return Status::Ok();
  if (!index_.Reserve(cut->num_rows)) return OutOfMemory();
  for (const SegmentInfo& info : cut->segments) HPS_RETURN_IF_ERROR(LoadSegment(info));
  if (index_.size() != cut->num_rows) {
    return Status(StatusCode::kCorruption, context_->folder + ": table '" + schema_.name +
                                               "' has " + std::to_string(index_.size()) +
                                               " rows in its segments, its manifest says " +
                                               std::to_string(cut->num_rows));
  }
  return Status::Ok();
}

Status TableStore::LoadSegment(const SegmentInfo& info) {
  auto segment = std::make_shared<Segment>();
  segment->path = context_->folder + "/" + FileName(kSegmentPrefix, info.number);
  segment->row_bytes = schema_.row_bytes;
  segment->info = info;
  segment->is_sealed = true;
  std::shared_ptr<File> file;
  HPS_RETURN_IF_ERROR(context_->cache->Open(info.number, segment->path, &file));
  HPS_RETURN_IF_ERROR(CheckSegmentHeader(file.get(), *segment, schema_, context_->store_id));
  const uint32_t ordinal = AddSegment(segment);
  bool has_memory = true;
  FooterVisitor visitor;
  visitor.keys = [&](uint64_t first, const uint64_t* keys, uint64_t count) {
    has_memory =
        has_memory && PutKeys(ordinal, first, reinterpret_cast<const char*>(keys), 8, count);
  };
  visitor.tombstones = [&](const Tombstone* tombstones, uint64_t count) {
    if (has_memory) ApplyTombstones(ordinal, tombstones, count);
  };
  HPS_RETURN_IF_ERROR(ReadFooter(file.get(), *segment, visitor));
  if (!has_memory) return OutOfMemory();
  return Status::Ok();
}

// All records of the segment stand in the index already; a tombstone takes what is older than
// itself.
void TableStore::ApplyTombstones(uint32_t ordinal, const Tombstone* tombstones, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t hash = MixKey(tombstones[i].key);
    const uint64_t location = index_.Find(hash);
    if (location == KeyIndex::kNone) continue;
    const WantedRecord place = Decode(location);
    if (place.segment == ordinal && place.record >= tombstones[i].position) continue;
    index_.Erase(hash);
    --segments_[place.segment]->live;
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
