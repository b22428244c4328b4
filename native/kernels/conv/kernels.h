// The kernels of the family. Images have the channels last, [batch, *spatial, channels] (NHWC): a
// row of a window is then a few runs of contiguous floats, 1x1 convolutions are plain matmuls, and
// channel counts need no padding to blocks of 16.
//
// Dispatch is by providers/cpu/conv.py, from kernel, stride, dilation, group, channel counts and
// output size:
//   conv_f32, conv_bf16      implicit GEMM over packed weights (implicit_gemm.cc, im2col.cc)
//   conv_unpacked_f32        the same with weights that are not constant
//   conv_winograd_f32        3x3 and 5x5 kernels of stride 1: Winograd (winograd.cc)
//   conv_few_channels_f32    up to twelve output channels (few_channels.cc); falls back to
//                            conv_f32 where that is faster
//   conv_depthwise_f32       groups with few channels (depthwise.cc)
//   conv_transpose_f32       ConvTranspose by phases (transpose.cc); one of stride 1 is a
//                            convolution with flipped weights, and runs as such
//   conv_*_unpacked_f32      Winograd, depthwise and transposed with weights that are not constant
//                            (unpacked.cc); flipped: the weights of a ConvTranspose of stride 1
//   conv_weight_gradient_f32 the gradient of the weights, as a GEMM (weight_gradient.cc)
//   conv_winograd_gradient_f32  the same by Winograd (winograd_gradient.cc)
//   conv_pack*, conv_transpose_pack   pack weights into panels, once (pack.cc)
// All kernels but the transposed one read the same packed layout (pack.h).
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

Status conv_f32(const Call& call, Plan& plan);
Status conv_bf16(const Call& call, Plan& plan);
Status col2im(const Call& call, Plan& plan);
Status conv_unpacked_f32(const Call& call, Plan& plan);
Status conv_pack(const Call& call, Plan& plan);
Status conv_pack_bf16(const Call& call, Plan& plan);
Status conv_depthwise_f32(const Call& call, Plan& plan);
Status conv_few_channels_f32(const Call& call, Plan& plan);
Status conv_transpose_f32(const Call& call, Plan& plan);
Status conv_depthwise_unpacked_f32(const Call& call, Plan& plan);
Status conv_flipped_unpacked_f32(const Call& call, Plan& plan);
Status conv_transpose_unpacked_f32(const Call& call, Plan& plan);
Status conv_weight_gradient_f32(const Call& call, Plan& plan);
Status conv_transpose_pack(const Call& call, Plan& plan);
Status conv_winograd_f32(const Call& call, Plan& plan);
Status conv_winograd_flipped_unpacked_f32(const Call& call, Plan& plan);
Status conv_winograd_gradient_f32(const Call& call, Plan& plan);
Status conv_winograd_unpacked_f32(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
