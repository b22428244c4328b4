// The rows of the family, by the file that has them.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

Status copy(const Call& call, Plan& plan);
Status concat(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
