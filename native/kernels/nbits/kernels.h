// Kernels of the family that are planned in files of their own.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA::nbits {

Status gather_dequantized(const Call& call, Plan& plan);  // gather.cc

}  // namespace sdx::SDX_ISA::nbits
