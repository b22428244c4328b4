// Batches of uniform numbers of a random stream.
#pragma once

#include "kernels/random/philox.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA {

template <class C>
constexpr int kBatch = kWords / int(sizeof(C) / sizeof(uint32_t));  // numbers of a batch

// 53 bits of two words.
SDX_INLINE int64_t joined_bits(uint32_t high, uint32_t low) {
  return int64_t(uint64_t(high) << 21 | low >> 11);
}

// The numbers of batch `batch`, uniform in [0, 1), with 24 or 53 bits.
SDX_INLINE void uniform_batch(int64_t batch, RandomStream of, float* out) {
  uint32_t words[4][kCounters];
  draw_words(uint64_t(batch) * kCounters, of, words);
  for (int w = 0; w < 4; ++w)
    for (int i = 0; i < kCounters; ++i)
      out[w * kCounters + i] = float(int32_t(words[w][i] >> 8)) * 0x1p-24f;
}
SDX_INLINE void uniform_batch(int64_t batch, RandomStream of, double* out) {
  uint32_t words[4][kCounters];
  draw_words(uint64_t(batch) * kCounters, of, words);
  for (int w = 0; w < 4; w += 2)
    for (int i = 0; i < kCounters; ++i)
      out[w / 2 * kCounters + i] = double(joined_bits(words[w][i], words[w + 1][i])) * 0x1p-53;
}

}  // namespace sdx::SDX_ISA
