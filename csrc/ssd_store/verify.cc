// VerifyStore: see verify.h.
//
// Above it: verify.h. Below it: manifest, segment.
#include "ssd_store/verify.h"

#include <cerrno>
#include <set>

#include "files/held_folder.h"
#include "ssd_store/manifest.h"
#include "ssd_store/reader_pin.h"
#include "ssd_store/segment.h"

namespace hps {
namespace {

// The footer's keys must be the records' own, so both are walked together.
Status VerifySegment(FileSystem* files, const Segment& segment, const TableSchema& schema,
                     uint64_t store_id) {
  std::unique_ptr<File> file;
  HPS_RETURN_IF_ERROR(files->Open(segment.path, OpenMode::kRead, &file));
  HPS_RETURN_IF_ERROR(CheckSegmentHeader(file.get(), segment, schema, store_id));
  HPS_RETURN_IF_ERROR(ReadFooter(file.get(), segment, FooterVisitor()));
  const uint64_t footer = segment.info.RecordOffset(segment.info.num_records, segment.row_bytes);
  std::vector<uint32_t> deaths;
  HPS_RETURN_IF_ERROR(ReadDeaths(file.get(), segment, &deaths));
  std::vector<uint64_t> keys;
  Status status;
  const Status read = ReadRecords(
      file.get(), segment, segment.info.num_records,
      [&](uint64_t first, uint64_t count, const char* records) {
        if (!status.ok()) return;
        keys.resize(count);
        status = file->Read(footer + first * 8, count * 8, keys.data());
        for (uint64_t i = 0; status.ok() && i < count; ++i) {
          const char* row = records + i * segment.stride();
          const std::string record = "record " + std::to_string(first + i);
          if (keys[i] != RowKey(row)) {
            status = Corruption(segment.path, footer + (first + i) * 8,
                                "the key of " + record + " is not the one in the footer");
          } else if (!deaths.empty() && deaths[first + i] != RowDeath(row)) {
            status =
                Corruption(segment.path,
                           segment.info.DeathsOffset(segment.row_bytes) + (first + i) * kDeathBytes,
                           "the period of death of " + record + " is not the one in the footer");
          }
        }
      });
  HPS_RETURN_IF_ERROR(read);
  return status;
}

Status VerifyExtra(FileSystem* files, const std::string& path, const Extra& extra) {
  std::string bytes;
  HPS_RETURN_IF_ERROR(ReadWholeFile(files, path, &bytes));
  if (bytes.size() == extra.length && Xxh64(bytes.data(), bytes.size(), 0) == extra.digest) {
    return Status::Ok();
  }
  return Corruption(path, 0,
                    "the digest of '" + extra.name + "' (" + std::to_string(extra.length) +
                        " bytes) does not match");
}

struct Place {
  FileSystem* files;
  const std::string& folder;
  uint64_t store_id;
};

// Checks the files of a checkpoint that have not been `seen`.
void VerifyFiles(const Place& place, const Checkpoint& checkpoint, std::set<uint64_t>* seen,
                 std::vector<Damage>* damages) {
  const auto note = [damages](const std::string& file, const Status& status) {
    if (!status.ok()) damages->push_back({file, status});
  };
  for (const TableCheckpoint& table : checkpoint.tables) {
    for (const SegmentInfo& info : table.segments) {
      if (!seen->insert(info.number).second) continue;
      Segment segment;
      segment.path = place.folder + "/" + FileName(kSegmentPrefix, info.number);
      segment.row_bytes = table.schema.row_bytes;
      segment.info = info;
      note(segment.path, VerifySegment(place.files, segment, table.schema, place.store_id));
    }
  }
  for (const Extra& extra : checkpoint.extras) {
    if (extra.file_number == 0 || !seen->insert(extra.file_number).second) continue;
    const std::string file = place.folder + "/" + FileName(kExtraPrefix, extra.file_number);
    note(file, VerifyExtra(place.files, file, extra));
  }
}

}  // namespace

Status VerifyStore(FileSystem* below, const std::string& place, std::vector<Damage>* damages) {
  const std::string path = AbsolutePath(place);
  std::unique_ptr<FileSystem> held;
  const Status holds = below->HoldFolder(path, &held);
  if (!holds.ok() && holds.os_error() != ENOENT && holds.os_error() != ENOTDIR) return holds;
  return VerifyHeld(held == nullptr ? below : held.get(), path, damages);
}

Status VerifyHeld(FileSystem* files, const std::string& path, std::vector<Damage>* damages) {
  if (!files->Exists(path + "/" + kCurrentName) && !files->Exists(path + "/" + kLockName)) {
    return Status(StatusCode::kStore, path + ": there is no store here", ENOENT);
  }
  std::unique_ptr<ReaderPin> pin;
  HPS_RETURN_IF_ERROR(ReaderPin::Create(files, path, &pin));
  Manifest manifest(files, path);
  const Status loaded = manifest.Load(false);
  if (!loaded.ok()) {
    const std::string current = path + "/" + kCurrentName;
    const bool is_current = loaded.message().find(current) != std::string::npos;
    damages->push_back({is_current ? current : manifest.path(), loaded});
    return Status::Ok();
  }
  const uint64_t store_id = manifest.state().open.store_id;
  std::set<uint64_t> seen;
  for (const auto& [id, checkpoint] : manifest.state().checkpoints) {
    VerifyFiles({files, path, store_id}, checkpoint, &seen, damages);
  }
  return Status::Ok();
}

Status VerifyCheckpoint(FileSystem* files, const std::string& folder, const Checkpoint& checkpoint,
                        uint64_t store_id) {
  std::set<uint64_t> seen;
  std::vector<Damage> damages;
  VerifyFiles({files, folder, store_id}, checkpoint, &seen, &damages);
  return damages.empty() ? Status::Ok() : damages.front().status;
}

}  // namespace hps
