// The baseline of benchmarks/pull: copies rows by index, with a software prefetch some rows ahead.
//
// No key, no look-up, no deduplication: what remains is memory. Above it: gather.py (ctypes), which
// tries distances and both kinds of store and keeps the fastest. Below it: nothing.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kCopyBytes = 64;  // weights of a row of dim 16
constexpr int64_t kGroup = 8;       // rows whose copies stand together, so that loads overlap

inline void Prefetch(const char* row) {
  __builtin_prefetch(row, 0, 3);
  __builtin_prefetch(row + kCopyBytes - 1, 0, 3);  // a row of 80 bytes may straddle two lines
}

template <bool kStreaming>
inline void Copy(const char* src, char* dst) {
#if defined(__AVX512F__)
  const __m512i row = _mm512_loadu_si512(src);
  if constexpr (kStreaming) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), row);
  } else {
    _mm512_storeu_si512(dst, row);
  }
#else
  std::memcpy(dst, src, kCopyBytes);
#endif
}

template <bool kStreaming>
void Gather(const char* rows, int64_t stride, const int64_t* ids, int64_t count, int64_t distance,
            char* out) {
  int64_t i = 0;
  const int64_t ahead = count - distance - kGroup;
  for (; i < ahead; i += kGroup) {
    for (int64_t j = i; j < i + kGroup; ++j) Prefetch(rows + ids[j + distance] * stride);
    for (int64_t j = i; j < i + kGroup; ++j) {
      Copy<kStreaming>(rows + ids[j] * stride, out + j * kCopyBytes);
    }
  }
  for (; i < count; ++i) Copy<kStreaming>(rows + ids[i] * stride, out + i * kCopyBytes);
  if constexpr (kStreaming) _mm_sfence();
}

}  // namespace

// rows: first copied byte of row 0; out: 64-byte aligned, 64 * count bytes.
extern "C" void gather(const char* rows, int64_t stride, const int64_t* ids, int64_t count,
                       int64_t distance, int streaming, char* out) {
  if (streaming != 0) {
    Gather<true>(rows, stride, ids, count, distance, out);
  } else {
    Gather<false>(rows, stride, ids, count, distance, out);
  }
}
