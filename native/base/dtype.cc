#include "base/dtype.h"

namespace sdx {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::none: break;
    case DType::f32: return "f32";
    case DType::u8: return "u8";
    case DType::i8: return "i8";
    case DType::u16: return "u16";
    case DType::i16: return "i16";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::string: return "str";
    case DType::boolean: return "bool";
    case DType::f16: return "f16";
    case DType::f64: return "f64";
    case DType::u32: return "u32";
    case DType::u64: return "u64";
    case DType::c64: return "c64";
    case DType::c128: return "c128";
    case DType::bf16: return "bf16";
    case DType::f8e4m3fn: return "f8e4m3fn";
    case DType::f8e4m3fnuz: return "f8e4m3fnuz";
    case DType::f8e5m2: return "f8e5m2";
    case DType::f8e5m2fnuz: return "f8e5m2fnuz";
    case DType::u4: return "u4";
    case DType::i4: return "i4";
    case DType::u2: return "u2";
    case DType::i2: return "i2";
  }
  return "unknown";
}

}  // namespace sdx
