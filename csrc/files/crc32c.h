// CRC32C (Castagnoli, RFC 3720): the checksum of records, footers and the manifest.
//
// Above it: all on-disk formats of ssd_store. Below it: the processor's instructions where it has
// them (crc32c_sse42.cc, crc32c_avx512.cc), tables elsewhere; all give equal results, so files move
// between machines. docs/decisions/0005-reading-from-ssd.md has the figures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hps {

// The CRC32C of `seed`'s message followed by `bytes`; seed 0 is the empty message.
uint32_t Crc32c(uint32_t seed, const void* bytes, size_t size);

// The CRC32C of two messages one after the other, from that of each (seed 0) and the second's size.
uint32_t Crc32cJoined(uint32_t first, uint32_t second, uint64_t second_size);

// Pieces of one size that lie anywhere. Piece i is seeded with seeds[i] and, if there are copies,
// goes to copies[i] while it is at hand.
struct Crc32cPieces {
  const char* const* pieces = nullptr;
  char* const* copies = nullptr;
  const uint32_t* seeds = nullptr;
  size_t size = 0;
  size_t count = 0;
};

// One checksum for each piece; several run at once, which hides the instructions' latency.
void Crc32cMany(const Crc32cPieces& batch, uint32_t* checksums);

namespace crc32c {

inline constexpr uint32_t kPolynomial = 0x82F63B78u;  // 0x1EDC6F41 with its bits reversed

// A polynomial times x, modulo the checksum's; bit 31 is the coefficient of 1.
constexpr uint32_t TimesX(uint32_t value) { return (value >> 1) ^ ((value & 1) ? kPolynomial : 0); }

// One way to compute it.
struct Form {
  const char* name;
  uint32_t (*extend)(uint32_t seed, const void* bytes, size_t size);
  void (*many)(const Crc32cPieces& batch, uint32_t* checksums);
};

extern const Form kPlain;
extern const Form kSse42;
extern const Form kAvx512;

// Those that this processor can run, the fastest first; the last is kPlain.
std::vector<const Form*> Forms();

// The register after `register_value` has been fed 2048 zero bytes; joins interleaved streams.
inline constexpr size_t kLaneBytes = 2048;
uint32_t ShiftLane(uint32_t register_value);

}  // namespace crc32c
}  // namespace hps
