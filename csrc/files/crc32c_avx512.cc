// CRC32C by carry-less multiplication of 64 bytes at a time (VPCLMULQDQ), which also copies them.
//
// Above it: crc32c.cc, which calls it only where the processor has the instructions. Below it:
// crc32c_sse42.cc, for pieces that are too short to gain.
//
// A message is a polynomial whose first bit has the highest power. What has been read is kept as
// four sums of 128 bits in a register; a sum stands for itself times x^D, where D bits follow, and
// is folded onto them: its halves are multiplied by x^(D+64) and x^D modulo the checksum's
// polynomial, which changes no remainder. See V. Gopal et al., "Fast CRC computation for generic
// polynomials using PCLMULQDQ instruction" (2009).
#include "files/crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

namespace hps::crc32c {
namespace {

constexpr size_t kBlock = 64;
constexpr size_t kStep = 4 * kBlock;
constexpr size_t kLeastFolded = 4 * kBlock;  // shorter pieces are as fast by SSE4.2
constexpr size_t kLeastCopied = 2 * kBlock;  // the same where they are copied, too

// x^power modulo the checksum's polynomial.
constexpr uint32_t PowerOfX(size_t power) {
  uint32_t value = uint32_t{1} << 31;
  for (size_t i = 0; i < power; ++i) value = TimesX(value);
  return value;
}

// Factors for the halves of one sum that is folded over `bits`. The first half has 64 bits more to
// go. The product of two words with reversed bits comes out one place too low, which is why a power
// is missing; and a factor of 32 bits is in the upper half of its word.
struct Factors {
  uint64_t front = 0;
  uint64_t back = 0;
};

constexpr Factors FactorsFor(size_t bits) {
  return {uint64_t{PowerOfX(bits + 63)} << 32, uint64_t{PowerOfX(bits - 1)} << 32};
}

struct alignas(64) LaneFactors {
  Factors lanes[4];
};

constexpr LaneFactors AllOver(size_t bits) {
  const Factors factors = FactorsFor(bits);
  return {{factors, factors, factors, factors}};
}

constexpr LaneFactors kOver64 = AllOver(8 * kBlock);
constexpr LaneFactors kOver128 = AllOver(16 * kBlock);
constexpr LaneFactors kOver192 = AllOver(24 * kBlock);
constexpr LaneFactors kOver256 = AllOver(32 * kBlock);
// The four sums of a register onto its last, which is added as it is.
constexpr LaneFactors kOntoLast = {{FactorsFor(384), FactorsFor(256), FactorsFor(128), {}}};
constexpr __mmask8 kLastLane = 0xC0;

__m512i Load(const LaneFactors& factors) { return _mm512_load_si512(&factors); }

// `sums` folded onto `data`.
__m512i Fold(__m512i sums, __m512i factors, __m512i data) {
  const __m512i front = _mm512_clmulepi64_epi128(sums, factors, 0x00);
  const __m512i back = _mm512_clmulepi64_epi128(sums, factors, 0x11);
  return _mm512_ternarylogic_epi64(front, back, data, 0x96);  // all three added
}

// The block at `at`; `to` is null unless kCopies.
template <bool kCopies>
__m512i Take(const char* from, char* to, size_t at) {
  const __m512i data = _mm512_loadu_si512(from + at);
  if constexpr (kCopies) _mm512_storeu_si512(to + at, data);
  return data;
}

// The instruction does the last step: it gives the remainder of a word times x^32.
uint64_t Remainder(__m512i sums) {
  const __m512i factors = Load(kOntoLast);
  const __m512i last = _mm512_maskz_mov_epi64(kLastLane, sums);
  const __m512i folded = Fold(sums, factors, last);
  const __m256i two =
      _mm256_xor_si256(_mm512_castsi512_si256(folded), _mm512_extracti64x4_epi64(folded, 1));
  const __m128i one = _mm_xor_si128(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
  const uint64_t front = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(one)));
  return _mm_crc32_u64(front, static_cast<uint64_t>(_mm_extract_epi64(one, 1)));
}

// A piece of at least kBlock bytes.
template <bool kCopies>
uint32_t Piece(uint32_t seed, const char* from, char* to, size_t size) {
  const __m128i start = _mm_cvtsi32_si128(static_cast<int>(~seed));
  __m512i sums = _mm512_xor_si512(Take<kCopies>(from, to, 0), _mm512_zextsi128_si512(start));
  size_t at = kBlock;
  if (size >= 2 * kStep) {
    __m512i second = Take<kCopies>(from, to, kBlock);
    __m512i third = Take<kCopies>(from, to, 2 * kBlock);
    __m512i fourth = Take<kCopies>(from, to, 3 * kBlock);
    const __m512i step = Load(kOver256);
    for (at = kStep; at + kStep <= size; at += kStep) {
      sums = Fold(sums, step, Take<kCopies>(from, to, at));
      second = Fold(second, step, Take<kCopies>(from, to, at + kBlock));
      third = Fold(third, step, Take<kCopies>(from, to, at + 2 * kBlock));
      fourth = Fold(fourth, step, Take<kCopies>(from, to, at + 3 * kBlock));
    }
    fourth = Fold(third, Load(kOver64), fourth);
    fourth = Fold(second, Load(kOver128), fourth);
    sums = Fold(sums, Load(kOver192), fourth);
  }
  const __m512i block = Load(kOver64);
  for (; at + kBlock <= size; at += kBlock) {
    sums = Fold(sums, block, Take<kCopies>(from, to, at));
  }
  const uint32_t checksum = ~static_cast<uint32_t>(Remainder(sums));
  if (at == size) return checksum;
  if constexpr (kCopies) std::memcpy(to + at, from + at, size - at);
  return kSse42.extend(checksum, from + at, size - at);
}

uint32_t Extend(uint32_t seed, const void* bytes, size_t size) {
  if (size < kLeastFolded) return kSse42.extend(seed, bytes, size);
  return Piece<false>(seed, static_cast<const char*>(bytes), nullptr, size);
}

void Many(const Crc32cPieces& batch, uint32_t* checksums) {
  const bool copies = batch.copies != nullptr;
  if (batch.size < (copies ? kLeastCopied : kLeastFolded)) return kSse42.many(batch, checksums);
  for (size_t i = 0; i < batch.count; ++i) {
    checksums[i] = copies
                       ? Piece<true>(batch.seeds[i], batch.pieces[i], batch.copies[i], batch.size)
                       : Piece<false>(batch.seeds[i], batch.pieces[i], nullptr, batch.size);
  }
}

}  // namespace

const Form kAvx512 = {"avx512", Extend, Many};

}  // namespace hps::crc32c
#endif
