// Reads pieces of memory in random order and does nothing else: what no look-up can beat.
//
// Above it: ceiling.py. A piece is 64 bytes, read by four neighbouring threads.
extern "C" __global__ void read_pieces(const uint4* table, const long long* idx, unsigned* sink,
                                       long long count) {
  constexpr int kVectors = 4;  // a constant, for a division a read would cost more than the read
  const long long threads = (long long)gridDim.x * blockDim.x;
  unsigned folded = 0;
#pragma unroll 4
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count * kVectors;
       i += threads) {
    const uint4 value = table[idx[i / kVectors] * kVectors + i % kVectors];
    folded ^= value.x ^ value.y ^ value.z ^ value.w;
  }
  // Never true for the table that is given; without it the reads would be dropped.
  if (folded == 0x9e3779b9u) *sink = folded;
}
