// Writing a segment: header, records, footer.
//
// Above it: segment.h. Below it: format, file_system; segment_read.cc reads them back.
#include "ssd_store/segment.h"

#include <algorithm>

namespace hps {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;      // of a write, small enough for a cache
constexpr uint64_t kWritebackBytes = uint64_t{1} << 20;  // and so much is handed to the disk early
constexpr uint64_t kEarlyBytes = uint64_t{1} << 19;      // and while others are still copied
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kReserveBytes = uint64_t{1} << 20;  // space is reserved this far ahead
constexpr uint64_t kPutAtOnce = 64;
constexpr uint64_t kMostKeys = uint64_t{1} << 18;  // kept for the footer: 2 MiB

std::string SegmentHeader(const Segment& segment, const TableSchema& schema, uint64_t store_id) {
  Encoder out;
  out.PutRaw(kSegmentMagic);
  out.Put(schema.format_version());
  out.Put(schema.id);
  out.Put(store_id);
  out.Put(segment.info.number);
  out.Put(segment.info.sequence);
  out.Put(segment.info.generation);
  out.Put(schema.dim);
  out.Put(static_cast<uint32_t>(schema.kind));
  out.Put(schema.row_bytes);
  out.Put(static_cast<uint32_t>(segment.stride()));
  out.Put(Crc32c(0, out.bytes().data(), out.bytes().size()));
  static_assert(kSegmentHeaderBytes == 64);
  return std::move(out.bytes());
}

}  // namespace

Status CheckSegmentHeader(File* file, const Segment& segment, const TableSchema& schema,
                          uint64_t store_id) {
  char stored[kSegmentHeaderBytes];
  HPS_RETURN_IF_ERROR(file->Read(0, sizeof(stored), stored));
  const std::string expected = SegmentHeader(segment, schema, store_id);
  if (std::memcmp(stored, expected.data(), sizeof(stored)) != 0) {
    return Corruption(file->path(), 0,
                      "the header of segment " + std::to_string(segment.info.number) +
                          " of table '" + schema.name + "' is expected here");
  }
  return Status::Ok();
}

Status SegmentWriter::Create(FileSystem* files, std::shared_ptr<Segment> segment,
                             const TableSchema& schema, uint64_t store_id,
                             std::unique_ptr<SegmentWriter>* writer) {
  std::unique_ptr<File> file;
  HPS_RETURN_IF_ERROR(files->Open(segment->path, OpenMode::kCreateNew, &file));
  const std::string header = SegmentHeader(*segment, schema, store_id);
  Status status = file->Allocate(0, header.size());
  if (status.ok()) status = file->Write(0, header.data(), header.size());
  if (!status.ok()) {
    (void)files->Unlink(segment->path).ok();  // the error that counts is the first
    return status;
  }
  writer->reset(new SegmentWriter(std::move(segment), std::shared_ptr<File>(std::move(file))));
  return Status::Ok();
}

Status SegmentWriter::Append(ThreadPool* pool, std::vector<RecordPiece>* pieces, const char* rows,
                             uint64_t count) {
  const uint64_t row_bytes = segment_->row_bytes;
  const uint64_t stride = segment_->stride();
  const uint64_t record = segment_->info.num_records;
  const uint64_t offset = segment_->info.RecordOffset(record, row_bytes);
  const uint64_t end = offset + count * stride;
  if (end > reserved_) {
    // To give the rest back waits for what is being written, so a long append has none.
    const uint64_t ample = end - offset < kReserveBytes ? end + kReserveBytes : end;
    touched_ = std::max(touched_, ample);
    const bool is_ample = file_->Allocate(offset, ample - offset).ok();
    if (!is_ample) HPS_RETURN_IF_ERROR(file_->Allocate(offset, end - offset));
    reserved_ = is_ample ? ample : end;
  }
  const uint64_t size = std::clamp<uint64_t>(kPieceBytes / stride, 1, count);
  if (pieces->size() < static_cast<size_t>(pool->num_threads())) {
    pieces->resize(pool->num_threads());
  }
  std::vector<Status> written((count + size - 1) / size);
  DealOut(pool, written.size(), [&](size_t number, int worker) {
    const uint64_t first = number * size;
    written[number] = WritePiece(&(*pieces)[worker], rows + first * row_bytes, record + first,
                                 std::min(size, count - first));
  });
  for (Status& status : written) HPS_RETURN_IF_ERROR(std::move(status));
  StartWriteback(end);
  KeepKeys(rows, record, count);
  return Status::Ok();
}

// `count` rows as records, the first of them number `record`.
void SegmentWriter::PutTogether(const char* rows, uint64_t record, uint64_t count,
                                char* records) const {
  const uint64_t row_bytes = segment_->row_bytes;
  uint64_t numbers[kPutAtOnce];
  const char* from[kPutAtOnce];
  char* to[kPutAtOnce];
  uint32_t checksums[kPutAtOnce];
  for (uint64_t first = 0; first < count; first += kPutAtOnce) {
    const uint64_t size = std::min(kPutAtOnce, count - first);
    for (uint64_t i = 0; i < size; ++i) {
      numbers[i] = record + first + i;
      from[i] = rows + (first + i) * row_bytes;
      to[i] = records + (first + i) * segment_->stride();
    }
    RecordChecksums(*segment_, numbers, from, to, size, checksums);
    for (uint64_t i = 0; i < size; ++i) {
      std::memcpy(to[i] + row_bytes, &checksums[i], kChecksumBytes);
    }
  }
}

Status SegmentWriter::WritePiece(RecordPiece* piece, const char* rows, uint64_t record,
                                 uint64_t count) {
  const uint64_t size = count * segment_->stride();
  if (piece->size() < size) piece->resize(size);
  PutTogether(rows, record, count, piece->data());
  const uint64_t offset = segment_->info.RecordOffset(record, segment_->row_bytes);
  HPS_RETURN_IF_ERROR(file_->Write(offset, piece->data(), size));
  // Pages that the pieces beside it share wait for StartWriteback.
  const uint64_t start = (offset + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uint64_t end = (offset + size) / kPageBytes * kPageBytes;
  if (end >= start + kEarlyBytes) file_->StartWriteback(start, end - start);
  return Status::Ok();
}

// A checkpoint after every batch finds all keys here; a large segment would need too much memory.
void SegmentWriter::KeepKeys(const char* rows, uint64_t first, uint64_t count) {
  const bool has_deaths = segment_->info.has_deaths;
  keys_.resize(first - first_key_);  // without those of an append that was not installed
  deaths_.resize(has_deaths ? keys_.size() : 0);
  if (keys_.size() + count > kMostKeys) {
    keys_.clear();
    deaths_.clear();
    first_key_ = first;
  }
  if (count > kMostKeys) {
    first_key_ = first + count;
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    keys_.push_back(RowKey(rows + i * segment_->row_bytes));
    if (has_deaths) deaths_.push_back(RowDeath(rows + i * segment_->row_bytes));
  }
}

// A page that is not full yet would be written twice.
void SegmentWriter::StartWriteback(uint64_t end) {
  const uint64_t whole = end / kPageBytes * kPageBytes;
  if (whole < announced_ + kWritebackBytes) return;
  file_->StartWriteback(announced_, whole - announced_);
  announced_ = whole;
}

Status SegmentWriter::Seal() {
  const SegmentInfo& info = segment_->info;
  const uint64_t start = info.RecordOffset(info.num_records, segment_->row_bytes);
  SegmentInfo sealed = info;
  sealed.num_tombstones = tombstones_.size();
  HPS_RETURN_IF_ERROR(file_->Allocate(start, sealed.FooterBytes()));
  uint64_t end = 0;
  HPS_RETURN_IF_ERROR(WriteFooter(&end));
  // Gives back what was reserved or left behind a failed append.
  return touched_ > end ? file_->Truncate(end) : Status::Ok();
}

// Of the records in order: the older ones' are read back, which checks them.
Status SegmentWriter::WriteKeys(FooterPart* keys, FooterPart* deaths) {
  const SegmentInfo& info = segment_->info;
  const auto put = [this](FooterPart* part, const void* bytes, uint64_t size) {
    part->checksum = Crc32c(part->checksum, bytes, size);
    const Status status = file_->Write(part->offset, bytes, size);
    part->offset += size;
    return status;
  };
  std::vector<uint64_t> some_keys;
  std::vector<uint32_t> some_deaths;
  Status written;
  const auto visit = [&](uint64_t, uint64_t count, const char* records) {
    some_keys.resize(count);
    some_deaths.resize(info.has_deaths ? count : 0);
    for (uint64_t i = 0; i < count; ++i) {
      some_keys[i] = RowKey(records + i * segment_->stride());
      if (info.has_deaths) some_deaths[i] = RowDeath(records + i * segment_->stride());
    }
    if (written.ok()) written = put(keys, some_keys.data(), count * 8);
    if (written.ok()) written = put(deaths, some_deaths.data(), some_deaths.size() * kDeathBytes);
  };
  const uint64_t num_read = std::min(first_key_, info.num_records);
  HPS_RETURN_IF_ERROR(ReadRecords(file_.get(), *segment_, num_read, visit));
  HPS_RETURN_IF_ERROR(written);
  const uint64_t num_kept = info.num_records - num_read;
  HPS_RETURN_IF_ERROR(put(keys, keys_.data(), num_kept * 8));
  return put(deaths, deaths_.data(), info.has_deaths ? num_kept * kDeathBytes : 0);
}

Status SegmentWriter::WriteFooter(uint64_t* end) {
  SegmentInfo& info = segment_->info;
  SegmentInfo sealed = info;
  sealed.num_tombstones = tombstones_.size();
  FooterPart keys{info.RecordOffset(info.num_records, segment_->row_bytes)};
  FooterPart deaths{sealed.DeathsOffset(segment_->row_bytes)};
  HPS_RETURN_IF_ERROR(WriteKeys(&keys, &deaths));
  const uint64_t tombstone_bytes = tombstones_.size() * kTombstoneBytes;
  HPS_RETURN_IF_ERROR(file_->Write(keys.offset, tombstones_.data(), tombstone_bytes));
  uint32_t checksum = Crc32c(keys.checksum, tombstones_.data(), tombstone_bytes);
  Encoder out;
  out.PutRaw(kFooterMagic);
  out.Put(info.number);
  out.Put(info.num_records);
  out.Put(static_cast<uint64_t>(tombstones_.size()));
  out.Put(uint64_t{0});
  out.Put(deaths.checksum);
  checksum = Crc32c(checksum, out.bytes().data(), out.bytes().size());
  out.Put(checksum);
  HPS_RETURN_IF_ERROR(file_->Write(deaths.offset, out.bytes().data(), out.bytes().size()));
  *end = deaths.offset + out.bytes().size();
  info.num_tombstones = sealed.num_tombstones;
  info.footer_checksum = checksum;
  return Status::Ok();
}

}  // namespace hps
