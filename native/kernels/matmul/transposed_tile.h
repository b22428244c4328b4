// GEMM with a transposed left side, C = A^T B, for sums over pixels: both operands have the depth
// outermost, as channels-last images do, and neither is transposed in memory. The tile is that of
// tile.h; a step along the depth reads one line of A in place of a line per row.
#pragma once

#include "kernels/matmul/tile.h"

namespace sdx::SDX_ISA {

// A stored matrix whose rows are the steps along the depth.
struct DepthRows {
  const float* at;
  int64_t stride;  // floats between rows
};

// C[m x width] (+)= A^T B for A[k x m] and B[k x 32], width <= 32. All 32 columns of B can be read
// and of C be written; those from `width` on are not meaningful. Passes along k should not be much
// longer than kDepth, so that B stays in L1.
void gemm_transposed(int64_t m, int64_t k, const DepthRows& a, const DepthRows& b, int64_t width,
                     const Target& to, bool add);

}  // namespace sdx::SDX_ISA
