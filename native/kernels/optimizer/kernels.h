// Kernels of the optimizer family: `_step`, one step over all parameters of a model, and
// `_update`, the step of one parameter as a node of a graph; both in place.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// adafactor.cc
Status adafactor_step(const Call& call, Plan& plan);
Status adafactor_update(const Call& call, Plan& plan);

// elementwise.cc
Status adam_step(const Call& call, Plan& plan);
Status lion_step(const Call& call, Plan& plan);
Status sgd_step(const Call& call, Plan& plan);
Status adam_update(const Call& call, Plan& plan);
Status sgd_update(const Call& call, Plan& plan);

// training_step.cc
Status step_control(const Call& call, Plan& plan);
Status gradient_norm(const Call& call, Plan& plan);
Status accumulate_gradient(const Call& call, Plan& plan);
Status accumulate_in_place(const Call& call, Plan& plan);
Status store_state(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
