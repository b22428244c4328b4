// Finds the loop of an instruction.
#include "kernels/chain/step.h"

namespace sdx::SDX_ISA {

StepFn find_step(ChainOp op, DType type, DType) {
  StepFn run = nullptr;
  if (type == DType::f32) {
    run = find_arithmetic_step(op);
    if (run == nullptr) run = find_math_step(op);
    if (run == nullptr) run = find_activation_step(op);
  }
  return run;
}

}  // namespace sdx::SDX_ISA
