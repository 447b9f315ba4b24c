// What the memory alone takes for a sparse step: the bytes that any table has to move, and no work.
//
// A step reads each distinct row and writes the output past the caches; then it reads the gradients
// past the caches, and reads and writes each distinct row. No key, no look-up, no sum. Every thread
// takes a contiguous half of all of it, the best case. Above it: memory_alone.py (ctypes). Below
// it: spinning_threads.h.
#include <immintrin.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "../../common/spinning_threads.h"

namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kAhead = 24;  // rows

struct Step {
  char* rows;
  int64_t stride;
  const int64_t* slots;   // of the distinct rows, batch after batch
  const int64_t* starts;  // [num_batches + 1] of each batch in slots
  int64_t num_batches;
  char* out;
  const char* gradients;
  int64_t bytes;  // of the output, and of the gradients
};

// Lines of the row's slot, read and, if kWrite, written back.
template <bool kWrite>
__m128i VisitRows(const Step& step, int64_t first, int64_t last) {
  __m128i sum = _mm_setzero_si128();
  for (int64_t i = first; i < last; ++i) {
    if (i + kAhead < last) {
      const char* ahead = step.rows + step.slots[i + kAhead] * step.stride;
      for (int64_t b = 0; b < step.stride; b += kLine) __builtin_prefetch(ahead + b, kWrite);
      __builtin_prefetch(ahead + step.stride - 1, kWrite);
    }
    auto* row = reinterpret_cast<__m128i*>(step.rows + step.slots[i] * step.stride);
    for (int64_t part = 0; part * 16 < step.stride; ++part) {
      sum = _mm_xor_si128(sum, row[part]);
      if (kWrite) row[part] = sum;
    }
  }
  return sum;
}

void WriteOutput(const Step& step, int64_t first, int64_t last, __m128i value) {
  for (int64_t b = first; b < last; b += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(step.out + b), value);
  }
  _mm_sfence();
}

__m128i ReadGradients(const Step& step, int64_t first, int64_t last) {
  __m128i sum = _mm_setzero_si128();
  for (int64_t b = first; b < last; b += kLine) {
    _mm_prefetch(step.gradients + b + 64 * kLine, _MM_HINT_NTA);
    for (int64_t part = 0; part < kLine; part += 16) {
      sum = _mm_xor_si128(sum, *reinterpret_cast<const __m128i*>(step.gradients + b + part));
    }
  }
  return sum;
}

}  // namespace

// Median seconds of a step over the batches in turn; out and gradients are 64-byte aligned, bytes a
// multiple of 128.
extern "C" double memory_alone(char* rows, int64_t stride, const int64_t* slots,
                               const int64_t* starts, int64_t num_batches, char* out,
                               const char* gradients, int64_t bytes, int num_threads,
                               int num_steps) {
  const Step step = {rows, stride, slots, starts, num_batches, out, gradients, bytes};
  Barrier barrier(num_threads);
  std::vector<double> seconds(num_steps);
  std::atomic<int64_t> seen{0};
  const auto work = [&](int worker) {
    const auto part = [&](int64_t whole, int64_t unit) {
      const int64_t units = whole / unit;
      return std::pair(units * worker / num_threads * unit,
                       units * (worker + 1) / num_threads * unit);
    };
    const auto [first_byte, last_byte] = part(step.bytes, kLine);
    for (int i = 0; i < num_steps; ++i) {
      const int64_t* batch = step.starts + i % step.num_batches;
      const auto [first, last] = part(batch[1] - batch[0], 1);
      const int64_t first_slot = batch[0] + first;
      const int64_t last_slot = batch[0] + last;
      barrier.Wait();
      const auto start = std::chrono::steady_clock::now();
      __m128i sum = VisitRows<false>(step, first_slot, last_slot);
      WriteOutput(step, first_byte, last_byte, sum);
      barrier.Wait();
      sum = _mm_xor_si128(sum, ReadGradients(step, first_byte, last_byte));
      sum = _mm_xor_si128(sum, VisitRows<true>(step, first_slot, last_slot));
      barrier.Wait();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (worker == 0) seconds[i] = taken.count();
      seen += _mm_cvtsi128_si64(sum);
    }
  };
  RunOnThreads(num_threads, work);
  return MedianOf(std::move(seconds));
}
