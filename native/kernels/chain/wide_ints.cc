// Steps on integers of 32 and 64 bits.
#include "kernels/chain/integers.h"

namespace sdx::SDX_ISA {

StepFn find_wide_step(ChainOp op, DType type) {
  switch (type) {
    case DType::i32: return find_in(Ints<int32_t>::kSteps, op);
    case DType::u32: return find_in(Ints<uint32_t>::kSteps, op);
    case DType::i64: return find_in(Ints<int64_t>::kSteps, op);
    case DType::u64: return find_in(Ints<uint64_t>::kSteps, op);
    default: return nullptr;
  }
}

}  // namespace sdx::SDX_ISA
