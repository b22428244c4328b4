// Products of few rows, which are as fast as weights are read: these are multiplied as they lie.
//
// Rows of x are first brought into an order in which they meet the fields of whole vectors of
// weights: as floats, or as whole numbers of steps for each block. Those of level 4 are single
// bytes. Exact products take three, which come as near to a float as sums of floats do: a value is
// off by at most 2^-23 of the largest one of its block.
#pragma once

#include <type_traits>

#include "kernels/nbits/block_scales.h"
#include "kernels/nbits/matmul.h"
#include "simd/dot.h"

namespace sdx::SDX_ISA::nbits {

enum class Order : uint8_t {
  straight,
  fields,  // of vectors of weights along k: the first ones of all lanes or bytes, the second
           // ones...
  words,   // the same within every 32 bits of weights
};

// Digits of a value: none where it stays a float.
constexpr int kExactBytes = 3;

template <int x_bytes>
using Activation = std::conditional_t<x_bytes == 0, float, int8_t>;

// The largest number of steps. A block of 32 values times steps of 4 bits stays within 32 bits.
template <int x_bytes>
constexpr float kMaxCode = x_bytes == 1 ? 127 : 127 * 0x1p15f + 127 * 0x1p7f;

// What is behind the x_bytes before this one, `plane` > 0, in bits.
SDX_INLINE constexpr int plane_shift(int plane) { return plane == 1 ? 8 : 7; }

// How rows of x lie in the scratch: values, one plane of all of them behind the other, then the
// steps of blocks, then sums of blocks. Sums are those of the values, in steps or not.
struct Activations {
  int x_bytes;
  Order order;
  uint8_t sign_flip;    // turns signed bytes into unsigned ones
  int64_t block;        // values that share a step and a sum: a block of weights, or a part of one
  int64_t n_blocks;     // whole vectors of them
  int64_t k;            // values, zeros at the end included
  int64_t plane_bytes;  // of a row
  int64_t value_bytes;  // the same of all x_bytes
  int64_t scale_at, sum_at, flag_at;

  SDX_INLINE const float* scales(const Data& data, int64_t row) const {
    return reinterpret_cast<const float*>(data.scratch + scale_at) + row * n_blocks;
  }
  SDX_INLINE const float* sums(const Data& data, int64_t row) const {
    return reinterpret_cast<const float*>(data.scratch + sum_at) + row * n_blocks;
  }
  template <class T>
  SDX_INLINE const T* values(const Data& data, int64_t row) const {
    return reinterpret_cast<const T*>(data.scratch + row * value_bytes);
  }
  // Whether a row holds no NaN or infinity, and can be multiplied before zero points are taken off.
  SDX_INLINE bool is_finite(const Data& data, int64_t row) const {
    return data.scratch[flag_at + row] == std::byte{0};
  }
};

struct Gemv {
  MatMul p;
  Activations x;
  // For weights with k outside: sums of parts of k, [parts][m][width], are added up at the end.
  int64_t parts_at, n_parts, part_k, width;
};

// Rows of k, about 256, whose sums are added up by themselves.
SDX_INLINE int64_t part_of_k(int64_t rows) { return (256 + rows - 1) / rows * rows; }

// Sums of a vector of weights times R rows of x, `stride` apart, x_bytes `plane` apart: each lane
// has those of its fields.
template <int bits, int x_bytes, int R>
SDX_INLINE void dot_fields(u32v v, const int8_t* x, int64_t stride, int64_t plane, i32v (&sum)[R]) {
#pragma GCC unroll 4
  for (int d = 0; d < x_bytes; ++d)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      sum[r] = d == 0 ? i32v{} : sum[r] << plane_shift(d);
#pragma GCC unroll 4
      for (int i = 0; i < 8 / bits; ++i) {
        i32v right;
        memcpy(&right, x + r * stride + d * plane + i * SDX_VEC_BYTES, sizeof right);
        sum[r] = dot4(sum[r], field_bytes<bits>(v, i), right);
      }
    }
}

// The phase for weights of `bits` and whole numbers of `x_bytes`: find.operator()<bits, x_bytes>().
template <class Find>
PhaseFn int_phase_of(int bits, int x_bytes, Find&& find) {
  if constexpr (kHasDot4) {
    if (x_bytes == kExactBytes)
      return bits == 2 ? find.template operator()<2, kExactBytes>()
                       : find.template operator()<4, kExactBytes>();
  }
  return bits == 2   ? find.template operator()<2, 1>()
         : bits == 4 ? find.template operator()<4, 1>()
                     : find.template operator()<8, 1>();
}

// The same for floats, too.
template <class Find>
PhaseFn phase_of(int bits, int x_bytes, Find&& find) {
  if (x_bytes > 0) return int_phase_of(bits, x_bytes, find);
  return bits == 2   ? find.template operator()<2, 0>()
         : bits == 4 ? find.template operator()<4, 0>()
                     : find.template operator()<8, 0>();
}

// What a block adds to its column: the sum of steps times values, the zero points taken off.
SDX_INLINE f32v block_sum(f32v sum, f32v scale, f32v zero, f32v values) {
  const f32v off = zero * values;
  return sum * scale - off;
}

// Digits for a level of accuracy. Floats are read faster than three x_bytes where there is no
// instruction for these, and sums of weights of 8 bits do not fit.
SDX_INLINE int activation_bytes(const Weights& w, int64_t level) {
  if (level == 4) return 1;
  return kHasDot4 && w.bits < 8 ? kExactBytes : 0;
}

// Rows up to which this is faster than unpacking.
SDX_INLINE int64_t max_gemv_rows(int x_bytes) { return x_bytes == 1 ? 12 : 5; }

// Phase: the rows of x. Items are rows.
Status quantize_rows(const void* args, const Data& data, int64_t begin, int64_t end);
// Adds the areas of x to the scratch.
void plan_activations(Gemv& f, Plan& plan);

// The end of a row's sums: those of a row that is not finite are made again, as they are defined.
void finish_sums(const Gemv& f, const Data& data, int64_t row, int64_t column, int64_t n,
                 float* sums);

// Plans for weights whose rows run along k, or hold all columns of one k. False where weights lie
// in a way that these cannot read.
bool plan_gemv_n_major(const MatMul& p, int x_bytes, Plan& plan);
bool plan_gemv_block16(const MatMul& p, int x_bytes, Plan& plan);
bool plan_gemv_k_major(const MatMul& p, int x_bytes, Plan& plan);

// Products of many rows in bytes.
bool plan_gemm_int8(const MatMul& p, Plan& plan);

}  // namespace sdx::SDX_ISA::nbits
