// The rows of the family, each prepared in a file of its own kind.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

Status fma_limit(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
