// Reading a segment in order: footer, records, and their checks.
//
// Above it: segment.h. Below it: format, file_system. Scattered records are row_fetch.cc's.
#include <algorithm>

#include "ssd_store/segment.h"

namespace hps {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr uint64_t kCheckedAtOnce = 256;

}  // namespace

Status CheckLength(File* file, const Segment& segment) {
  const uint64_t expected = segment.info.FileBytes(segment.row_bytes);
  uint64_t size = 0;
  HPS_RETURN_IF_ERROR(file->Size(&size));
  if (size == expected) return Status::Ok();
  return Corruption(
      file->path(), size,
      "the file ends here; its manifest names a length of " + std::to_string(expected));
}

Status CheckFooterChecksum(File* file, const Segment& segment, uint32_t checksum) {
  const SegmentInfo& info = segment.info;
  const uint64_t end = info.FileBytes(segment.row_bytes);
  char trailer[kFooterTrailerBytes];
  HPS_RETURN_IF_ERROR(file->Read(end - sizeof(trailer), sizeof(trailer), trailer));
  checksum = Crc32c(checksum, trailer, sizeof(trailer) - 4);
  uint32_t stored = 0;
  std::memcpy(&stored, trailer + sizeof(trailer) - 4, 4);
  if (checksum == stored && checksum == info.footer_checksum) return Status::Ok();
  return Corruption(file->path(), end - info.FooterBytes(),
                    "the checksum of the footer is " + std::to_string(checksum) + ", " +
                        std::to_string(info.footer_checksum) + " expected");
}

Status ReadFooter(File* file, const Segment& segment, const FooterVisitor& visitor) {
  const SegmentInfo& info = segment.info;
  HPS_RETURN_IF_ERROR(CheckLength(file, segment));
  uint64_t offset = info.RecordOffset(info.num_records, segment.row_bytes);
  uint32_t checksum = 0;
  std::vector<uint64_t> words(std::min(kPieceBytes / 8, info.num_records));
  for (uint64_t first = 0; first < info.num_records;) {
    const uint64_t count = std::min<uint64_t>(words.size(), info.num_records - first);
    HPS_RETURN_IF_ERROR(file->Read(offset, count * 8, words.data()));
    checksum = Crc32c(checksum, words.data(), count * 8);
    if (visitor.keys) visitor.keys(first, words.data(), count);
    first += count;
    offset += count * 8;
  }
  std::vector<Tombstone> tombstones(std::min(kPieceBytes / kTombstoneBytes, info.num_tombstones));
  static_assert(sizeof(Tombstone) == kTombstoneBytes);
  for (uint64_t first = 0; first < info.num_tombstones;) {
    const uint64_t count = std::min<uint64_t>(tombstones.size(), info.num_tombstones - first);
    HPS_RETURN_IF_ERROR(file->Read(offset, count * kTombstoneBytes, tombstones.data()));
    checksum = Crc32c(checksum, tombstones.data(), count * kTombstoneBytes);
    if (visitor.tombstones) visitor.tombstones(tombstones.data(), count);
    first += count;
    offset += count * kTombstoneBytes;
  }
  return CheckFooterChecksum(file, segment, checksum);
}

Status ReadDeaths(File* file, const Segment& segment, std::vector<uint32_t>* deaths) {
  const SegmentInfo& info = segment.info;
  deaths->assign(info.has_deaths ? info.num_records : 0, kNeverDies);
  if (deaths->empty()) return Status::Ok();
  const uint64_t offset = info.DeathsOffset(segment.row_bytes);
  const uint64_t size = deaths->size() * kDeathBytes;
  HPS_RETURN_IF_ERROR(file->Read(offset, size, deaths->data()));
  uint32_t stored = 0;
  const uint64_t end = info.FileBytes(segment.row_bytes);
  HPS_RETURN_IF_ERROR(file->Read(end - 2 * sizeof(stored), sizeof(stored), &stored));
  const uint32_t checksum = Crc32c(0, deaths->data(), size);
  if (checksum == stored) return Status::Ok();
  return Corruption(file->path(), offset,
                    "the checksum of the periods of death is " + std::to_string(checksum) +
                        ", stored is " + std::to_string(stored));
}

Status RecordDamage(const Segment& segment, uint64_t record, const char* bytes, uint32_t checksum,
                    const uint64_t* key) {
  uint32_t stored = 0;
  std::memcpy(&stored, bytes + segment.row_bytes, sizeof(stored));
  const std::string wrong =
      stored != checksum
          ? "the checksum of record " + std::to_string(record) + " is " + std::to_string(checksum) +
                ", stored is " + std::to_string(stored)
          : "record " + std::to_string(record) + " has key " + std::to_string(RowKey(bytes)) +
                ", key " + std::to_string(*key) + " expected";
  return Corruption(segment.path, segment.info.RecordOffset(record, segment.row_bytes), wrong);
}

Status CheckRecords(const Segment& segment, uint64_t first, uint64_t count, const char* bytes,
                    const uint64_t* keys) {
  uint64_t numbers[kCheckedAtOnce];
  const char* rows[kCheckedAtOnce];
  uint32_t checksums[kCheckedAtOnce];
  for (uint64_t start = 0; start < count; start += kCheckedAtOnce) {
    const uint64_t size = std::min(kCheckedAtOnce, count - start);
    const char* records = bytes + start * segment.stride();
    for (uint64_t i = 0; i < size; ++i) {
      numbers[i] = first + start + i;
      rows[i] = records + i * segment.stride();
    }
    RecordChecksums(segment, numbers, rows, nullptr, size, checksums);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t* key = keys == nullptr ? nullptr : keys + start + i;
      HPS_RETURN_IF_ERROR(CheckRecord(segment, numbers[i], rows[i], checksums[i], key));
    }
  }
  return Status::Ok();
}

Status ReadRecords(File* file, const Segment& segment, uint64_t num_records,
                   const std::function<void(uint64_t, uint64_t, const char*)>& visit) {
  const uint64_t most = std::max<uint64_t>(1, kPieceBytes / segment.stride());
  const uint64_t piece = std::min(most, num_records);
  const std::unique_ptr<char[]> records(new char[piece * segment.stride()]);
  for (uint64_t first = 0; first < num_records; first += piece) {
    const uint64_t count = std::min(piece, num_records - first);
    HPS_RETURN_IF_ERROR(file->Read(segment.info.RecordOffset(first, segment.row_bytes),
                                   count * segment.stride(), records.get()));
    HPS_RETURN_IF_ERROR(CheckRecords(segment, first, count, records.get()));
    visit(first, count, records.get());
  }
  return Status::Ok();
}

}  // namespace hps
