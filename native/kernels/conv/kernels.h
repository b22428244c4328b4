// The rows of the family, each prepared in a file of its own kind.
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
Status conv_transpose_pack(const Call& call, Plan& plan);
Status conv_winograd_f32(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
