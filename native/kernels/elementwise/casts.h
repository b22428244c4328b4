// Casts between element types, by ONNX's rules for Cast.
#pragma once

#include <type_traits>

#include "kernels/elements.h"
#include "kernels/elementwise/instruction.h"

namespace sdx::SDX_ISA {
namespace {

template <class T>
constexpr bool kIsFloat = T(0.5) != T(0);

// Out-of-range floats wrap as in registers: narrow integers are truncated from 32 or 64 bits,
// unsigned ones are converted through the wider signed type. ONNX leaves the result undefined; on
// x86-64 onnxruntime and numpy give the same, but for u32 of numbers outside [-2^31, 2^32).
template <class To, class From>
SDX_INLINE To converted(From x) {
  if constexpr (std::is_same_v<From, Bool>) {
    return To(x.value != 0);  // any nonzero byte is true
  } else if constexpr (!kIsFloat<From> || kIsFloat<To>) {
    return To(x);
  } else if constexpr (sizeof(To) < 4) {
    return To(int32_t(x));
  } else if constexpr (sizeof(To) == 4 && To(-1) > To(0)) {
    return To(int64_t(x));
  } else if constexpr (sizeof(To) == 8 && To(-1) > To(0)) {
    constexpr From half = From(9223372036854775808.0);
    return x >= half ? To(int64_t(x - half)) ^ (To(1) << 63) : To(int64_t(x));
  } else {
    return To(x);
  }
}

// Integers of 8 and 16 bits from a wider type, whole vectors at a time; returns how many. GCC
// converts single elements in such loops.
template <class From, class To>
SDX_INLINE int64_t narrowed(const From* a, int64_t n, To* out) {
  typedef To Narrow __attribute__((vector_size(kLanesOf<From> * sizeof(To))));
  int64_t i = 0;
  for (; i + kLanesOf<From> <= n; i += kLanesOf<From>) {
    Narrow y;
    if constexpr (kIsFloat<From>)
      y = __builtin_convertvector(__builtin_convertvector(load(a + i), i32v), Narrow);
    else
      y = __builtin_convertvector(load(a + i), Narrow);
    memcpy(out + i, &y, sizeof y);
  }
  return i;
}

// Stride 0: all copies are converted together.
template <class From, class To>
bool cast(const LoopArgs& s) {
  const From* a = static_cast<const From*>(s.in[0]);
  To* out = static_cast<To*>(s.out);
  if (s.stride[0] == 0) {
    const To x = converted<To>(a[0]);
    for (int64_t i = 0; i < s.n; ++i) out[i] = x;
  } else {
    int64_t i = 0;
    if constexpr (sizeof(To) <= 2 && (std::is_same_v<From, float> || std::is_same_v<From, int64_t>))
      i = narrowed(a, s.n, out);
    for (; i < s.n; ++i) out[i] = converted<To>(a[i]);
  }
  return true;
}

template <class From>
bool cast_to_bool(const LoopArgs& s) {
  using T = std::conditional_t<std::is_same_v<From, Bool>, uint8_t, From>;
  return test<T, [](Vec<T> a, T, T) { return a != T(0); }>(s);
}

template <class From>
LoopFn cast_from(DType to) {
  switch (to) {
    case DType::f32: return cast<From, float>;
    case DType::f64: return cast<From, double>;
    case DType::i8: return cast<From, int8_t>;
    case DType::u8: return cast<From, uint8_t>;
    case DType::i16: return cast<From, int16_t>;
    case DType::u16: return cast<From, uint16_t>;
    case DType::i32: return cast<From, int32_t>;
    case DType::u32: return cast<From, uint32_t>;
    case DType::i64: return cast<From, int64_t>;
    case DType::u64: return cast<From, uint64_t>;
    case DType::boolean: return cast_to_bool<From>;
    default: return nullptr;
  }
}

}  // namespace
}  // namespace sdx::SDX_ISA
