// Encoding of headers, and the seeds of checksums.
//
// Above it: log_format.h. Below it: ssd_store's format and crc32c.
#include "update_log/log_format.h"

#include "common/key_hash.h"

namespace hps {

uint64_t LogFileSeed(const LogIdentity& identity, uint64_t first) {
  return MixKey(MixKey(MixKey(identity.store + 1) + identity.epoch) + first);
}

uint32_t FrameSeed(uint64_t file_seed, uint64_t offset) {
  return static_cast<uint32_t>(MixKey(file_seed + offset));
}

uint32_t FrameHeaderChecksum(uint32_t seed, uint32_t length, uint64_t number) {
  return Crc32c(Crc32c(seed, &length, sizeof(length)), &number, sizeof(number));
}

std::string LogFilePath(const std::string& folder, uint64_t first) {
  return folder + "/" + FileName(kLogFilePrefix, first);
}

std::string EncodeLogFileHeader(const LogIdentity& identity, uint64_t first) {
  Encoder out;
  out.PutRaw(kLogFileMagic);
  out.Put(kLogVersion);
  out.Put(uint32_t{0});
  out.Put(identity.store);
  out.Put(identity.epoch);
  out.Put(first);
  out.Put(uint32_t{0});
  out.Put(Crc32c(0, out.bytes().data(), out.bytes().size()));
  return std::move(out.bytes());
}

bool DecodeLogFileHeader(std::string_view bytes, LogIdentity* identity, uint64_t* first) {
  constexpr uint64_t kIdentityAt = 16;
  if (bytes.size() < kLogFileHeaderBytes) return false;
  Decoder in(bytes.substr(kIdentityAt));
  identity->store = in.Get<uint64_t>();
  identity->epoch = in.Get<uint64_t>();
  *first = in.Get<uint64_t>();
  return bytes.substr(0, kLogFileHeaderBytes) == EncodeLogFileHeader(*identity, *first);
}

}  // namespace hps
