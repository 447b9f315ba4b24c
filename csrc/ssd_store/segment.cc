// Writing a segment: header, records, footer.
//
// Above it: segment.h. Below it: format, file_system; segment_read.cc reads them back.
#include "ssd_store/segment.h"

#include <algorithm>

namespace hps {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;      // of a write, small enough for a cache
constexpr uint64_t kWritebackBytes = uint64_t{1} << 20;  // and so much is handed to the disk early
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kReserveBytes = uint64_t{1} << 20;  // space is reserved this far ahead

std::string SegmentHeader(const Segment& segment, const TableSchema& schema, uint64_t store_id) {
  Encoder out;
  out.PutRaw(kSegmentMagic);
  out.Put(kFormatVersion);
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

Status SegmentWriter::Append(const char* rows, uint64_t count) {
  const uint64_t row_bytes = segment_->row_bytes;
  const uint64_t stride = segment_->stride();
  uint64_t record = segment_->info.num_records;
  uint64_t offset = segment_->info.RecordOffset(record, row_bytes);
  const uint64_t end = offset + count * stride;
  if (end > reserved_) {
    const bool is_ample = file_->Allocate(offset, end - offset + kReserveBytes).ok();
    if (!is_ample) HPS_RETURN_IF_ERROR(file_->Allocate(offset, end - offset));
    reserved_ = is_ample ? end + kReserveBytes : end;
  }
  const uint64_t piece = std::clamp<uint64_t>(kPieceBytes / stride, 1, count);
  pieces_.resize(piece * stride);
  seeds_.resize(piece);
  checksums_.resize(piece);
  const uint64_t segment_seed = SegmentSeed(segment_->info.number);
  for (uint64_t first = 0; first < count; first += piece) {
    const uint64_t size = std::min(piece, count - first);
    for (uint64_t i = 0; i < size; ++i) seeds_[i] = RecordSeed(segment_seed, record + first + i);
    const char* source = rows + first * row_bytes;
    Crc32cMany(source, row_bytes, row_bytes, size, seeds_.data(), checksums_.data());
    for (uint64_t i = 0; i < size; ++i) {
      std::memcpy(&pieces_[i * stride], source + i * row_bytes, row_bytes);
      std::memcpy(&pieces_[i * stride + row_bytes], &checksums_[i], kChecksumBytes);
    }
    HPS_RETURN_IF_ERROR(file_->Write(offset + first * stride, pieces_.data(), size * stride));
  }
  StartWriteback(end);
  return Status::Ok();
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
  return file_->Truncate(end);  // gives back what was reserved or left behind a failed append
}

Status SegmentWriter::WriteFooter(uint64_t* end) {
  SegmentInfo& info = segment_->info;
  uint64_t offset = info.RecordOffset(info.num_records, segment_->row_bytes);
  uint32_t checksum = 0;
  const auto put = [&](const void* bytes, uint64_t size) {
    checksum = Crc32c(checksum, bytes, size);
    const Status status = file_->Write(offset, bytes, size);
    offset += size;
    return status;
  };
  std::vector<uint64_t> keys;
  Status written;
  const Status read = ReadRecords(file_.get(), *segment_, info.num_records,
                                  [&](uint64_t, uint64_t count, const char* records) {
                                    keys.resize(count);
                                    for (uint64_t i = 0; i < count; ++i)
                                      keys[i] = RowKey(records + i * segment_->stride());
                                    if (written.ok()) written = put(keys.data(), count * 8);
                                  });
  HPS_RETURN_IF_ERROR(read);
  HPS_RETURN_IF_ERROR(written);
  HPS_RETURN_IF_ERROR(put(tombstones_.data(), tombstones_.size() * kTombstoneBytes));
  Encoder out;
  out.PutRaw(kFooterMagic);
  out.Put(info.number);
  out.Put(info.num_records);
  out.Put(static_cast<uint64_t>(tombstones_.size()));
  out.Put(uint64_t{0});
  out.Put(uint32_t{0});
  checksum = Crc32c(checksum, out.bytes().data(), out.bytes().size());
  out.Put(checksum);
  HPS_RETURN_IF_ERROR(file_->Write(offset, out.bytes().data(), out.bytes().size()));
  *end = offset + out.bytes().size();
  info.num_tombstones = tombstones_.size();
  info.footer_checksum = checksum;
  return Status::Ok();
}

}  // namespace hps
