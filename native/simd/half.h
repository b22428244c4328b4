// Element types F16 and BF16, and loads and stores of any float type as float: loops over float
// types are templates over these.
#pragma once

#include "simd/convert.h"

namespace sdx::SDX_ISA {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

// `lanes` is Full or Part.
template <class L>
SDX_INLINE f32v load_float(const float* p, L lanes) {
  return load(p, lanes);
}
template <class L>
SDX_INLINE f32v load_float(const F16* p, L lanes) {
  return widen_f16(load_half(reinterpret_cast<const uint16_t*>(p), lanes));
}
template <class L>
SDX_INLINE f32v load_float(const BF16* p, L lanes) {
  return widen_bf16(load_half(reinterpret_cast<const uint16_t*>(p), lanes));
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

// One element as float.
template <class T>
SDX_INLINE float to_float(const T* p) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return *p;
  } else {
    return load_float(p, Part{1})[0];
  }
}

}  // namespace sdx::SDX_ISA
