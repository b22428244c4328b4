// Transforms packed 3 x 3 weights for Winograd's convolution, while it runs: transformed they would
// be four times as large, and would come from further away than it takes to make them.
#include "kernels/conv/winograd.h"
#include "kernels/gemm/tile.h"

namespace sdx::SDX_ISA {
namespace {

// What three weights are multiplied by for one of six values of their polynomial, scaled for the
// transform back.
struct Factors {
  float first, second, third;
};
constexpr Factors factors(double point, double scale) {
  return {float(scale), float(scale * point), float(scale * point * point)};
}
constexpr Factors kFactors[kPatch] = {{1, 0, 0},
                                      factors(kA, -1 / 1.5),
                                      factors(-kA, -1 / 1.5),
                                      factors(kB, 1 / 6.0),
                                      factors(-kB, 1 / 6.0),
                                      {0, 0, 1}};

// The sum and the difference of what is even and what is odd in a point.
SDX_INLINE void pair(const f32v (&g)[3], const Factors& by, float* to, int64_t stride) {
  const f32v even = by.first * g[0] + by.third * g[2], odd = by.second * g[1];
  store(to, even + odd);
  store(to + stride, even - odd);
}

// A row of places from what its three columns of weights become.
SDX_INLINE void store_row(const f32v (&g)[3], float* to, int64_t stride) {
  store(to, g[0]);
  pair(g, kFactors[1], to + stride, stride);
  pair(g, kFactors[3], to + 3 * stride, stride);
  store(to + 5 * stride, g[2]);
}

}  // namespace

void transform_weights(const float* panel, int64_t channels, int64_t n, float* to, int64_t stride) {
  for (int64_t at = 0; at < n * kPanel; at += kLanes) {
    f32v w[3][3];
    for (int i = 0; i < 9; ++i) w[i / 3][i % 3] = load(panel + i * channels * kPanel + at);
#pragma GCC unroll 6
    for (int row = 0; row < kPatch; ++row) {
      const Factors by = kFactors[row];
      f32v g[3];
      for (int b = 0; b < 3; ++b)
        g[b] = row == 0            ? w[0][b]
               : row == kPatch - 1 ? w[2][b]
                                   : by.first * w[0][b] + by.second * w[1][b] + by.third * w[2][b];
      store_row(g, to + row * kPatch * stride + at, stride);
    }
  }
}

}  // namespace sdx::SDX_ISA
