// Half types in memory, float in registers.
#pragma once

#include "simd/vec.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace sdx::SDX_ISA {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

typedef uint16_t u16v __attribute__((vector_size(kLanes * 2)));  // a half for every float lane

SDX_INLINE u16v load_bits(const void* p, Full) {
  u16v v;
  memcpy(&v, p, sizeof v);
  return v;
}
SDX_INLINE u16v load_bits(const void* p, Part k) {
  u16v v{};
  memcpy(&v, p, size_t(k.n) * 2);
  return v;
}

SDX_INLINE f32v widen_f16(u16v bits) {
#if SDX_VEC_BYTES == 64
  return (f32v)_mm512_maskz_cvtph_ps(__mmask16(-1), (__m256i)bits);
#elif SDX_VEC_BYTES == 32 && defined(__F16C__)
  return (f32v)_mm256_cvtph_ps((__m128i)bits);
#else
  const u32v x = __builtin_convertvector(bits, u32v), low = (x & 0x7fff) << 13;
  const u32v scaled = (u32v)((f32v)low * 0x1p112f);  // subnormal halves become normal floats
  const u32v special = low | 0x7f800000;
  return (f32v)(((x & 0x7c00) == 0x7c00 ? special : scaled) | ((x & 0x8000) << 16));
#endif
}

// Rounded to the nearest, halves to even.
SDX_INLINE u16v narrow_f16(f32v y) {
#if SDX_VEC_BYTES == 64
  return (u16v)_mm512_maskz_cvtps_ph(__mmask16(-1), (__m512)y, _MM_FROUND_TO_NEAREST_INT);
#elif SDX_VEC_BYTES == 32 && defined(__F16C__)
  return (u16v)_mm256_cvtps_ph((__m256)y, _MM_FROUND_TO_NEAREST_INT);
#else
  const u32v sign = (u32v)y & 0x80000000u, x = (u32v)y ^ sign;
  const u32v normal = (x - 0x38000000u + 0xfff + ((x >> 13) & 1)) >> 13;
  const u32v tiny = (u32v)((f32v)x + 0.5f) - 0x3f000000u;  // the addition rounds subnormals
  const u32v large = x > 0x7f800000u ? u32v{} + 0x7e00u : u32v{} + 0x7c00u;
  const u32v half = x >= 0x47800000u ? large : x < 0x38800000u ? tiny : normal;
  return __builtin_convertvector(half | (sign >> 16), u16v);
#endif
}

SDX_INLINE f32v widen_bf16(u16v bits) { return (f32v)(__builtin_convertvector(bits, u32v) << 16); }

SDX_INLINE u16v narrow_bf16(f32v y) {
  const u32v x = (u32v)y, rounded = (x + 0x7fff + ((x >> 16) & 1)) >> 16;
  const u32v quiet = (x >> 16) | 0x40;
  return __builtin_convertvector(y == y ? rounded : quiet, u16v);
}

// Elements of any of the float types as float, and back; `lanes` is Full or Part.
template <class L>
SDX_INLINE f32v load_float(const float* p, L lanes) {
  return load(p, lanes);
}
template <class L>
SDX_INLINE f32v load_float(const F16* p, L lanes) {
  return widen_f16(load_bits(p, lanes));
}
template <class L>
SDX_INLINE f32v load_float(const BF16* p, L lanes) {
  return widen_bf16(load_bits(p, lanes));
}

template <class L>
SDX_INLINE void store_float(float* p, f32v y, L lanes) {
  store(p, y, lanes);
}
template <class L>
SDX_INLINE void store_float(F16* p, f32v y, L lanes) {
  store(&p->bits, narrow_f16(y), lanes);
}
template <class L>
SDX_INLINE void store_float(BF16* p, f32v y, L lanes) {
  store(&p->bits, narrow_bf16(y), lanes);
}

template <class T>
SDX_INLINE float to_float(const T* p) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return *p;
  } else {
    return load_float(p, Part{1})[0];
  }
}

}  // namespace sdx::SDX_ISA
