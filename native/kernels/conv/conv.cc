// The table of convolution kernels.
#include "kernels/conv/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"col2im", Accepts::contiguous, col2im},
    {"conv_f32", Accepts::contiguous, conv_f32},
    {"conv_bf16", Accepts::contiguous, conv_bf16, nullptr, true},
    {"conv_unpacked_f32", Accepts::contiguous, conv_unpacked_f32},
    {"conv_pack", Accepts::contiguous, conv_pack},
    {"conv_pack_bf16", Accepts::contiguous, conv_pack_bf16, nullptr, true},
    {"conv_depthwise_f32", Accepts::contiguous, conv_depthwise_f32},
    {"conv_depthwise_unpacked_f32", Accepts::contiguous, conv_depthwise_unpacked_f32},
    {"conv_flipped_unpacked_f32", Accepts::contiguous, conv_flipped_unpacked_f32},
    {"conv_transpose_unpacked_f32", Accepts::contiguous, conv_transpose_unpacked_f32},
    {"conv_weight_gradient_f32", Accepts::contiguous, conv_weight_gradient_f32},
    {"conv_few_channels_f32", Accepts::contiguous, conv_few_channels_f32},
    {"conv_transpose_f32", Accepts::contiguous, conv_transpose_f32},
    {"conv_transpose_pack", Accepts::contiguous, conv_transpose_pack},
    {"conv_winograd_f32", Accepts::contiguous, conv_winograd_f32},
    {"conv_winograd_gradient_f32", Accepts::contiguous, conv_winograd_gradient_f32},
    {"conv_winograd_flipped_unpacked_f32", Accepts::contiguous, conv_winograd_flipped_unpacked_f32},
    {"conv_winograd_unpacked_f32", Accepts::contiguous, conv_winograd_unpacked_f32},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(conv, kKernels)
