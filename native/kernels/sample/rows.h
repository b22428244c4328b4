// The rows of the family, by the file that has them.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// Inputs: x, offset, mask or none. ints: kernel, strides, dilations and padding in front along each
// axis, and the groups of offsets.
Status deform_columns(const Call& call, Plan& plan);

// Inputs as in ONNX. ints: mode, padding, align_corners.
Status grid_sample(const Call& call, Plan& plan);

// Inputs as in ONNX. ints: half_pixel, whether the largest is meant, sampling_ratio.
// floats: spatial_scale.
Status roi_align(const Call& call, Plan& plan);
// Inputs as in ONNX. floats: spatial_scale.
Status max_roi_pool(const Call& call, Plan& plan);

// Inputs: theta, and size where it is known only when it runs. ints: align_corners.
Status affine_grid(const Call& call, Plan& plan);
Status affine_grid_sizes(const Call& call, const Data& data, View* out);

}  // namespace sdx::SDX_ISA
