// What an update does to the element that is there.
#pragma once

#include "kernels/move/words.h"

namespace sdx::SDX_ISA {

enum Reduction : int64_t { kReplace, kAdd, kMultiply, kLargest, kSmallest };

struct ReplaceOp {
  template <class T>
  SDX_INLINE T operator()(T, T b) const {
    return b;
  }
};
struct AddOp {
  template <class T>
  SDX_INLINE T operator()(T a, T b) const {
    return T(a + b);
  }
};
struct MultiplyOp {
  template <class T>
  SDX_INLINE T operator()(T a, T b) const {
    return T(a * b);
  }
};
// A NaN on either side is the result. These are for vectors too, whose truth has no ||.
struct LargestOp {
  template <class T>
  SDX_INLINE T operator()(T a, T b) const {
    return (a != a) | (a > b) ? a : b;
  }
};
struct SmallestOp {
  template <class T>
  SDX_INLINE T operator()(T a, T b) const {
    return (a != a) | (a < b) ? a : b;
  }
};

// Calls f<T>(op). Sums and products of integers are taken of unsigned ones, which wrap around.
template <class F>
SDX_INLINE Status visit_reduction(Reduction reduction, DType dtype, F&& f) {
  auto ordered = [&](auto op) -> Status {
    switch (dtype) {
      case DType::f32: return f.template operator()<float>(op);
      case DType::f64: return f.template operator()<double>(op);
      case DType::i8: return f.template operator()<int8_t>(op);
      case DType::i16: return f.template operator()<int16_t>(op);
      case DType::i32: return f.template operator()<int32_t>(op);
      case DType::i64: return f.template operator()<int64_t>(op);
      case DType::u8: return f.template operator()<uint8_t>(op);
      case DType::u16: return f.template operator()<uint16_t>(op);
      case DType::u32: return f.template operator()<uint32_t>(op);
      default: return f.template operator()<uint64_t>(op);
    }
  };
  auto wrapping = [&](auto op) -> Status {
    if (dtype == DType::f32) return f.template operator()<float>(op);
    if (dtype == DType::f64) return f.template operator()<double>(op);
    switch (size_of(dtype)) {
      case 1: return f.template operator()<uint8_t>(op);
      case 2: return f.template operator()<uint16_t>(op);
      case 4: return f.template operator()<uint32_t>(op);
      default: return f.template operator()<uint64_t>(op);
    }
  };
  switch (reduction) {
    case kAdd: return wrapping(AddOp{});
    case kMultiply: return wrapping(MultiplyOp{});
    case kLargest: return ordered(LargestOp{});
    case kSmallest: return ordered(SmallestOp{});
    default: break;
  }
  return visit_word(size_of(dtype),
                    [&]<class T>() -> Status { return f.template operator()<T>(ReplaceOp{}); });
}

}  // namespace sdx::SDX_ISA
