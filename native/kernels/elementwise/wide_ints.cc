// Loops on integers of 32 and 64 bits.
#include "kernels/elementwise/integers.h"

namespace sdx::SDX_ISA {

LoopFn find_wide_loop(ChainOp op, DType type) {
  switch (type) {
    case DType::i32: return find_in(Ints<int32_t>::kLoops, op);
    case DType::u32: return find_in(Ints<uint32_t>::kLoops, op);
    case DType::i64: return find_in(Ints<int64_t>::kLoops, op);
    case DType::u64: return find_in(Ints<uint64_t>::kLoops, op);
    default: return nullptr;
  }
}

}  // namespace sdx::SDX_ISA
