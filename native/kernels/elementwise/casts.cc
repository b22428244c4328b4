// Casts from floats, f16 and bf16 included.
#include "kernels/elementwise/casts.h"

#include "simd/convert.h"

namespace sdx::SDX_ISA {
namespace {

template <auto f>
bool widen(const LoopArgs& s) {
  const uint16_t* a = static_cast<const uint16_t*>(s.in[0]);
  float* out = static_cast<float*>(s.out);
  const int64_t sa = s.stride[0];
  vloop(s.n, [&](int64_t i, auto k) { store(out + i, f(load_half(a + i * sa, k)), k); });
  return true;
}

template <auto f>
bool narrow(const LoopArgs& s) {
  const float* a = static_cast<const float*>(s.in[0]);
  uint16_t* out = static_cast<uint16_t*>(s.out);
  const int64_t sa = s.stride[0];
  vloop(s.n, [&](int64_t i, auto k) { store(out + i, f(load(a + i * sa, k)), k); });
  return true;
}

// f16 to f16 or bf16 to bf16: a copy, NaN payloads included.
bool copy_half(const LoopArgs& s) {
  const uint16_t* a = static_cast<const uint16_t*>(s.in[0]);
  uint16_t* out = static_cast<uint16_t*>(s.out);
  for (int64_t i = 0; i < s.n; ++i) out[i] = a[i * s.stride[0]];
  return true;
}

// f64 to f32 with rounding to odd, before a second rounding to f16 or bf16 (convert.h).
bool round_to_odd(const LoopArgs& s) {
  const double* a = static_cast<const double*>(s.in[0]);
  float* out = static_cast<float*>(s.out);
  for (int64_t i = 0; i < s.n; ++i) out[i] = round_odd(a[i * s.stride[0]]);
  return true;
}

}  // namespace

LoopFn find_cast_loop(ChainOp op, DType type, DType to) {
  if (op == ChainOp::round_odd) return round_to_odd;
  if (to == type && (type == DType::f16 || type == DType::bf16)) return copy_half;
  switch (type) {
    case DType::f32:
      if (to == DType::f16) return narrow<[](f32v x) { return narrow_f16(x); }>;
      if (to == DType::bf16) return narrow<[](f32v x) { return narrow_bf16(x); }>;
      return cast_from<float>(to);
    case DType::f64: return cast_from<double>(to);
    case DType::f16: return widen<[](u16h x) { return widen_f16(x); }>;
    case DType::bf16: return widen<[](u16h x) { return widen_bf16(x); }>;
    default: return find_int_cast_loop(type, to);
  }
}

}  // namespace sdx::SDX_ISA
