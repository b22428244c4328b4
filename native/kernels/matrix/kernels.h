// Kernels of the matrix family: stacks of square matrices.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

Status determinant(const Call& call, Plan& plan);
Status inverse(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
