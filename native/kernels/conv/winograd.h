// Winograd's F(4x4, 3x3) and F(2x2, 5x5): outputs in tiles of 4 x 4 or 2 x 2, each from 6 x 6
// inputs, with 36 products in point of 144 or 100. Both have the same points, and so the same
// patches: 0, infinity, and plus and minus kA and kB, whose product is 1, which keeps the errors of
// the transforms well below those of the usual 1 and 2.
#pragma once

#include <cstdint>

namespace sdx::SDX_ISA {

constexpr int kPatch = 6;
constexpr int kPoints = kPatch * kPatch;
constexpr double kA = 0.70710678118654752440, kB = 1.41421356237309504880;

// Weights of all places, `stride` floats apart, for n channels of a panel of `channels` that is
// packed with its K x K taps outermost.
template <int K>
void transform_weights(const float* panel, int64_t channels, int64_t n, float* to, int64_t stride);

}  // namespace sdx::SDX_ISA
