// Element types of kernels, dispatch over them, and conversion of elements of any type and stride
// to numbers to compute with, and back. Halves compute in float, everything else in its own type.
#pragma once

#include <type_traits>

#include "kernels/kernel.h"
#include "simd/half.h"

namespace sdx::SDX_ISA {

// Distinguishes bool from uint8_t.
struct Bool {
  uint8_t value;
};
// The DType of a C++ element type.
template <class T>
constexpr DType kDType = DType::none;
template <>
inline constexpr DType kDType<float> = DType::f32;
template <>
inline constexpr DType kDType<double> = DType::f64;
template <>
inline constexpr DType kDType<F16> = DType::f16;
template <>
inline constexpr DType kDType<BF16> = DType::bf16;
template <>
inline constexpr DType kDType<int8_t> = DType::i8;
template <>
inline constexpr DType kDType<uint8_t> = DType::u8;
template <>
inline constexpr DType kDType<int16_t> = DType::i16;
template <>
inline constexpr DType kDType<uint16_t> = DType::u16;
template <>
inline constexpr DType kDType<int32_t> = DType::i32;
template <>
inline constexpr DType kDType<uint32_t> = DType::u32;
template <>
inline constexpr DType kDType<int64_t> = DType::i64;
template <>
inline constexpr DType kDType<uint64_t> = DType::u64;
template <>
inline constexpr DType kDType<Bool> = DType::boolean;

template <class... Ts>
struct Types {};
using Floats = Types<float, double, F16, BF16>;

// Dispatch by element type: calls f.operator()<T>() for the type among Ts that `dtype` stands for.
template <class F, class... Ts>
SDX_INLINE Status visit(DType dtype, Types<Ts...>, F&& f) {
  Status status = Status::fail("the kernel is not implemented for element type %s", name_of(dtype));
  (void)((dtype == kDType<Ts> && (status = f.template operator()<Ts>(), true)) || ...);
  return status;
}

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, F16> || std::is_same_v<T, BF16>;
template <class T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || kIsHalf<T>;
// The type that arithmetic on a float type is done in.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// One element as a number of type C.
template <class C, class T>
SDX_INLINE C number(T x) {
  if constexpr (kIsHalf<T>)
    return C(to_float(&x));
  else if constexpr (std::is_same_v<T, Bool>)
    return C(x.value);
  else
    return C(x);
}

// A number as one element of type T, rounded once from float if T is a half type.
template <class T, class C>
SDX_INLINE T element(C x) {
  if constexpr (kIsHalf<T>) {
    T made;
    store_float(&made, splat(float(x)), Part{1});
    return made;
  } else if constexpr (std::is_same_v<T, Bool>) {
    return {uint8_t(x != 0)};
  } else {
    return T(x);
  }
}

// Whether elements of type T can be read as numbers of type C without conversion.
template <class T, class C>
constexpr bool kReadsInPlace =
    std::is_same_v<T, C> || (std::is_same_v<T, Bool> && std::is_same_v<C, uint8_t>) ||
    (std::is_integral_v<T> && std::is_integral_v<C> && sizeof(T) == sizeof(C));

// n strided elements as contiguous numbers: in place if possible, else converted into `buffer`.
template <class C, class T>
SDX_INLINE const C* read_elements(const T* x, int64_t stride, int64_t n, C* buffer) {
  if constexpr (kReadsInPlace<T, C>)
    if (stride == 1) return reinterpret_cast<const C*>(x);
  if constexpr (kIsHalf<T> && std::is_same_v<C, float>)
    if (stride == 1) {
      vloop(n, [&](int64_t i, auto lanes) { store(buffer + i, load_float(x + i, lanes), lanes); });
      return buffer;
    }
  if (stride == 1)
    for (int64_t i = 0; i < n; ++i) buffer[i] = number<C>(x[i]);
  else
    for (int64_t i = 0; i < n; ++i) buffer[i] = number<C>(x[i * stride]);
  return buffer;
}

// Where to compute results that write_elements() then stores to `y`: in place, or in `buffer`.
template <class C, class T>
SDX_INLINE C* result_buffer(T* y, C* buffer) {
  if constexpr (std::is_same_v<T, C>)
    return y;
  else
    return buffer;
}
template <class C, class T>
SDX_INLINE void write_elements(T* y, const C* numbers, int64_t n) {
  if constexpr (kIsHalf<T> && std::is_same_v<C, float>)
    vloop(n, [&](int64_t i, auto lanes) { store_float(y + i, load(numbers + i, lanes), lanes); });
  else if constexpr (!std::is_same_v<T, C>)
    for (int64_t i = 0; i < n; ++i) y[i] = element<T>(numbers[i]);
}

}  // namespace sdx::SDX_ISA
