// Scales and zero points of many blocks or columns at a time.
#pragma once

#include "kernels/nbits/weights.h"
#include "simd/nbit_codes.h"
#include "simd/transpose.h"

namespace sdx::SDX_ISA::nbits {

// kLanes elements of a float type as float.
SDX_INLINE f32v load_reals(DType dtype, const void* from, int64_t at, auto lanes) {
  switch (dtype) {
    case DType::f16: return load_float(static_cast<const F16*>(from) + at, lanes);
    case DType::bf16: return load_float(static_cast<const BF16*>(from) + at, lanes);
    default: return load(static_cast<const float*>(from) + at, lanes);
  }
}

// Scales of kLanes blocks of one column (is_along_k), or of kLanes columns of one block.
template <bool is_along_k>
SDX_INLINE f32v load_scales(const Weights& w, const Data& data, int64_t block, int64_t column,
                            auto lanes) {
  const int64_t at = w.scale_at.at(block, column);
  if ((is_along_k ? w.scale_at.block_stride : w.scale_at.column_stride) == 0)
    return splat(float_at(w.scale, data.in[kScale], at));
  return load_reals(w.scale, data.in[kScale], at, lanes);
}

// The same for zero points, which may be packed codes that do not begin with a byte.
template <bool is_along_k, int bits>
SDX_INLINE f32v load_zeros(const Weights& w, const Data& data, int64_t block, int64_t column,
                           auto lanes) {
  if (w.zero == DType::none) return splat(w.zero_default);
  const int64_t at = w.zero_at.at(block, column);
  if ((is_along_k ? w.zero_at.block_stride : w.zero_at.column_stride) == 0)
    return splat(zero_of(w, data, block, column));
  if (w.zero != DType::u8)
    return load_reals(w.zero, data.in[kZero], at, lanes) + splat(w.zero_shift);
  const uint8_t* packed = input<uint8_t>(data, kZero);
  if (at * bits % 8 == 0)
    return __builtin_convertvector(load_codes<bits>(packed + at * bits / 8, w.sign_flip, lanes),
                                   f32v);
  f32v zeros{};
  int n = kLanes;
  if constexpr (__is_same(decltype(lanes), Part)) n = lanes.n;
  for (int i = 0; i < n; ++i) zeros[i] = float(code_at(w, packed, at + i));
  return zeros;
}

// Blocks [first, last) of columns [column, column + width), at most kRow columns.
struct Span {
  int64_t first, last, column, width;
};
constexpr int64_t kRow = 32;

// Scales and zero points of a span as rows of kRow numbers, one row for each block.
template <int bits>
SDX_INLINE void read_rows(const Weights& w, const Data& data, const Span& of, float* scale,
                          float* zero) {
  for (int64_t b = of.first; b < of.last; ++b)
    vloop(of.width, [&](int64_t j, auto lanes) {
      const int64_t at = (b - of.first) * kRow + j;
      store(scale + at, load_scales<false>(w, data, b, of.column + j, lanes));
      store(zero + at, load_zeros<false, bits>(w, data, b, of.column + j, lanes));
    });
}

// The same where the scales of a column are contiguous: kLanes blocks of kLanes columns are
// transposed at a time, unless that would read past the last number.
SDX_INLINE void transpose_scales(const Weights& w, const Data& data, int64_t block, int64_t last,
                                 int64_t column, float* to) {
  const int64_t end = w.scale_at.at(w.n_blocks - 1, w.n - 1) + 1;
  if (w.scale_at.block_stride != 1 || w.scale_at.at(block, column + kLanes - 1) + kLanes > end) {
    for (int64_t b = block; b < last; ++b)
      for (int64_t j = 0; j < kLanes && column + j < w.n; ++j)
        to[(b - block) * kRow + j] = scale_of(w, data, b, column + j);
    return;
  }
  alignas(64) float rows[kLanes][kLanes], transposed[kLanes][kLanes];
  for (int64_t j = 0; j < kLanes; ++j)
    store(rows[j], load_reals(w.scale, data.in[kScale], w.scale_at.at(block, column + j), Full{}));
  transpose_square<uint32_t, SDX_VEC_BYTES>(reinterpret_cast<const std::byte*>(rows), SDX_VEC_BYTES,
                                            reinterpret_cast<std::byte*>(transposed),
                                            SDX_VEC_BYTES);
  for (int64_t b = block; b < last; ++b)
    store(to + (b - block) * kRow, load(transposed[b - block]));
}

// The same for packed zero points: a 32-bit word of each column has the fields of several blocks.
template <int bits>
SDX_INLINE void transpose_zeros(const Weights& w, const Data& data, int64_t block, int64_t last,
                                int64_t column, float* to) {
  constexpr int64_t kFields = 32 / bits;
  const int64_t end = (w.zero_at.at(w.n_blocks - 1, w.n - 1) * bits + bits + 7) / 8;
  const int64_t far = w.zero_at.at(last - 1, column + kLanes - 1) * bits / 8 + 4;
  const bool is_whole = w.zero_at.at(block, 0) * bits % 8 == 0 &&
                        w.zero_at.column_stride * bits % 8 == 0 && column + kLanes <= w.n;
  if (w.zero != DType::u8 || w.zero_at.block_stride != 1 || !is_whole || far > end) {
    for (int64_t b = block; b < last; ++b)
      for (int64_t j = 0; j < kLanes && column + j < w.n; ++j)
        to[(b - block) * kRow + j] = zero_of(w, data, b, column + j);
    return;
  }
  const f32v table = code_table<bits>(w.sign_flip);
  for (int64_t b = block; b < last; b += kFields) {
    u32v words;
    const uint8_t* p = input<uint8_t>(data, kZero) + w.zero_at.at(b, column) * bits / 8;
    for (int j = 0; j < kLanes; ++j, p += w.zero_at.column_stride * bits / 8) {
      uint32_t word;
      memcpy(&word, p, sizeof word);
      words[j] = word;
    }
    for (int64_t i = 0; i < kFields && b + i < last; ++i)
      store(to + (b + i - block) * kRow, field_float<bits>(words, int(i), w.sign_flip, table));
  }
}

template <int bits>
SDX_INLINE void read_columns(const Weights& w, const Data& data, const Span& of, float* scale,
                             float* zero) {
  for (int64_t j = 0; j < of.width; j += kLanes)
    for (int64_t b = of.first; b < of.last; b += kLanes) {
      const int64_t end = b + kLanes < of.last ? b + kLanes : of.last;
      const int64_t at = (b - of.first) * kRow + j;
      transpose_scales(w, data, b, end, of.column + j, scale + at);
      transpose_zeros<bits>(w, data, b, end, of.column + j, zero + at);
    }
}

template <int bits>
SDX_INLINE void read_blocks(const Weights& w, const Data& data, const Span& of, float* scale,
                            float* zero) {
  if (w.is_k_major)
    read_rows<bits>(w, data, of, scale, zero);
  else
    read_columns<bits>(w, data, of, scale, zero);
}

}  // namespace sdx::SDX_ISA::nbits
