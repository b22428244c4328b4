// Scales and zero points of many blocks or columns at a time.
#pragma once

#include "kernels/nbits/weights.h"
#include "simd/steps.h"

namespace sdx::SDX_ISA::nbits {

// kLanes scales or zero points from block `block` on, of one column, or from a column on, of a
// block: `is_along` says which.
SDX_INLINE f32v load_reals(DType dtype, const void* from, int64_t at, auto lanes) {
  switch (dtype) {
    case DType::f16: return load_float(static_cast<const F16*>(from) + at, lanes);
    case DType::bf16: return load_float(static_cast<const BF16*>(from) + at, lanes);
    default: return load(static_cast<const float*>(from) + at, lanes);
  }
}

template <bool is_along>
SDX_INLINE f32v load_scales(const Weights& w, const Data& data, int64_t block, int64_t column,
                            auto lanes) {
  const int64_t at = w.scale_at.at(block, column);
  if ((is_along ? w.scale_at.block_stride : w.scale_at.column_stride) == 0)
    return splat(float_at(w.scale, data.in[kScale], at));
  return load_reals(w.scale, data.in[kScale], at, lanes);
}

template <bool is_along, int bits>
SDX_INLINE f32v load_zeros(const Weights& w, const Data& data, int64_t block, int64_t column,
                           auto lanes) {
  if (w.zero == DType::none) return splat(w.zero_default);
  const int64_t at = w.zero_at.at(block, column);
  if ((is_along ? w.zero_at.block_stride : w.zero_at.column_stride) == 0)
    return splat(zero_of(w, data, block, column));
  if (w.zero != DType::u8)
    return load_reals(w.zero, data.in[kZero], at, lanes) + splat(w.zero_move);
  const uint8_t* packed = input<uint8_t>(data, kZero);
  if (at * bits % 8 == 0)
    return __builtin_convertvector(load_steps<bits>(packed + at * bits / 8, w.flip, lanes), f32v);
  f32v zeros{};
  int n = kLanes;
  if constexpr (__is_same(decltype(lanes), Part)) n = lanes.n;
  for (int i = 0; i < n; ++i) zeros[i] = float(step_at(w, packed, at + i));
  return zeros;
}

// Blocks [first, last) of columns [column, column + width), as rows of kRow numbers.
constexpr int64_t kRow = 32;

template <int bits>
SDX_INLINE void read_rows(const Weights& w, const Data& data, int64_t first, int64_t last,
                          int64_t column, int64_t width, float* scale, float* zero) {
  for (int64_t b = first; b < last; ++b)
    vloop(width, [&](int64_t j, auto lanes) {
      const int64_t at = (b - first) * kRow + j;
      store(scale + at, load_scales<false>(w, data, b, column + j, lanes));
      store(zero + at, load_zeros<false, bits>(w, data, b, column + j, lanes));
    });
}

// The same where the numbers of a column lie side by side.
template <int bits>
SDX_INLINE void read_columns(const Weights& w, const Data& data, int64_t first, int64_t last,
                             int64_t column, int64_t width, float* scale, float* zero) {
  for (int64_t j = 0; j < width; ++j)
    vloop(last - first, [&](int64_t b, auto lanes) {
      const f32v scales = load_scales<true>(w, data, first + b, column + j, lanes);
      const f32v zeros = load_zeros<true, bits>(w, data, first + b, column + j, lanes);
      int n = kLanes;
      if constexpr (__is_same(decltype(lanes), Part)) n = lanes.n;
      for (int i = 0; i < n; ++i) {
        scale[(b + i) * kRow + j] = scales[i];
        zero[(b + i) * kRow + j] = zeros[i];
      }
    });
}

template <int bits>
SDX_INLINE void read_blocks(const Weights& w, const Data& data, int64_t first, int64_t last,
                            int64_t column, int64_t width, float* scale, float* zero) {
  if (w.is_k_major)
    read_rows<bits>(w, data, first, last, column, width, scale, zero);
  else
    read_columns<bits>(w, data, first, last, column, width, scale, zero);
}

}  // namespace sdx::SDX_ISA::nbits
