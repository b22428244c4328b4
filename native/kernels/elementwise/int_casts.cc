// Casts from integers and bools.
#include "kernels/elementwise/casts.h"

namespace sdx::SDX_ISA {

// A file of its own: the loops of all pairs of types take long to compile.
LoopFn find_int_cast_loop(DType type, DType to) {
  switch (type) {
    case DType::boolean: return cast_from<Bool>(to);
    case DType::u8: return cast_from<uint8_t>(to);
    case DType::i8: return cast_from<int8_t>(to);
    case DType::i16: return cast_from<int16_t>(to);
    case DType::u16: return cast_from<uint16_t>(to);
    case DType::i32: return cast_from<int32_t>(to);
    case DType::u32: return cast_from<uint32_t>(to);
    case DType::i64: return cast_from<int64_t>(to);
    case DType::u64: return cast_from<uint64_t>(to);
    default: return nullptr;
  }
}

}  // namespace sdx::SDX_ISA
