// n-bit weights as models store them: unsigned codes packed low bits first, with a scale and a zero
// point for each block of a column along k. A weight is (code - zero) * scale. Two layouts:
//   n-major  [n][k]: the codes of a column are contiguous along k (MatMulNBits)
//   k-major  [k][n]: rows of all columns (DequantizeLinear of a [k, n] weight); is_k_major
// A gradient multiplies by transposed n-major weights: they are k-major, and have their blocks
// along n instead of k; column_block is their size.
#pragma once

#include "kernels/kernel.h"
#include "simd/half.h"

namespace sdx::SDX_ISA::nbits {

enum Operand : int { kX, kQ, kScale, kZero, kOperands };  // operands of an epilogue follow

// Strides of scales or zero points, in elements.
struct Grid {
  int64_t block_stride, column_stride;

  SDX_INLINE int64_t at(int64_t block, int64_t column) const {
    return block * block_stride + column * column_stride;
  }
};

// Codes are unsigned here: `sign_flip` converts two's complement, which moves zero points by half
// of the range.
struct Weights {
  int64_t k, n, block, n_blocks;
  int64_t row_stride;  // in codes: of a row of all columns if k-major, else of all k
  int bits;
  bool is_k_major;
  int64_t column_block;  // columns of a row that share a scale; 0: blocks are along k
  uint8_t sign_flip;     // XOR mask of a byte of codes
  DType scale;
  Grid scale_at;
  DType zero;  // u8: packed codes; none: zero_default for all; else floats
  Grid zero_at;
  float zero_default, zero_shift;  // the shift is added to float zero points

  SDX_INLINE bool has_byte_rows() const { return row_stride * bits % 8 == 0; }
  SDX_INLINE int64_t row_bytes() const { return row_stride * bits / 8; }
  SDX_INLINE int64_t all_bytes() const {
    return ((is_k_major ? k : n) * row_stride * bits + 7) / 8;
  }
};

// Code number `at` of a packed array.
SDX_INLINE int code_at(const Weights& w, const uint8_t* packed, int64_t at) {
  const int64_t bit = at * w.bits;
  return (packed[bit >> 3] ^ w.sign_flip) >> (bit & 7) & ((1 << w.bits) - 1);
}

// Copies n codes from code `at` on, shifted to begin with a byte. `end` is the number of bytes of
// the array, which is not read past.
SDX_INLINE void copy_codes(const Weights& w, const uint8_t* packed, int64_t at, int64_t n,
                           int64_t end, uint8_t* to) {
  const int64_t bit = at * w.bits, first = bit >> 3, bytes = (n * w.bits + 7) / 8;
  const int shift = int(bit & 7);
  const uint8_t* from = packed + first;
  const int64_t safe = end - first - 1 < bytes ? end - first - 1 : bytes;
  for (int64_t i = 0; i < safe; ++i) to[i] = uint8_t(from[i] >> shift | from[i + 1] << (8 - shift));
  for (int64_t i = safe; i < bytes; ++i) to[i] = uint8_t(from[i] >> shift);
}

SDX_INLINE float float_at(DType dtype, const void* from, int64_t at) {
  const auto* p = static_cast<const std::byte*>(from) + at * size_of(dtype);
  if (dtype == DType::f32) {
    float value;
    memcpy(&value, p, sizeof value);
    return value;
  }
  uint16_t half;
  memcpy(&half, p, sizeof half);
  return dtype == DType::f16 ? widen_f16(load_half(&half, Part{1}))[0]
                             : widen_bf16(load_half(&half, Part{1}))[0];
}

SDX_INLINE float scale_of(const Weights& w, const Data& data, int64_t block, int64_t column) {
  return float_at(w.scale, data.in[kScale], w.scale_at.at(block, column));
}

SDX_INLINE float zero_of(const Weights& w, const Data& data, int64_t block, int64_t column) {
  if (w.zero == DType::none) return w.zero_default;
  const int64_t at = w.zero_at.at(block, column);
  if (w.zero == DType::u8) return float(code_at(w, input<uint8_t>(data, kZero), at));
  return float_at(w.zero, data.in[kZero], at) + w.zero_shift;
}

SDX_INLINE float weight_of(const Weights& w, const Data& data, int64_t k, int64_t column) {
  const int64_t at = w.is_k_major ? k * w.row_stride + column : column * w.row_stride + k;
  const auto code = float(code_at(w, input<uint8_t>(data, kQ), at));
  const int64_t block = k / w.block;
  return (code - zero_of(w, data, block, column)) * scale_of(w, data, block, column);
}

}  // namespace sdx::SDX_ISA::nbits
