// Winograd convolution F(4x4, 3x3) and F(2x2, 5x5) (Lavin and Gray): an output tile of 4 x 4 or 2 x
// 2 is computed from a 6 x 6 input patch with 36 multiplications per channel in place of 144 or
// 100.
//
// Both use the same six interpolation points, and so the same input transform: 0, infinity, +-kA
// and +-kB. kA = 1 / sqrt(2) and kB = sqrt(2) have product 1, which keeps the rounding errors of
// the transforms well below those of the usual points 1 and 2.
#pragma once

#include <cstdint>

namespace sdx::SDX_ISA {

constexpr int kPatch = 6;
constexpr int kPoints = kPatch * kPatch;  // elements of a transformed patch: one GEMM each
constexpr double kA = 0.70710678118654752440, kB = 1.41421356237309504880;

// Interpolation points 1 and 3 and their scale factors, which the output transform then need not
// apply; points 2 and 4 are the negative ones.
constexpr double kNodes[] = {kA, kB}, kScales[] = {-1 / 1.5, 1 / 6.0};

constexpr float weight_factor(int point, int power) {
  double by = kScales[point];
  for (int i = 0; i < power; ++i) by *= kNodes[point];
  return float(by);
}

// Transformed weights of all points, `stride` floats apart, for n channels of a packed panel with
// `channels` channels and K x K taps.
template <int K>
void transform_weights(const float* panel, int64_t channels, int64_t n, float* to, int64_t stride);

}  // namespace sdx::SDX_ISA
