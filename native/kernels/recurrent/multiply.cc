// Recurrent products, state x packed weights: streaming kernels for up to four rows, the register
// tiles of the float32 gemm for more.
#include "kernels/recurrent/layer.h"
#include "kernels/recurrent/small_batch.h"

namespace sdx::SDX_ISA {

void multiply_rows(int64_t rows, const float* from, int64_t stride, int64_t k, const Columns& b,
                   const Target& to, float* blocked) {
  float* c = to.c;
  switch (rows) {
    case 0: return;  // an empty batch
    case 1: return multiply_panels<1>(from, stride, k, b.packed, b.first, b.last, c, to.ldc);
    case 2: return multiply_panels<2>(from, stride, k, b.packed, b.first, b.last, c, to.ldc);
    case 3: return multiply_panels<3>(from, stride, k, b.packed, b.first, b.last, c, to.ldc);
    case 4: return multiply_panels<4>(from, stride, k, b.packed, b.first, b.last, c, to.ldc);
    default: break;
  }
  // The gemm tile reads blocks of depth-limited passes; rows are copied into that layout.
  const int64_t passes = passes_of(k);
  for (int64_t p = 0; p < passes; ++p) {
    const int64_t depth = part_begin(k, passes, p);
    copy_rows(blocked + p * rows * kStride, from + depth, stride, rows,
              part_begin(k, passes, p + 1) - depth);
  }
  gemm_passes(rows, k, 0, passes, blocked, b, to, TileEpilogue{});
}

void multiply(const Sequences& s, const float* from, int64_t stride, int64_t first, int64_t last) {
  const Layer& a = *s.layer;
  const int64_t panels = a.padded / kPanel, width = a.width();
  multiply_rows(s.rows, from, stride, a.hidden,
                Columns{s.weights, width, first * panels, last * panels},
                Target{s.gates + first * a.padded, width}, s.blocked);
}

void multiply_units(const Sequences& s, int64_t first, int64_t last) {
  const Layer& a = *s.layer;
  const int64_t panels = a.padded / kPanel;
  for (int64_t g = 0; g < a.gates; ++g)
    multiply_panels<1>(s.hidden, a.padded, a.hidden, s.weights, g * panels + first / kPanel,
                       g * panels + last / kPanel, s.gates + g * a.padded + first, a.width());
}

}  // namespace sdx::SDX_ISA
