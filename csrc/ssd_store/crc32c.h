// CRC32C (Castagnoli, RFC 3720): the checksum of records, footers and the manifest.
//
// Above it: all on-disk formats of ssd_store. Below it: the SSE4.2 instruction where the processor
// has it (crc32c_sse42.cc), tables elsewhere; both give equal results, so files move between
// machines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hps {

// The CRC32C of `seed`'s message followed by `bytes`; seed 0 is the empty message.
uint32_t Crc32c(uint32_t seed, const void* bytes, size_t size);

// The CRC32C of two messages one after the other, from that of each (seed 0) and the second's size.
uint32_t Crc32cJoined(uint32_t first, uint32_t second, uint64_t second_size);

// One checksum for each of `count` pieces of `size` bytes that start `stride` bytes apart; piece i
// is seeded with seeds[i]. Several pieces run at once, which hides the instruction's latency.
void Crc32cMany(const void* bytes, size_t stride, size_t size, size_t count, const uint32_t* seeds,
                uint32_t* checksums);

// The same for pieces that lie anywhere.
void Crc32cMany(const char* const* pieces, size_t size, size_t count, const uint32_t* seeds,
                uint32_t* checksums);

namespace crc32c {

// The implementations, by name for tests and benchmarks.
uint32_t ExtendPortable(uint32_t seed, const void* bytes, size_t size);
bool HasHardware();
uint32_t ExtendHardware(uint32_t seed, const void* bytes, size_t size);
void ManyHardware(const void* bytes, size_t stride, size_t size, size_t count,
                  const uint32_t* seeds, uint32_t* checksums);
void ManyHardware(const char* const* pieces, size_t size, size_t count, const uint32_t* seeds,
                  uint32_t* checksums);

// The register after `register_value` has been fed 2048 zero bytes; joins interleaved streams.
inline constexpr size_t kLaneBytes = 2048;
uint32_t ShiftLane(uint32_t register_value);

}  // namespace crc32c
}  // namespace hps
