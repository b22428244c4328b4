// Reductions of the Scatter ops: how an update is combined with the element that it meets.
#pragma once

#include "kernels/move/untyped.h"

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
// NaN propagates from either side: a NaN in b makes every comparison false. T may be a vector. Two
// steps, since the first is one instruction: a branch on the larger number would be mispredicted.
struct LargestOp {
  template <class T>
  SDX_INLINE T operator()(T a, T b) const {
    const T top = a > b ? a : b;
    return a != a ? a : top;
  }
};
struct SmallestOp {
  template <class T>
  SDX_INLINE T operator()(T a, T b) const {
    const T low = a < b ? a : b;
    return a != a ? a : low;
  }
};

// Calls f<T>(op). Adding and multiplying runs on unsigned types, whose overflow wraps around as
// numpy's does, so signed and unsigned elements share code; min and max need the true type, and
// replacing only the element size.
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
  return visit_element_size(
      size_of(dtype), [&]<class T>() -> Status { return f.template operator()<T>(ReplaceOp{}); });
}

}  // namespace sdx::SDX_ISA
