// Compaction: see compaction.h.
//
// Above it: compaction.h. Below it: table_store, segment. An input is read in pieces: the keys from
// its footer, which say what is live, then the records from the first live one to the last. The
// records of the output are in the order in which the inputs' bits say they were copied, so one
// bit a record is all that has to be remembered until they are installed.
#include "ssd_store/compaction.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace hps {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr uint64_t kMostPieceRecords = uint64_t{1} << 14;

Status Canceled() {
  return Status(StatusCode::kStore, "the compaction was given up: its table changed or closed",
                ECANCELED);
}

}  // namespace

void CompactionPace::Spend(uint64_t bytes) {
  const auto seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_second_);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [this] { return is_hurried_ || is_stopped_; });
}

void CompactionPace::Hurry(bool is_hurried) {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_hurried_ = is_hurried;
  changed_.notify_all();
}

void CompactionPace::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_stopped_ = true;
  changed_.notify_all();
}

Status Compaction::Run(CompactionPace* pace, bool is_paced) {
  auto output = std::make_shared<Segment>();
  output->info = plan_.output;
  output->path = context_->folder + "/" + FileName(kSegmentPrefix, output->info.number);
  output->row_bytes = table_->schema().row_bytes;
  HPS_RETURN_IF_ERROR(SegmentWriter::Create(context_->files, output, table_->schema(),
                                            context_->store_id, &writer_));
  context_->CountOverhead(kSegmentHeaderBytes);
  for (size_t input = 0; input < plan_.inputs.size(); ++input) {
    HPS_RETURN_IF_ERROR(CopyInput(input, pace, is_paced));
  }
  if (output->info.num_records + writer_->num_tombstones() == 0) return Status::Ok();
  HPS_RETURN_IF_ERROR(SealOutput());
  return Install();
}

Status Compaction::CopyInput(size_t input, CompactionPace* pace, bool is_paced) {
  const Segment& segment = *plan_.inputs[input].segment;
  const uint64_t num_records = segment.info.num_records;
  damaged_ = segment.info.number;  // until all of it has been read
  std::shared_ptr<File> file;
  HPS_RETURN_IF_ERROR(context_->cache->Open(segment.info.number, segment.path, &file));
  std::vector<Tombstone> tombstones;
  FooterVisitor visitor;
  if (plan_.inputs[input].keeps_tombstones) {
    visitor.tombstones = [&tombstones](const Tombstone* some, uint64_t count) {
      tombstones.insert(tombstones.end(), some, some + count);
    };
  }
  HPS_RETURN_IF_ERROR(ReadFooter(file.get(), segment, visitor));
  copied_.emplace_back((num_records + 63) / 64);
  const uint64_t piece = std::clamp<uint64_t>(kPieceBytes / segment.stride(), 1, kMostPieceRecords);
  const uint64_t footer = segment.info.RecordOffset(num_records, segment.row_bytes);
  std::vector<uint64_t> keys;
  for (uint64_t first = 0; first < num_records; first += piece) {
    if (pace->is_stopped()) return Canceled();
    const uint64_t written = writer_->segment()->info.num_records;
    keys.resize(std::min(piece, num_records - first));
    HPS_RETURN_IF_ERROR(file->Read(footer + first * 8, keys.size() * 8, keys.data()));
    HPS_RETURN_IF_ERROR(CopyPiece(file.get(), input, first, keys));
    const uint64_t copied = writer_->segment()->info.num_records - written;
    if (is_paced) pace->Spend((keys.size() + copied) * segment.stride());
  }
  damaged_ = 0;
  CarryTombstones(tombstones);
  return Status::Ok();
}

Status Compaction::CopyPiece(File* file, size_t input, uint64_t first,
                             const std::vector<uint64_t>& keys) {
  const Segment& segment = *plan_.inputs[input].segment;
  std::vector<uint8_t> live(keys.size());
  if (!table_->FindLive(plan_, input, first, keys.data(), &live)) return Canceled();
  const auto start = static_cast<uint64_t>(std::find(live.begin(), live.end(), 1) - live.begin());
  if (start == live.size()) return Status::Ok();
  const auto end = static_cast<uint64_t>(live.rend() - std::find(live.rbegin(), live.rend(), 1));
  records_.resize((end - start) * segment.stride());
  HPS_RETURN_IF_ERROR(file->Read(segment.info.RecordOffset(first + start, segment.row_bytes),
                                 records_.size(), records_.data()));
  rows_.clear();
  for (uint64_t i = start; i < end;) {  // dead records may be damaged, nobody will miss them
    if (live[i] == 0) {
      ++i;
      continue;
    }
    uint64_t stop = i;
    for (; stop < end && live[stop] != 0; ++stop) {
      copied_[input][(first + stop) / 64] |= uint64_t{1} << ((first + stop) % 64);
    }
    HPS_RETURN_IF_ERROR(
        CopyRun(segment, first + i, &keys[i], stop - i, &records_[(i - start) * segment.stride()]));
    i = stop;
  }
  const uint64_t count = rows_.size() / segment.row_bytes;
  damaged_ = 0;  // an error from here on is not the input's
  HPS_RETURN_IF_ERROR(writer_->Append(&pool_, &pieces_, rows_.data(), count));
  damaged_ = segment.info.number;
  writer_->segment()->info.num_records += count;
  context_->bytes_written += count * segment.stride();
  context_->bytes_compacted += count * segment.stride();
  return Status::Ok();
}

Status Compaction::CopyRun(const Segment& segment, uint64_t first, const uint64_t* keys,
                           uint64_t count, const char* records) {
  HPS_RETURN_IF_ERROR(CheckRecords(segment, first, count, records, keys));
  const size_t size = rows_.size();
  rows_.resize(size + count * segment.row_bytes);
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(&rows_[size + i * segment.row_bytes], records + i * segment.stride(),
                segment.row_bytes);
  }
  return Status::Ok();
}

// Behind the records of this input and of those before it: what the tombstones hide was gone when
// these were copied, and the key of a record that is still to be copied is stored. A key that is
// stored needs none, its record hides whatever is older.
void Compaction::CarryTombstones(const std::vector<Tombstone>& tombstones) {
  std::vector<uint64_t> keys(tombstones.size());
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = tombstones[i].key;
  std::vector<uint8_t> named(kMostPieceRecords);
  for (uint64_t first = 0; first < keys.size(); first += kMostPieceRecords) {
    const uint64_t count = std::min(kMostPieceRecords, keys.size() - first);
    table_->Names(&keys[first], count, named.data());
    for (uint64_t i = 0; i < count; ++i) {
      if (named[i] == 0) writer_->AddTombstone(keys[first + i]);
    }
  }
}

Status Compaction::SealOutput() {
  HPS_RETURN_IF_ERROR(writer_->Seal());
  context_->CountOverhead(writer_->segment()->info.FooterBytes());
  const Status synced = writer_->file()->SyncData();
  has_failed_sync_ = !synced.ok();
  writer_->segment()->is_sealed = synced.ok();
  return synced;
}

Status Compaction::Install() {
  const std::shared_ptr<Segment>& output = writer_->segment();
  uint32_t ordinal = 0;
  HPS_RETURN_IF_ERROR(table_->AddOutput(plan_, output, &ordinal));
  size_t input = 0;
  uint64_t record = 0;
  bool is_void = false;
  std::vector<uint64_t> sources;
  FooterVisitor visitor;
  visitor.keys = [&](uint64_t first, const uint64_t* keys, uint64_t count) {
    sources.clear();
    while (sources.size() < count) {
      const Segment& segment = *plan_.inputs[input].segment;
      if (record == segment.info.num_records) {
        ++input;
        record = 0;
        continue;
      }
      if ((copied_[input][record / 64] >> (record % 64) & 1) != 0) {
        sources.push_back(TableStore::Location(segment, record));
      }
      ++record;
    }
    const std::vector<uint64_t> moved(keys, keys + count);
    is_void = is_void || !table_->Install(plan_, ordinal, first, moved, sources);
  };
  HPS_RETURN_IF_ERROR(ReadFooter(writer_->file().get(), *output, visitor));
  return is_void ? Canceled() : Status::Ok();
}

}  // namespace hps
