// What the phases of Resize are told, and the phases.
#pragma once

#include "kernels/kernel.h"
#include "kernels/resize/taps.h"

namespace sdx::SDX_ISA {

constexpr int kMaxRows =
    64;  // that one output row is mixed from: 4 taps on three axes, or 2 on six

struct ResizeArgs {
  int n_axes = 0;  // between the first and the last resized one
  Taps axes[kMaxRank];
  int64_t inner = 1;      // elements behind them
  int64_t size = 0;       // bytes of an element
  int64_t pitch = 1;      // elements of the output from one run of inner ones to the next
  int64_t row_pitch = 1;  // and from one row of such runs to the next
  // Where what lies behind the axes has gaps itself, a row is made elsewhere and then moved:
  int64_t n_pieces = 0, piece = 0, piece_pitch = 0;  // so many, of so many elements; 0: it is not
  bool crops = false;                                // outputs may lie outside the input
  uint64_t outer_bits = 0;                           // an element for these
  bool is_open = false;  // these arguments are made when it runs, in scratch memory
};

// The arguments of a run.
SDX_INLINE const ResizeArgs& args_of(const void* args, const Data& data) {
  const auto* a = static_cast<const ResizeArgs*>(args);
  return a->is_open ? *reinterpret_cast<const ResizeArgs*>(data.scratch) : *a;
}

Status mixed_rows(const void* args, const Data& data, int64_t begin, int64_t end);
Status picked_rows(const void* args, const Data& data, int64_t begin, int64_t end);

Status resize(const Call& call, Plan& plan);
Status resize_sizes(const Call& call, const Data& data, View* out);

}  // namespace sdx::SDX_ISA
