// Encoding of headers, and the seeds of checksums.
//
// Above it: log_format.h. Below it: files' encoding and crc32c.
#include "update_log/log_format.h"

#include "common/key_hash.h"
#include "files/crc32c.h"

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

std::string UsedFilePath(const std::string& folder, uint64_t first) {
  return folder + "/" + FileName(kLogUsedPrefix, first);
}

std::string EncodeLogFileHeader(const LogFileHeader& header) {
  Encoder out;
  out.PutRaw(kLogFileMagic);
  out.Put(kLogVersion);
  out.Put(uint32_t{0});
  out.Put(header.identity.store);
  out.Put(header.identity.epoch);
  out.Put(header.first);
  out.Put(header.end_before);
  out.Put(uint32_t{0});
  out.Put(Crc32c(0, out.bytes().data(), out.bytes().size()));
  return std::move(out.bytes());
}

bool DecodeLogFileHeader(std::string_view bytes, LogFileHeader* header) {
  constexpr uint64_t kIdentityAt = 16;
  if (bytes.size() < kLogFileHeaderBytes) return false;
  Decoder in(bytes.substr(kIdentityAt));
  header->identity.store = in.Get<uint64_t>();
  header->identity.epoch = in.Get<uint64_t>();
  header->first = in.Get<uint64_t>();
  header->end_before = in.Get<uint64_t>();
  return bytes.substr(0, kLogFileHeaderBytes) == EncodeLogFileHeader(*header);
}

uint32_t NewerLogVersion(std::string_view bytes) {
  constexpr uint64_t kChecksumAt = kLogFileHeaderBytes - 4;
  if (bytes.size() < kLogFileHeaderBytes || !bytes.starts_with(kLogFileMagic)) return 0;
  Decoder version_in(bytes.substr(kLogFileMagic.size()));
  const uint32_t version = version_in.Get<uint32_t>();
  Decoder checksum_in(bytes.substr(kChecksumAt));
  const bool is_whole = checksum_in.Get<uint32_t>() == Crc32c(0, bytes.data(), kChecksumAt);
  return is_whole && version > kLogVersion ? version : 0;
}

}  // namespace hps
