// VerifyStore: checks every checksum of a store's directory: manifest, segments, footers, extras,
// and the snapshot of the index.
//
// Above it: bindings (`hps verify`). Below it: manifest, segment, reader_pin. It may run beside a
// writer: while it runs, nothing is removed. It changes nothing.
#pragma once

#include <string>
#include <vector>

#include "ssd_store/file_system.h"

namespace hps {

struct Damage {
  std::string file;
  std::string message;
};

// kStore only if there is no store at `path` or it cannot be listed; all damage goes into the list.
Status VerifyStore(FileSystem* files, const std::string& path, std::vector<Damage>* damages);

}  // namespace hps
