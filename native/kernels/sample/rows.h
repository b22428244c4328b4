// The rows of the family, by the file that has them.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// Inputs as in ONNX. ints: mode, padding, align_corners.
Status grid_sample(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
