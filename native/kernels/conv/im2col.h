// im2col on the fly: rows of the A matrix of an implicit GEMM. Row `o` has all elements that the
// window of output pixel `o` reads, zeros in the padding; rows exist only for one block at a time.
#pragma once

#include "kernels/window.h"

namespace sdx::SDX_ISA {

// Element (tap, c) of a row is channel first + c of the pixel that the tap reads.
struct Im2Col {
  Window window;
  int64_t channels = 0;      // of the image
  int64_t first = 0, n = 0;  // channels of the current group
  int64_t taps_per_run = 1;  // taps along the last axis whose channels are contiguous

  SDX_INLINE int64_t depth() const { return window.taps() * n; }
};

// Without dilation and groups a whole line of the window is one contiguous run.
SDX_INLINE Im2Col make_im2col(const Window& window, int64_t channels, int64_t n) {
  const Axis& last = window.axis[kSpatial - 1];
  const bool is_run = n == channels && (last.dilation == 1 || last.taps == 1);
  return {window, channels, 0, n, is_run ? last.taps : 1};
}

// Elements [depth, depth + depths) of rows [row, row + rows), `stride` floats apart. Up to a vector
// after them is overwritten.
void im2col_rows(const Im2Col& im2col, const float* x, float* to, int64_t stride, int64_t row,
                 int64_t rows, int64_t depth, int64_t depths);

}  // namespace sdx::SDX_ISA
