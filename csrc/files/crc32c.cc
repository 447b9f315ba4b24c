// Portable CRC32C by eight tables, the choice of a form, and the table that joins lanes.
//
// Above it: crc32c.h. Below it: the forms by instructions (crc32c_sse42.cc, crc32c_avx512.cc).
#include "files/crc32c.h"

#include <array>
#include <cstring>

namespace hps {
namespace crc32c {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = TimesX(value);
    tables[0][byte] = value;
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t table = 1; table < 8; ++table) {
      const uint32_t before = tables[table - 1][byte];
      tables[table][byte] = (before >> 8) ^ tables[0][before & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t FeedZeros(uint32_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) value = (value >> 8) ^ kTables[0][value & 255];
  return value;
}

// Feeding zeros is linear, so the effect on each byte of the register can be looked up and
// combined.
using LaneTables = std::array<std::array<uint32_t, 256>, 4>;

LaneTables MakeLaneTables() {
  LaneTables tables{};
  for (size_t place = 0; place < 4; ++place) {
    for (size_t bit = 0; bit < 8; ++bit) {
      tables[place][size_t{1} << bit] = FeedZeros(uint32_t{1} << (8 * place + bit), kLaneBytes);
    }
    for (size_t byte = 1; byte < 256; ++byte) {
      const size_t lowest = byte & (~byte + 1);
      if (byte != lowest)
        tables[place][byte] = tables[place][lowest] ^ tables[place][byte ^ lowest];
    }
  }
  return tables;
}

// The product of two polynomials modulo the checksum's.
uint32_t Multiply(uint32_t left, uint32_t right) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if (left & bit) product ^= right;
    right = TimesX(right);
  }
  return product;
}

uint32_t ExtendPlain(uint32_t seed, const void* bytes, size_t size) {
  const auto* data = static_cast<const unsigned char*>(bytes);
  uint32_t value = ~seed;
  for (; size >= 8; size -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= value;
    value = 0;
    for (size_t i = 0; i < 8; ++i) value ^= kTables[7 - i][(word >> (8 * i)) & 255];
  }
  for (; size > 0; --size, ++data) value = (value >> 8) ^ kTables[0][(value ^ *data) & 255];
  return ~value;
}

void ManyPlain(const Crc32cPieces& batch, uint32_t* checksums) {
  for (size_t i = 0; i < batch.count; ++i) {
    checksums[i] = ExtendPlain(batch.seeds[i], batch.pieces[i], batch.size);
    if (batch.copies != nullptr) std::memcpy(batch.copies[i], batch.pieces[i], batch.size);
  }
}

const Form& Fastest() {
  static const Form* const fastest = Forms().front();
  return *fastest;
}

}  // namespace

const Form kPlain = {"plain", ExtendPlain, ManyPlain};

std::vector<const Form*> Forms() {
  std::vector<const Form*> forms;
#if defined(__x86_64__)
  const bool has_sse42 = __builtin_cpu_supports("sse4.2") != 0;
  if (has_sse42 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("vpclmulqdq")) {
    forms.push_back(&kAvx512);
  }
  if (has_sse42) forms.push_back(&kSse42);
#endif
  forms.push_back(&kPlain);
  return forms;
}

uint32_t ShiftLane(uint32_t value) {
  static const LaneTables tables = MakeLaneTables();
  return tables[0][value & 255] ^ tables[1][(value >> 8) & 255] ^ tables[2][(value >> 16) & 255] ^
         tables[3][value >> 24];
}

}  // namespace crc32c

uint32_t Crc32c(uint32_t seed, const void* bytes, size_t size) {
  return crc32c::Fastest().extend(seed, bytes, size);
}

// Bytes that follow multiply what came before by x^8 each.
uint32_t Crc32cJoined(uint32_t first, uint32_t second, uint64_t second_size) {
  uint32_t power = uint32_t{1} << 23;  // x^8, x^16, x^32, ...
  for (; second_size > 0; second_size >>= 1) {
    if (second_size & 1) first = crc32c::Multiply(power, first);
    power = crc32c::Multiply(power, power);
  }
  return first ^ second;
}

void Crc32cMany(const Crc32cPieces& batch, uint32_t* checksums) {
  crc32c::Fastest().many(batch, checksums);
}

}  // namespace hps
