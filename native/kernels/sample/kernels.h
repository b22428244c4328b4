// Kernels of the sample family: reads of images at fractional coordinates.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// The im2col of DeformConv. Inputs: x, offset, optional mask. ints: kernel, strides, dilations and
// begin pads along each axis, and offset_group.
Status deform_columns(const Call& call, Plan& plan);

// Inputs as in ONNX. ints: mode, padding, align_corners.
Status grid_sample(const Call& call, Plan& plan);

// Inputs as in ONNX. ints: half_pixel, whether the mode is max, sampling_ratio.
// floats: spatial_scale.
Status roi_align(const Call& call, Plan& plan);
// Inputs as in ONNX. floats: spatial_scale.
Status max_roi_pool(const Call& call, Plan& plan);

// Inputs: X, rois and batch_indices of CropAndResize. ints: whether the mode is nearest.
// floats: extrapolation_value.
Status crop_and_resize(const Call& call, Plan& plan);

// Inputs: theta, and size where it is not constant. ints: align_corners.
Status affine_grid(const Call& call, Plan& plan);
Status affine_grid_sizes(const Call& call, const Data& data, View* out);

}  // namespace sdx::SDX_ISA
