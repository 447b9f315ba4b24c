// Manifest: the append-only log that says which files make up the store, and CURRENT, which says
// how much of it counts.
//
// Above it: store, verify. Below it: manifest_records, file_system. A record's checksum continues
// the one before it, so records cannot be reordered, and a leftover behind a newer tail cannot
// pass. Commit makes one record durable: space for it, the new CURRENT under another name, the
// record, then the rename. An error before the record was begun leaves all as it was; a later one
// means that nobody knows what is on disk, and the store must stop. kStore with ESTALE: the folder
// is not at its path any more; without is_begun nothing was committed. Thread-safety: none; the
// store serialises.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "files/file_system.h"
#include "ssd_store/manifest_records.h"

namespace hps {

class Manifest {
 public:
  Manifest(FileSystem* files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  // Reads CURRENT and the log. A writer also takes whole valid records beyond CURRENT's length; a
  // reader, which may be beside a living writer, does not.
  // kCorruption for any damage below CURRENT's length. `earlier`: what another reader has of the
  // same manifest, or nullptr: of a log that has only grown since, the new records alone are read.
  Status Load(bool is_writer, const Manifest* earlier = nullptr);
  // Starts the manifest of a new store, or rewrites a loaded one, as file `number`.
  // *is_begun tells, on error, whether the disk may hold the new state.
  Status Start(uint64_t number, const OpenRecord& open, bool* is_begun);
  // Starts the manifest of a store that holds one checkpoint of another.
  Status StartWith(uint64_t number, const OpenRecord& open, const Checkpoint& checkpoint);
  // Appends one record and makes it count. What the record rests on must be on disk before it:
  // `sync` makes it so, together with the new CURRENT, the file that it is given.
  using SyncBefore = std::function<Status(File* current)>;
  Status Commit(RecordKind kind, const std::string& payload, const SyncBefore& sync,
                bool* is_begun);

  const ManifestState& state() const { return state_; }
  uint64_t number() const { return number_; }
  // The log has outgrown the records still wanted; Start writes a short one.
  bool is_bloated() const { return log_.size() > kSmallLog + 4 * started_bytes_; }
  std::string path() const;

 private:
  static constexpr uint64_t kSmallLog = uint64_t{1} << 20;

  Status ReadCurrent(uint64_t* length, uint64_t* digest);
  // All of a log's bytes, with its header.
  Status ParseLog(const std::string& bytes, uint64_t length, bool is_writer);
  // Takes the records from *at on, up to `length`, and whole valid ones up to `end`.
  Status ParseRecords(const std::string& bytes, uint64_t length, uint64_t end, uint64_t* at);
  // Goes on where another reader has stopped. False, with nothing taken, where the log is not that
  // one's, longer: it is to be read as a whole.
  bool Continue(const Manifest& earlier, uint64_t length, uint64_t digest);
  // What Start would write: the records still wanted, as a log of their own.
  Manifest Rewritten(uint64_t number, const OpenRecord& open) const;
  std::string Frame(RecordKind kind, const std::string& payload) const;
  Status WriteCurrentBeside(uint64_t number, const ManifestState& state, const std::string& log,
                            std::unique_ptr<File>* file);
  Status ReplaceCurrent();

  FileSystem* files_;
  std::string folder_;
  uint64_t number_ = 0;
  std::string log_;  // all valid bytes of the log
  uint32_t chain_ = 0;
  uint64_t started_bytes_ = 0;  // of the log when it was last as short as it could be
  ManifestState state_;
  std::unique_ptr<File> file_;
};

}  // namespace hps
