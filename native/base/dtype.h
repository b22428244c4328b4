// Element types with the numbers of ONNX's TensorProto.DataType. Elements of types below 8 bits
// (int4, ...) are unpacked to one per byte before a kernel reads them.
#pragma once

#include <cstdint>

namespace sdx {

enum class DType : uint8_t {
  none = 0,
  f32 = 1,
  u8 = 2,
  i8 = 3,
  u16 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  string = 8,
  boolean = 9,
  f16 = 10,
  f64 = 11,
  u32 = 12,
  u64 = 13,
  c64 = 14,
  c128 = 15,
  bf16 = 16,
  f8e4m3fn = 17,
  f8e4m3fnuz = 18,
  f8e5m2 = 19,
  f8e5m2fnuz = 20,
  u4 = 21,
  i4 = 22,
  u2 = 25,
  i2 = 26,
};

// The short name that Python's messages use, too (graph/dtype.py): f32.
const char* name_of(DType dtype);

// Bytes of one element; types below 8 bits take one byte each. Strings are Text records.
constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::i64:
    case DType::u64:
    case DType::f64:
    case DType::c64: return 8;
    case DType::u16:
    case DType::i16:
    case DType::f16:
    case DType::bf16: return 2;
    case DType::string:
    case DType::c128: return 16;
    default: return 1;
  }
}

}  // namespace sdx
