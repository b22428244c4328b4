// n-bit GEMV (decoding): matmuls with few rows are bound by the bandwidth of the weights, which are
// read once, in place. Activations are first converted and reordered (activations.cc) so that plain
// vectors of them line up with the bit fields of whole vectors of weights. Two number formats:
//   float   the codes are widened to float
//   int8    activations are quantized per block to x_bytes signed bytes and multiplied with
//           VNNI dot products (u8 codes by s8 activations, dot4)
//
// Accuracy level 4 uses x_bytes = 1. Exact matmuls use 3 bytes where the ISA has VNNI: the error of
// a value is at most 2^-23 of the largest of its block, comparable to float32 accumulation error,
// with half the instructions of the float path.
//
// Weights and scales are prefetched into the second-level cache (locality 2 of __builtin_prefetch).
// Scales that are prefetched into the first-level cache cost a fifth of the speed; without any
// prefetching it is halved.
#pragma once

#include <type_traits>

#include "kernels/nbits/block_scales.h"
#include "kernels/nbits/matmul.h"
#include "simd/dot.h"

namespace sdx::SDX_ISA::nbits {

// Order of the activations of a row.
enum class Order : uint8_t {
  natural_order,
  fields,  // by field of a vector of weights: the first fields of all lanes or bytes, the second...
  words,   // the same within every 32 bits of weights
};

// Bytes of a quantized activation at full accuracy; 0 stands for activations that stay floats.
constexpr int kExactBytes = 3;

template <int x_bytes>
using Activation = std::conditional_t<x_bytes == 0, float, int8_t>;

// Largest quantized activation. With 3 bytes 32 values times 4-bit codes still fit into 32 bits.
template <int x_bytes>
constexpr float kMaxCode = x_bytes == 1 ? 127 : 127 * 0x1p15f + 127 * 0x1p7f;

// A 3-byte activation is (((byte 0 << 8) + byte 1) << 7) + byte 2: all three are signed. Shift
// before byte plane `plane` > 0 is added.
SDX_INLINE constexpr int plane_shift(int plane) { return plane == 1 ? 8 : 7; }

// Layout of converted activations in scratch memory: values (one byte plane of a row after the
// other), then the scales of blocks, then sums of blocks, which zero points are multiplied by.
struct Activations {
  int x_bytes;
  Order order;
  uint8_t sign_flip;    // XOR mask: signed bytes to unsigned ones
  int64_t block;        // values that share a scale and a sum: a weight block or a part of one
  int64_t n_blocks;     // rounded up to whole vectors
  int64_t k;            // values with zero padding
  int64_t plane_bytes;  // of one byte plane of a row
  int64_t value_bytes;  // of all byte planes of a row
  int64_t scale_at, sum_at, flag_at;

  SDX_INLINE const float* scales(const Data& data, int64_t row) const {
    return reinterpret_cast<const float*>(data.scratch + scale_at) + row * n_blocks;
  }
  SDX_INLINE const float* block_sums(const Data& data, int64_t row) const {
    return reinterpret_cast<const float*>(data.scratch + sum_at) + row * n_blocks;
  }
  template <class T>
  SDX_INLINE const T* values(const Data& data, int64_t row) const {
    return reinterpret_cast<const T*>(data.scratch + row * value_bytes);
  }
  // Whether a row has no NaN or infinity: sum(x * code) - zero * sum(x) is only valid for such
  // rows.
  SDX_INLINE bool is_finite(const Data& data, int64_t row) const {
    return data.scratch[flag_at + row] == std::byte{0};
  }
};

struct Gemv {
  MatMul p;
  Activations x;
  // k-major weights (split-K): partial sums of parts of k, [parts][m][width], added up at the end.
  int64_t parts_at, n_parts, part_k, width;
};

// Rows of k in one part of split-K: about 256, in whole strips. A constant, whatever the number of
// threads, so that results do not depend on it.
SDX_INLINE int64_t part_of_k(int64_t rows) { return (256 + rows - 1) / rows * rows; }

// Dot products of a vector of weights with R rows of x (`stride` bytes apart, byte planes `plane`
// apart); each lane accumulates its own fields.
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

// The instantiation for `bits` and integer activations: find.operator()<bits, x_bytes>().
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

// The same, float activations included.
template <class Find>
PhaseFn phase_of(int bits, int x_bytes, Find&& find) {
  if (x_bytes > 0) return int_phase_of(bits, x_bytes, find);
  return bits == 2   ? find.template operator()<2, 0>()
         : bits == 4 ? find.template operator()<4, 0>()
                     : find.template operator()<8, 0>();
}

// Contribution of a block: scale * sum(code * x) - (scale * zero) * sum(x).
SDX_INLINE f32v block_sum(f32v sum, f32v scale, f32v zero, f32v values) {
  const f32v off = zero * values;
  return sum * scale - off;
}

// Activation bytes for an accuracy level. Without VNNI floats are faster than three bytes, and sums
// of 8-bit codes would overflow.
SDX_INLINE int activation_bytes(const Weights& w, int64_t level) {
  if (level == 4) return 1;
  return kHasDot4 && w.bits < 8 ? kExactBytes : 0;
}

// Rows up to which GEMV is faster than unpacking for GEMM.
SDX_INLINE int64_t max_gemv_rows(int x_bytes) { return x_bytes == 1 ? 12 : 5; }

// Phase that converts rows of x. Items are rows.
Status quantize_rows(const void* args, const Data& data, int64_t begin, int64_t end);
// Reserves scratch memory for the converted activations and adds the phase.
void plan_activations(Gemv& f, Plan& plan);

// Epilogue of a row's columns. Rows that are not finite are recomputed by the definition.
void finish_columns(const Gemv& f, const Data& data, int64_t row, int64_t column, int64_t n,
                    float* acc);

// Each plans one layout; false if the kernel cannot read these weights.
bool plan_gemv_n_major(const MatMul& p, int x_bytes, Plan& plan);
bool plan_gemv_block16(const MatMul& p, int x_bytes, Plan& plan);
bool plan_gemv_k_major(const MatMul& p, int x_bytes, Plan& plan);

// Many rows in int8 (accuracy level 4).
bool plan_gemm_int8(const MatMul& p, Plan& plan);

}  // namespace sdx::SDX_ISA::nbits
