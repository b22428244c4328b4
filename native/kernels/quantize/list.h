// The rows of the family that other files of it define.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

Status dequantize(const Call& call, Plan& plan);
Status dynamic_quantize(const Call& call, Plan& plan);
Status lookup(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
