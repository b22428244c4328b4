// The transform of input patches that Winograd convolutions and their weight gradients share.
#pragma once

#include "kernels/conv/winograd.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA {

// Input transform B^T d along one axis. Even and odd parts of +-a and +-b share their terms.
SDX_INLINE void transform_input(const f32v (&d)[kPatch], f32v (&to)[kPatch]) {
  constexpr float a = float(kA), b = float(kB);
  const f32v even_a = d[4] - 2.0f * d[2], odd_a = a * (d[3] - 2.0f * d[1]);
  const f32v even_b = d[4] - 0.5f * d[2], odd_b = b * (d[3] - 0.5f * d[1]);
  to[0] = d[0] - 2.5f * d[2] + d[4];
  to[1] = even_a + odd_a;
  to[2] = even_a - odd_a;
  to[3] = even_b + odd_b;
  to[4] = even_b - odd_b;
  to[5] = d[1] - 2.5f * d[3] + d[5];
}

// B^T d B for one vector of channels: lines, then columns. `at` has the offsets of the patch's
// pixels, -1 in the padding.
template <bool kInside, class Lanes>
SDX_INLINE void transform_patch(const float* x, const int64_t (&at)[kPoints], Lanes lanes,
                                float* to, const int64_t (&to_at)[kPoints]) {
  f32v half[kPatch][kPatch];
#pragma GCC unroll 6
  for (int i = 0; i < kPatch; ++i) {
    f32v line[kPatch];
#pragma GCC unroll 6
    for (int j = 0; j < kPatch; ++j) {
      const int64_t from = at[i * kPatch + j];
      line[j] = kInside || from >= 0 ? load(x + from, lanes) : f32v{};
    }
    transform_input(line, half[i]);
  }
#pragma GCC unroll 6
  for (int j = 0; j < kPatch; ++j) {
    f32v column[kPatch], whole[kPatch];
#pragma GCC unroll 6
    for (int i = 0; i < kPatch; ++i) column[i] = half[i][j];
    transform_input(column, whole);
#pragma GCC unroll 6
    for (int i = 0; i < kPatch; ++i) store(to + to_at[i * kPatch + j], whole[i]);
  }
}

}  // namespace sdx::SDX_ISA
