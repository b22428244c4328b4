// Arguments and phases of Resize.
#pragma once

#include "kernels/kernel.h"
#include "kernels/resize/taps.h"

namespace sdx::SDX_ISA {

// Input rows that one output row is interpolated from: 4 taps on three axes, or 2 on six.
constexpr int kMaxRows = 64;

struct ResizeArgs {
  int n_axes = 0;  // from the first resized axis to the last one
  Taps axes[kMaxRank];
  int64_t inner = 1;       // elements after these axes (channels, if they are last)
  int64_t size = 0;        // bytes of an element
  int64_t pitch = 1;       // output elements between neighbours along the last resized axis
  int64_t row_stride = 1;  // output elements between rows along that axis
  // An output with gaps after the resized axes (an input of a fused Concat): a row is computed in
  // local memory and copied in n_pieces pieces. 0: there are no gaps.
  int64_t n_pieces = 0, piece = 0, piece_pitch = 0;
  bool crops = false;               // tf_crop_and_resize: outputs may be outside the input
  uint64_t extrapolation_bits = 0;  // the bits of extrapolation_value
  bool is_dynamic = false;          // scales or roi are data: these arguments are made at run time
};

// The arguments: those of the plan, or those that phase 1 put into scratch memory.
SDX_INLINE const ResizeArgs& args_of(const void* args, const Data& data) {
  const auto* a = static_cast<const ResizeArgs*>(args);
  return a->is_dynamic ? *reinterpret_cast<const ResizeArgs*>(data.scratch) : *a;
}

Status interpolate_rows(const void* args, const Data& data, int64_t begin, int64_t end);
Status nearest_rows(const void* args, const Data& data, int64_t begin, int64_t end);

Status resize(const Call& call, Plan& plan);
Status resize_sizes(const Call& call, const Data& data, View* out);

}  // namespace sdx::SDX_ISA
