// The ssd_store of one table behind plain C calls, so that it can be linked with its checksums and
// without them.
//
// Above it: checksum_cost.py (ctypes). Below it: csrc/ssd_store, with its own checksums or with
// what believed_checksum.cc and no_crc32c.cc put in their place. Nothing compacts in the
// background, which would disturb what is timed.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "ssd_store/store.h"

#define HPS_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

bool Tell(const hps::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok();
}

hps::SsdStore* From(void* store) { return static_cast<hps::SsdStore*>(store); }

}  // namespace

// A store at `folder`; null, with words on stderr, if it cannot be.
HPS_EXPORT void* row_store_open(const char* folder, uint32_t row_bytes, int read_only) {
  hps::TableSchema schema;
  schema.name = "rows";
  schema.dim = (row_bytes - 16) / 4;
  schema.initializer = "constant";
  schema.row_bytes = row_bytes;
  hps::StoreOptions options;
  options.path = folder;
  options.tables = {schema};
  options.keep_last = 1;
  options.num_threads = 0;
  options.read_only = read_only != 0;
  std::unique_ptr<hps::SsdStore> store;
  return Tell(hps::SsdStore::Open(hps::PosixFileSystem(), options, &store)) ? store.release()
                                                                            : nullptr;
}

// The others return 0, or 1 with words on stderr.
HPS_EXPORT int row_store_append(void* store, const char* rows, uint64_t count) {
  return Tell(From(store)->Append(0, rows, count)) ? 0 : 1;
}

HPS_EXPORT int row_store_checkpoint(void* store) {
  hps::CheckpointSummary summary;
  return Tell(From(store)->MakeCheckpoint("", {}, &summary)) ? 0 : 1;
}

HPS_EXPORT int row_store_fetch(void* store, const uint64_t* keys, uint64_t count, char* rows,
                               uint8_t* found) {
  return Tell(From(store)->table(0).Fetch(keys, count, rows, found)) ? 0 : 1;
}

HPS_EXPORT void row_store_close(void* store) { delete From(store); }
