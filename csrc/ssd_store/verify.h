// VerifyStore: checks every checksum of a store's directory: manifest, segments, footers, extras.
// Not those of a snapshot of the index: it is never synced, so a loss of power may tear it, an
// opening checks all of it and passes over a torn one, and the footers hold the same.
//
// Above it: bindings (`hps verify`), cloner. Below it: manifest, segment, reader_pin. It may
// run beside a writer: while it runs, nothing is removed. It changes nothing.
#pragma once

#include <string>
#include <vector>

#include "files/file_system.h"
#include "ssd_store/manifest_records.h"

namespace hps {

struct Damage {
  std::string file;
  Status status;
};

// kStore only if there is no store at `path` or it cannot be read; all damage goes into the list.
Status VerifyStore(FileSystem* files, const std::string& path, std::vector<Damage>* damages);
// The same of the folder that `held` holds, which is or was at the absolute `path`.
Status VerifyHeld(FileSystem* held, const std::string& path, std::vector<Damage>* damages);

// Checks every file of one checkpoint in `folder`, record by record; the first damage.
Status VerifyCheckpoint(FileSystem* files, const std::string& folder, const Checkpoint& checkpoint,
                        uint64_t store_id);

}  // namespace hps
