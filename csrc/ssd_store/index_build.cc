// BuildIndex: see index_build.h.
//
// Above it: index_build.h. Below it: key_index, segment.
#include "ssd_store/index_build.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

namespace hps {
namespace {

constexpr uint64_t kAhead = 12;             // items between a prefetch and its use
constexpr size_t kMostPiecesOfBatch = 128;  // of small segments

// Keys or tombstones that lie one after another in one footer.
struct Piece {
  uint32_t segment = 0;
  bool is_tombstones = false;
  bool is_last = false;  // of its segment
  uint64_t first = 0;    // among the segment's entries: its records, then its tombstones
  uint64_t count = 0;
  uint64_t location = 0;  // of the first record, or of the segment's first
  // By shard: each key with its location, or the one below which its tombstone reaches.
  KeyItem* items = nullptr;
  KeyIndex::ShardStarts starts{};
  uint64_t num_bytes = 0;  // read, and their checksum
  uint32_t checksum = 0;
  Status status;
};

class Builder {
 public:
  Builder(const IndexSources& sources, ThreadPool* pool, KeyIndex* index)
      : sources_(sources),
        pool_(pool),
        index_(index),
        piece_items_(std::clamp<uint64_t>(sources.num_rows / 160, 1 << 13, 1 << 17)),
        batch_items_(std::clamp<uint64_t>(sources.num_rows / 20, 1 << 15, 1 << 22)),
        live_(pool->num_threads(), std::vector<int64_t>(sources.segments.size())),
        words_(pool->num_threads()) {}

  Status Run();

 private:
  bool Reserve();
  void PlanBatch();
  void ReadPiece(Piece* piece, std::vector<uint64_t>* words);
  Status ReadWords(Piece* piece, std::vector<uint64_t>* words);
  void SortByShard(Piece* piece, const std::vector<uint64_t>& words);
  bool FillShard(int shard, std::vector<int64_t>* live);
  void EraseOlder(const KeyItem& item, std::vector<int64_t>* live);
  Status FinishBatch();

  const IndexSources& sources_;
  ThreadPool* pool_;
  KeyIndex* index_;
  const uint64_t piece_items_;
  const uint64_t batch_items_;
  std::vector<std::vector<int64_t>> live_;    // by thread, then by segment
  std::vector<std::vector<uint64_t>> words_;  // by thread: what it has read
  std::unique_ptr<KeyItem[]> items_;
  std::vector<Piece> pieces_;
  // Where the next batch starts.
  uint32_t segment_ = 0;
  uint64_t entry_ = 0;
  uint64_t location_ = 0;
  uint32_t checksum_ = 0;  // of the current segment's footer so far
};

uint64_t NumChunks(const Segment& segment) {
  return (segment.info.num_records + kChunkRecords - 1) >> kChunkBits;
}

bool Builder::Reserve() {
  std::atomic<bool> has_memory{true};
  DealOut(pool_, KeyIndex::kNumShards, [&](size_t shard, int) {
    if (!index_->Reserve(static_cast<int>(shard), sources_.num_rows)) has_memory = false;
  });
  return has_memory;
}

void Builder::PlanBatch() {
  pieces_.clear();
  uint64_t num_items = 0;
  while (segment_ < sources_.segments.size() && pieces_.size() < kMostPiecesOfBatch) {
    const Segment& segment = *sources_.segments[segment_];
    const uint64_t num_records = segment.info.num_records;
    Piece piece;
    piece.segment = segment_;
    piece.is_tombstones = entry_ >= num_records;
    piece.first = entry_;
    const uint64_t num_entries = num_records + segment.info.num_tombstones;
    piece.count =
        std::min(piece_items_, (piece.is_tombstones ? num_entries : num_records) - entry_);
    if (num_items + piece.count > batch_items_) return;
    piece.is_last = entry_ + piece.count == num_entries;
    piece.location = location_ + (piece.is_tombstones ? 0 : entry_);
    piece.items = items_.get() + num_items;
    num_items += piece.count;
    entry_ += piece.count;
    if (piece.is_last) {
      ++segment_;
      entry_ = 0;
      location_ += NumChunks(segment) << kChunkBits;
    }
    pieces_.push_back(std::move(piece));
  }
}

Status Builder::ReadWords(Piece* piece, std::vector<uint64_t>* words) {
  const Segment& segment = *sources_.segments[piece->segment];
  std::unique_ptr<File> file;  // its own: those of the cache are for scattered reads
  HPS_RETURN_IF_ERROR(sources_.context->files->Open(segment.path, OpenMode::kRead, &file));
  if (piece->first == 0) {
    HPS_RETURN_IF_ERROR(
        CheckSegmentHeader(file.get(), segment, *sources_.schema, sources_.context->store_id));
    HPS_RETURN_IF_ERROR(CheckLength(file.get(), segment));
  }
  const uint64_t records = std::min(piece->first, segment.info.num_records);
  const uint64_t offset = segment.info.RecordOffset(segment.info.num_records, segment.row_bytes) +
                          records * 8 + (piece->first - records) * kTombstoneBytes;
  piece->num_bytes = piece->count * (piece->is_tombstones ? kTombstoneBytes : 8);
  words->resize(piece->num_bytes / 8);
  HPS_RETURN_IF_ERROR(file->Read(offset, piece->num_bytes, words->data()));
  piece->checksum = Crc32c(0, words->data(), piece->num_bytes);
  return Status::Ok();
}

void Builder::SortByShard(Piece* piece, const std::vector<uint64_t>& words) {
  const uint64_t step = piece->is_tombstones ? 2 : 1;
  const auto item = [&](uint64_t i) {
    const uint64_t place = piece->is_tombstones ? words[i * step + 1] : i;
    return KeyItem{MixKey(words[i * step]), piece->location + place};
  };
  piece->starts = KeyIndex::SortByShard(piece->count, item, piece->items);
}

void Builder::ReadPiece(Piece* piece, std::vector<uint64_t>* words) {
  piece->status = ReadWords(piece, words);
  if (piece->status.ok()) SortByShard(piece, *words);
}

void Builder::EraseOlder(const KeyItem& item, std::vector<int64_t>* live) {
  const uint64_t location = index_->Find(item.hash);
  if (location >= item.location) return;  // newer than the tombstone, or absent
  index_->Erase(item.hash);
  --(*live)[(*sources_.chunks)[location >> kChunkBits].segment];
}

bool Builder::FillShard(int shard, std::vector<int64_t>* live) {
  for (const Piece& piece : pieces_) {
    const KeyItem* items = piece.items + piece.starts[shard];
    const uint64_t count = piece.starts[shard + 1] - piece.starts[shard];
    for (uint64_t i = 0; i < std::min(kAhead, count); ++i) index_->Prefetch(items[i].hash);
    for (uint64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) index_->Prefetch(items[i + kAhead].hash);
      if (piece.is_tombstones) {
        EraseOlder(items[i], live);
        continue;
      }
      uint64_t previous = KeyIndex::kNone;
      if (!index_->Put(items[i].hash, items[i].location, &previous)) return false;
      ++(*live)[piece.segment];
      if (previous == KeyIndex::kNone) continue;
      --(*live)[(*sources_.chunks)[previous >> kChunkBits].segment];
    }
  }
  return true;
}

Status Builder::FinishBatch() {
  for (const Piece& piece : pieces_) {
    HPS_RETURN_IF_ERROR(piece.status);
    checksum_ = Crc32cJoined(checksum_, piece.checksum, piece.num_bytes);
    if (!piece.is_last) continue;
    const Segment& segment = *sources_.segments[piece.segment];
    std::unique_ptr<File> file;
    HPS_RETURN_IF_ERROR(sources_.context->files->Open(segment.path, OpenMode::kRead, &file));
    HPS_RETURN_IF_ERROR(CheckFooterChecksum(file.get(), segment, checksum_));
    checksum_ = 0;
  }
  return Status::Ok();
}

Status Builder::Run() {
  std::atomic<bool> has_memory{Reserve()};
  items_.reset(new KeyItem[batch_items_]);
  for (PlanBatch(); has_memory && !pieces_.empty(); PlanBatch()) {
    DealOut(pool_, pieces_.size(),
            [&](size_t number, int worker) { ReadPiece(&pieces_[number], &words_[worker]); });
    // Before the shards look at what the pieces hold: a position may point anywhere.
    HPS_RETURN_IF_ERROR(FinishBatch());
    DealOut(pool_, KeyIndex::kNumShards, [&](size_t shard, int worker) {
      if (!FillShard(static_cast<int>(shard), &live_[worker])) has_memory = false;
    });
  }
  if (!has_memory) return Status(StatusCode::kStore, "no memory is left for the index", ENOMEM);
  for (size_t i = 0; i < sources_.segments.size(); ++i) {
    int64_t live = 0;
    for (const std::vector<int64_t>& counts : live_) live += counts[i];
    sources_.segments[i]->live = static_cast<uint64_t>(live);
  }
  return Status::Ok();
}

}  // namespace

Status BuildIndex(const IndexSources& sources, ThreadPool* pool, KeyIndex* index) {
  return Builder(sources, pool, index).Run();
}

}  // namespace hps
