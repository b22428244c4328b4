// Kernels of the quantize family: conversions between floats and quantized types, and 8-bit
// matrix products, convolutions, sums and means on quantized tensors.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// Operands: x, scale, zero point. ints: axis, block size.
Status dequantize(const Call& call, Plan& plan);
Status quantize(const Call& call, Plan& plan);
Status dynamic_quantize(const Call& call, Plan& plan);
// Operands: bytes, a table of 256.
Status lookup(const Call& call, Plan& plan);

namespace int8 {

// Operands of the products and convolutions: gemm_int8.h.
Status qmatmul(const Call& call, Plan& plan);
Status qconv(const Call& call, Plan& plan);
Status qdepthwise(const Call& call, Plan& plan);
Status qgrouped(const Call& call, Plan& plan);
Status qgrouped_pack(const Call& call, Plan& plan);
Status qdepthwise_pack(const Call& call, Plan& plan);
Status qgemm_pack(const Call& call, Plan& plan);
Status qadd(const Call& call, Plan& plan);
Status qmean(const Call& call, Plan& plan);

}  // namespace int8
}  // namespace sdx::SDX_ISA
