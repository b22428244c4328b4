// Quantized types as the loops of QuantizeLinear and DequantizeLinear see them: how codes are
// stored, their bounds, and the formats of 8-bit floats.
#pragma once

#include "kernels/kernel.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA {

// An integer of `bits` bits. int32 is only decoded (DequantizeLinear).
template <class S, int bits = int(8 * sizeof(S))>
struct IntegerCode {
  using Stored = S;
  // Whether quantize_run applies, which packs whole codes of 8 and 16 bits only.
  static constexpr bool kIsWhole = bits == 8 * sizeof(S) && bits <= 16;
  static constexpr float kLowest = S(-1) < S(0) ? -float(1 << (bits - 1)) : 0.0f;
  static constexpr float kHighest = kLowest + float((int64_t(1) << bits) - 1);

  // Of a narrow integer, only the low bits of a byte count.
  SDX_INLINE static f32v decode(i32v code) {
    constexpr int kUnused = 32 - bits;
    if constexpr (bits < 8 && S(-1) < S(0)) code = (code << kUnused) >> kUnused;
    if constexpr (bits < 8 && S(-1) > S(0)) code &= (1 << bits) - 1;
    return __builtin_convertvector(code, f32v);
  }
  // Clamps before rounding, to bounds shifted by the zero point: the operand of the rounding is
  // then small enough that floats represent all integers around it, for infinities too.
  SDX_INLINE static i32v encode(f32v quotient, f32v zero) {
    const f32v clamped = clamp(quotient, kLowest - zero, kHighest - zero);
    const i32v code = __builtin_convertvector(round_small(clamped) + zero, i32v);
    return bits < 8 ? code & int((int64_t(1) << bits) - 1) : code;
  }
};

// An 8-bit float of `mantissa` bits. `top`: the first magnitude that is not a number; 128 for the
// formats without infinities and -0, whose code is NaN.
template <int mantissa, int bias, int top, int nan>
struct FloatCode {
  using Stored = uint8_t;
  static constexpr bool kIsWhole = false;
  static constexpr int kShift = 23 - mantissa, kRebias = (127 - bias) << mantissa;
  // 1 / spacing of the subnormals.
  static constexpr float kSubnormalsPerUnit = float(1 << (bias - 1 + mantissa));

  SDX_INLINE static f32v decode(i32v code) {
    const i32v magnitude = code & 127, sign = (code & 128) << 24;
    const f32v small = __builtin_convertvector(magnitude, f32v) * (1 / kSubnormalsPerUnit);
    const i32v normal = (magnitude + kRebias) << kShift;
    i32v bits = magnitude < (1 << mantissa) ? (i32v)small : normal;
    const i32v not_a_number = i32v{} + 0x7fc00000;
    if constexpr (top == 128) return (f32v)(code == 128 ? not_a_number : bits | sign);
    bits = magnitude >= top ? not_a_number : bits;
    if constexpr (top == 0x7c) bits = magnitude == top ? i32v{} + 0x7f800000 : bits;
    return (f32v)(bits | sign);
  }

  // Rounded half to even, and saturated to the largest number. A zero point of 0 keeps the sign
  // of -0.
  SDX_INLINE static i32v encode(f32v quotient, f32v zero) {
    const f32v x = zero == 0.0f ? quotient : quotient + zero;
    const i32v sign = ((i32v)x >> 24) & 128, bits = (i32v)x & 0x7fffffff;
    const i32v most = splat((top - 1 + kRebias) << kShift), clamped = bits < most ? bits : most;
    const i32v normal =
        ((clamped + ((1 << (kShift - 1)) - 1) + ((clamped >> kShift) & 1)) >> kShift) - kRebias;
    const f32v steps = (f32v)clamped * kSubnormalsPerUnit;
    const f32v rounded = round_small(steps < splat(8.0f) ? steps : splat(8.0f));
    const i32v small = __builtin_convertvector(rounded, i32v);
    const i32v magnitude = clamped < ((128 - bias) << 23) ? small : normal;
    const i32v signed_code = magnitude | (top == 128 ? (magnitude == 0 ? i32v{} : sign) : sign);
    return bits > 0x7f800000 ? nan | (top == 128 ? i32v{} : sign) : signed_code;
  }
};

using Code4m3fn = FloatCode<3, 7, 0x7f, 0x7f>;
using Code4m3fnuz = FloatCode<3, 8, 128, 0x80>;
using Code5m2 = FloatCode<2, 15, 0x7c, 0x7e>;
using Code5m2fnuz = FloatCode<2, 16, 128, 0x80>;

// Codes as the floats that they stand for before scaling.
template <class Code, class L>
SDX_INLINE f32v load_codes(const typename Code::Stored* p, L lanes) {
  return Code::decode(load_i32(p, lanes));
}

// Calls choose.operator()<Code>() for an element type.
template <class Choose>
SDX_INLINE auto by_code(DType dtype, Choose&& choose) {
  switch (dtype) {
    case DType::u8: return choose.template operator()<IntegerCode<uint8_t>>();
    case DType::i8: return choose.template operator()<IntegerCode<int8_t>>();
    case DType::u16: return choose.template operator()<IntegerCode<uint16_t>>();
    case DType::i16: return choose.template operator()<IntegerCode<int16_t>>();
    case DType::f8e4m3fn: return choose.template operator()<Code4m3fn>();
    case DType::f8e4m3fnuz: return choose.template operator()<Code4m3fnuz>();
    case DType::f8e5m2: return choose.template operator()<Code5m2>();
    case DType::f8e5m2fnuz: return choose.template operator()<Code5m2fnuz>();
    case DType::u4: return choose.template operator()<IntegerCode<uint8_t, 4>>();
    case DType::i4: return choose.template operator()<IntegerCode<int8_t, 4>>();
    case DType::u2: return choose.template operator()<IntegerCode<uint8_t, 2>>();
    case DType::i2: return choose.template operator()<IntegerCode<int8_t, 2>>();
    // int32, whose bounds are not used: `encode` is never instantiated for it.
    default: return choose.template operator()<IntegerCode<int32_t, 8>>();
  }
}

}  // namespace sdx::SDX_ISA
