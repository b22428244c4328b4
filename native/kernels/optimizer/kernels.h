// Kernels of the optimizer family: one step over all parameters of a model, in place.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// adafactor.cc
Status adafactor_step(const Call& call, Plan& plan);

// elementwise.cc
Status adam_step(const Call& call, Plan& plan);
Status lion_step(const Call& call, Plan& plan);
Status sgd_step(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
