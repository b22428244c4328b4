// The scale and zero point of a whole tensor, and the bounds of its codes.
#pragma once

#include "kernels/kernel.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA::int8 {

struct Quantization {
  float scale, zero;
};

// The scale in an operand, and the zero point, if there is one, in the next.
SDX_INLINE Quantization quantization_of(const Data& data, int operand, DType dtype) {
  const void* zero = data.in[operand + 1];
  const float z = zero == nullptr      ? 0.0f
                  : dtype == DType::u8 ? float(*static_cast<const uint8_t*>(zero))
                                       : float(*static_cast<const int8_t*>(zero));
  return {*input<float>(data, operand), z};
}

struct CodeBounds {
  float low, high;
};

// The bounds of the real output (a fused Relu or Clip) and of the type, as codes relative to the
// zero point: clamping to them before rounding also saturates.
SDX_INLINE CodeBounds bounds_of(DType dtype, const Quantization& y, float low, float high) {
  const float lowest = dtype == DType::u8 ? 0.0f : -128.0f;
  const f32v least = splat(lowest), most = splat(lowest + 255);
  const float first = round_small(clamp(splat(low / y.scale + y.zero), least, most))[0];
  const float last = round_small(clamp(splat(high / y.scale + y.zero), least, most))[0];
  return {first - y.zero, last - y.zero};
}

}  // namespace sdx::SDX_ISA::int8
