// TableStore's other half: rebuilding a table from the footers of a checkpoint.
//
// Above it: table_store.h. Below it: index_build, segment, key_index. Only footers are read, never
// rows.
#include <cerrno>
#include <map>
#include <mutex>
#include <set>

#include "ssd_store/index_build.h"
#include "ssd_store/table_store.h"

namespace hps {

void TableStore::Reset(std::vector<std::weak_ptr<Segment>>* retired) {
  writer_.reset();
  ++num_loads_;
  has_early_ = false;
  period_ = 0;  // nothing is buried before the caller says in which one the checkpoint is
  busy_.clear();
  set_aside_.clear();
  index_ = std::make_shared<KeyIndex>();  // another reader may have the old one, too
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment != nullptr) retired->push_back(segment);
  }
  identity_ = std::make_shared<char>();
  followed_.reset();
  superseded_.clear();
  segments_.clear();
  chunks_.clear();
  free_chunks_.clear();
}

Status TableStore::Load(const TableCheckpoint* checkpoint, ThreadPool* pool,
                        std::vector<std::weak_ptr<Segment>>* retired) {
  context_->lock->AssertHeld();
  Reset(retired);
  if (checkpoint == nullptr) return Status::Ok();
  for (const SegmentInfo& info : checkpoint->segments) {
    segments_.push_back(SealedSegment(info));
    const auto ordinal = static_cast<uint32_t>(segments_.size() - 1);
    if (!AddChunks(ordinal, info.num_records)) return OutOfPlaces();
  }
  IndexSources sources{context_, &schema_, segments_, &chunks_, checkpoint->num_rows};
  const Status built = BuildIndex(sources, pool, index_.get());
  if (built.os_error() == ENOMEM) return OutOfMemory();
  HPS_RETURN_IF_ERROR(built);
  if (index_->size() != checkpoint->num_rows) {
    return Status(StatusCode::kCorruption, context_->folder + ": table '" + schema_.name +
                                               "' has " + std::to_string(index_->size()) +
                                               " rows in its segments, its manifest says " +
                                               std::to_string(checkpoint->num_rows));
  }
  return LoadDeaths(pool);
}

Status TableStore::LoadSnapshot(const TableCheckpoint& checkpoint, const IndexSnapshot& snapshot,
                                ThreadPool* pool, std::vector<std::weak_ptr<Segment>>* retired) {
  context_->lock->AssertHeld();
  Reset(retired);
  const TableImage* image = snapshot.Find(schema_.id);
  if (image == nullptr || image->num_rows != checkpoint.num_rows ||
      !AdoptParts(checkpoint, *image)) {
    return Status(StatusCode::kCorruption, "the snapshot has another table '" + schema_.name + "'");
  }
  HPS_RETURN_IF_ERROR(CheckSegments(pool));
  HPS_RETURN_IF_ERROR(snapshot.LoadIndex(*image, pool, index_.get()));
  return LoadDeaths(pool);
}

// Segments and chunks as the snapshot has them; false if they are not those of the checkpoint.
bool TableStore::AdoptParts(const TableCheckpoint& checkpoint, const TableImage& image) {
  std::map<uint64_t, const SegmentInfo*> infos;
  for (const SegmentInfo& info : checkpoint.segments) infos[info.number] = &info;
  for (const TableImage::Part& part : image.parts) {
    segments_.emplace_back();
    if (part.number == 0) continue;
    const auto found = infos.find(part.number);
    if (found == infos.end()) return false;
    segments_.back() = SealedSegment(*found->second);
    segments_.back()->live = part.live;
    const uint64_t num_chunks = (found->second->num_records + kChunkRecords - 1) >> kChunkBits;
    segments_.back()->chunks.assign(num_chunks, TableImage::kFreeChunk);
    infos.erase(found);
  }
  uint64_t num_wanted = 0;
  for (const auto& segment : segments_) num_wanted += segment ? segment->chunks.size() : 0;
  chunks_ = image.chunks;
  for (uint32_t number = 0; number < chunks_.size(); ++number) {
    const ChunkPlace place = chunks_[number];
    if (place.segment == TableImage::kFreeChunk) {
      chunks_[number] = ChunkPlace();
      free_chunks_.push_back(number);
      continue;
    }
    if (place.segment >= segments_.size() || segments_[place.segment] == nullptr) return false;
    std::vector<uint32_t>& chunks = segments_[place.segment]->chunks;
    if (place.idx >= chunks.size() || chunks[place.idx] != TableImage::kFreeChunk) return false;
    chunks[place.idx] = number;
    --num_wanted;
  }
  return infos.empty() && num_wanted == 0;
}

// What reading the footers would find on the way: headers and lengths.
Status TableStore::CheckSegments(ThreadPool* pool) const {
  std::vector<Status> found(segments_.size());
  DealOut(pool, segments_.size(), [&](size_t ordinal, int) {
    const Segment* segment = segments_[ordinal].get();
    if (segment == nullptr) return;
    std::shared_ptr<File> file;
    Status status = context_->cache->Open(segment->info.number, segment->path, &file);
    if (status.ok()) {
      status = CheckSegmentHeader(file.get(), *segment, schema_, context_->store_id);
    }
    found[ordinal] = status.ok() ? CheckLength(file.get(), *segment) : status;
  });
  for (const Status& status : found) HPS_RETURN_IF_ERROR(status);
  return Status::Ok();
}

TableImage TableStore::Image() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  TableImage image;
  image.table = schema_.id;
  image.num_rows = index_->size();
  for (const std::shared_ptr<Segment>& segment : segments_) {
    TableImage::Part part;
    if (segment != nullptr) part = {segment->info.number, segment->live};
    image.parts.push_back(part);
  }
  image.chunks = chunks_;
  for (const uint32_t number : free_chunks_) image.chunks[number].segment = TableImage::kFreeChunk;
  image.index = index_.get();
  return image;
}

// Segments are immutable and their contents decide the index, so the same segments are the same
// rows.
bool TableStore::IsAt(const TableCheckpoint* checkpoint) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (writer_ != nullptr) return false;
  std::set<uint64_t> numbers;
  for (const std::shared_ptr<Segment>& segment : segments_) {
    if (segment != nullptr) numbers.insert(segment->info.number);
  }
  if (checkpoint == nullptr) return numbers.empty();
  bool is_same =
      numbers.size() == checkpoint->segments.size() && index_->size() == checkpoint->num_rows;
  for (const SegmentInfo& info : checkpoint->segments) {
    is_same = is_same && numbers.count(info.number) > 0;
  }
  return is_same;
}

std::shared_ptr<Segment> TableStore::SealedSegment(const SegmentInfo& info) const {
  auto segment = std::make_shared<Segment>();
  segment->path = context_->folder + "/" + FileName(kSegmentPrefix, info.number);
  segment->row_bytes = schema_.row_bytes;
  segment->info = info;
  segment->is_sealed = true;
  return segment;
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
