// VerifyStore: checks every checksum of a store's directory: manifest, segments, footers, extras,
// and the snapshot of the index.
//
// Above it: bindings (`hps verify`), store_clone. Below it: manifest, segment, reader_pin. It may
// run beside a writer: while it runs, nothing is removed. It changes nothing.
#pragma once

#include <string>
#include <vector>

#include "ssd_store/file_system.h"
#include "ssd_store/manifest_records.h"

namespace hps {

struct Damage {
  std::string file;
  Status status;
};

// kStore only if there is no store at `path` or it cannot be listed; all damage goes into the list.
Status VerifyStore(FileSystem* files, const std::string& path, std::vector<Damage>* damages);

// Checks every file of one checkpoint in `folder`, record by record; the first damage.
Status VerifyCheckpoint(FileSystem* files, const std::string& folder, const Checkpoint& checkpoint,
                        uint64_t store_id);

}  // namespace hps
