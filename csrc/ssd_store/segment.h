// Segment: one file of records, and the writer that fills and seals it.
//
// Above it: table_store, compaction, verify. Below it: format, file_system. A segment is written by
// one SegmentWriter, sealed by its footer and immutable from then on. A record is a row image and
// its checksum. Reading is safe from any thread, also of an unsealed segment up to what has been
// written.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "files/file_system.h"
#include "ssd_store/file_cache.h"
#include "ssd_store/manifest_records.h"

namespace hps {

struct Tombstone {
  uint64_t key = 0;
  uint64_t position = 0;  // it counts just before the record of this number
};

// A segment as its table knows it. `live`, `chunks` and `info` change under the table's lock only.
struct Segment {
  std::string path;
  uint32_t row_bytes = 0;
  SegmentInfo info;
  bool is_sealed = false;
  uint64_t live = 0;  // records that the index names
  // Of a table whose footers have them: by record, the period of death while the index names it,
  // else kNeverDies; and how many of these are dead in the table's period.
  std::vector<uint32_t> deaths;
  uint64_t expired = 0;
  std::vector<uint32_t> chunks;  // of the table's location space, one for each 4096 records

  uint64_t stride() const { return row_bytes + kChecksumBytes; }
};

// What a footer holds, in pieces: keys of records [first, first + count), or tombstones.
struct FooterVisitor {
  std::function<void(uint64_t first, const uint64_t* keys, uint64_t count)> keys;
  std::function<void(const Tombstone* tombstones, uint64_t count)> tombstones;
};

// Checks the header against what the manifest says of the segment.
Status CheckSegmentHeader(File* file, const Segment& segment, const TableSchema& schema,
                          uint64_t store_id);
// Checks the file's length against what the manifest says of the segment.
Status CheckLength(File* file, const Segment& segment);
// Checks the trailer and, with `checksum` of the footer before it, the whole footer.
Status CheckFooterChecksum(File* file, const Segment& segment, uint32_t checksum);
// Checks length, footer and the footer's checksum (not the header), calling the visitor on the way;
// kCorruption by name. What the visitor was given counts only if the result is ok.
Status ReadFooter(File* file, const Segment& segment, const FooterVisitor& visitor);
// Of each record its period of death, checked against its checksum in the trailer, which the
// footer's covers.
Status ReadDeaths(File* file, const Segment& segment, std::vector<uint32_t>* deaths);
// The checksums of some records, numbers[i] of the segment, whose rows lie at rows[i]; if there are
// `copies`, row i goes to copies[i] on the way.
void RecordChecksums(const Segment& segment, const uint64_t* numbers, const char* const* rows,
                     char* const* copies, uint64_t count, uint32_t* checksums);
// kCorruption: in what the record in `bytes` differs from `checksum` or `*key`.
Status RecordDamage(const Segment& segment, uint64_t record, const char* bytes, uint32_t checksum,
                    const uint64_t* key);
// The one check of a record in memory: its stored checksum against `checksum`, which the caller has
// computed of a batch of them, and its key against `*key`, if one is expected.
inline Status CheckRecord(const Segment& segment, uint64_t record, const char* bytes,
                          uint32_t checksum, const uint64_t* key) {
  uint32_t stored = 0;
  std::memcpy(&stored, bytes + segment.row_bytes, sizeof(stored));
  if (stored == checksum && (key == nullptr || RowKey(bytes) == *key)) return Status::Ok();
  return RecordDamage(segment, record, bytes, checksum, key);
}
// Checks `count` records that lie one after another in `bytes`; the first is record `first`. Their
// keys are keys[0 .. count), if `keys` is not null.
Status CheckRecords(const Segment& segment, uint64_t first, uint64_t count, const char* bytes,
                    const uint64_t* keys = nullptr);
// Reads all records in pieces, checks them and calls visit(first, count, records).
Status ReadRecords(File* file, const Segment& segment, uint64_t num_records,
                   const std::function<void(uint64_t, uint64_t, const char*)>& visit);

// Records on their way from a caller's rows to a file; kept from one append to the next.
using RecordPiece = std::vector<char>;

// A part of a footer as it is written, piece by piece.
struct FooterPart {
  uint64_t offset = 0;  // of what comes next
  uint32_t checksum = 0;
};

class SegmentWriter {
 public:
  // Makes the file and writes its header. `segment` must carry path, row_bytes and numbers.
  static Status Create(FileSystem* files, std::shared_ptr<Segment> segment,
                       const TableSchema& schema, uint64_t store_id,
                       std::unique_ptr<SegmentWriter>* writer);

  // Writes `count` rows (row_bytes apart) as records behind the last: space reserved, then one
  // write for each MiB of records, by the next thread that is free; the disk begins with them at
  // once. The caller raises info.num_records when it installs them. After an error the next Append
  // overwrites what was left. `pieces` is the caller's memory for it.
  Status Append(ThreadPool* pool, std::vector<RecordPiece>* pieces, const char* rows,
                uint64_t count);
  void AddTombstone(uint64_t key) { tombstones_.push_back({key, segment_->info.num_records}); }
  // Makes room, so that the next `count` tombstones cannot fail for lack of memory.
  void ReserveTombstones(uint64_t count) {
    const uint64_t wanted = tombstones_.size() + count;
    if (wanted > tombstones_.capacity()) {
      tombstones_.reserve(std::max<uint64_t>(wanted, 2 * tombstones_.capacity()));
    }
  }
  // Writes the footer. Of the keys the newest are still in memory; the others are read back from
  // the records (and checked). Not synced yet: the caller keeps file() and syncs it.
  Status Seal();

  const std::shared_ptr<Segment>& segment() const { return segment_; }
  const std::shared_ptr<File>& file() const { return file_; }
  uint64_t num_tombstones() const { return tombstones_.size(); }

 private:
  SegmentWriter(std::shared_ptr<Segment> segment, std::shared_ptr<File> file)
      : segment_(std::move(segment)), file_(std::move(file)) {}
  void PutTogether(const char* rows, uint64_t record, uint64_t count, char* records) const;
  Status WritePiece(RecordPiece* piece, const char* rows, uint64_t record, uint64_t count);
  void StartWriteback(uint64_t end);
  void KeepKeys(const char* rows, uint64_t first, uint64_t count);
  Status WriteKeys(FooterPart* keys, FooterPart* deaths);
  Status WriteFooter(uint64_t* end);

  std::shared_ptr<Segment> segment_;
  std::shared_ptr<File> file_;
  std::vector<Tombstone> tombstones_;
  std::vector<uint64_t> keys_;    // of records from first_key_ on, a bounded number
  std::vector<uint32_t> deaths_;  // of the same, where the table's footers have them
  uint64_t first_key_ = 0;
  uint64_t reserved_ = 0;
  uint64_t touched_ = 0;    // up to here space may have been taken, by what failed too
  uint64_t announced_ = 0;  // the system has been told to write up to here
};

}  // namespace hps
