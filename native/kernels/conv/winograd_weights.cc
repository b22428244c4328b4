// Winograd weight transform G g G^T, at run time from packed weights (see winograd.cc for why). A
// 1-d kernel is read as the coefficients of a polynomial; its transform is the polynomial's values
// at the six points.
#include "kernels/conv/winograd.h"
#include "kernels/matmul/tile.h"

namespace sdx::SDX_ISA {
namespace {

// Even and odd terms of the polynomial at a point: p(x) = even + odd and p(-x) = even - odd.
template <int K>
SDX_INLINE void halves(const f32v (&g)[K], int point, f32v& even, f32v& odd) {
  even = weight_factor(point, 0) * g[0], odd = weight_factor(point, 1) * g[1];
#pragma GCC unroll 4
  for (int i = 2; i < K; ++i) (i % 2 == 0 ? even : odd) += weight_factor(point, i) * g[i];
}

// G g along one axis: values at 0, +-kA, +-kB and infinity (the leading coefficient).
template <int K>
SDX_INLINE void transform(const f32v (&g)[K], f32v (&to)[kPatch]) {
  to[0] = g[0];
#pragma GCC unroll 2
  for (int point = 0; point < 2; ++point) {
    f32v even, odd;
    halves(g, point, even, odd);
    to[1 + 2 * point] = even + odd;
    to[2 + 2 * point] = even - odd;
  }
  to[kPatch - 1] = g[K - 1];
}

}  // namespace

// G g G^T for each vector of (channel, output channel): columns, then rows.
template <int K>
void transform_weights(const float* panel, int64_t channels, int64_t n, float* to, int64_t stride) {
  for (int64_t at = 0; at < n * kPanel; at += kLanes) {
    f32v half[kPatch][K];
#pragma GCC unroll 5
    for (int b = 0; b < K; ++b) {
      f32v column[K], six[kPatch];
#pragma GCC unroll 5
      for (int a = 0; a < K; ++a) column[a] = load(panel + (K * a + b) * channels * kPanel + at);
      transform(column, six);
#pragma GCC unroll 6
      for (int row = 0; row < kPatch; ++row) half[row][b] = six[row];
    }
#pragma GCC unroll 6
    for (int row = 0; row < kPatch; ++row) {
      f32v six[kPatch];
      transform(half[row], six);
#pragma GCC unroll 6
      for (int i = 0; i < kPatch; ++i) store(to + (row * kPatch + i) * stride + at, six[i]);
    }
  }
}

template void transform_weights<3>(const float*, int64_t, int64_t, float*, int64_t);
template void transform_weights<5>(const float*, int64_t, int64_t, float*, int64_t);

}  // namespace sdx::SDX_ISA
