// Dequantizes tiles of n-bit weights into panels of floats, for GEMM.
#include "kernels/nbits/block_scales.h"
#include "kernels/nbits/matmul.h"
#include "kernels/nbits/transpose_words.h"

namespace sdx::SDX_ISA::nbits {
namespace {

// Any layout, one weight at a time.
void unpack_any(const Weights& w, const Data& data, const WeightTile& at, float* to, std::byte*) {
  memset(to, 0, size_t(at.depths * kPanel) * sizeof(float));
  for (int64_t j = 0; j < at.width; ++j)
    for (int64_t i = 0; i < at.depths; ++i)
      to[i * kPanel + j] = weight_of(w, data, at.depth + i, at.column + j);
}

// Scales and zero points of the blocks that a tile touches, from block `first` on.
struct Blocks {
  float *scale, *zero;
  int64_t first;
};

template <int bits>
SDX_INLINE Blocks read_part(const Weights& w, const Data& data, const WeightTile& at,
                            std::byte* local) {
  auto* scale = reinterpret_cast<float*>(local);
  float* zero = scale + at.depths * kPanel;  // there are at most as many blocks as rows
  const int64_t first = at.depth / w.block, last = (at.depth + at.depths - 1) / w.block + 1;
  read_blocks<bits>(w, data, {first, last, at.column, at.width}, scale, zero);
  return {scale, zero, first};
}

// n-major: squares of 32-bit words are transposed in registers, so that lanes are columns.
template <int bits>
void unpack_n_major(const Weights& w, const Data& data, const WeightTile& at, float* to,
                    std::byte* local) {
  const Blocks blocks = read_part<bits>(w, data, at, local);
  const f32v table = pinned(code_table<bits>(w.sign_flip));
  constexpr int64_t kFields = 32 / bits;
  for (int64_t j = 0; j < kPanel; j += kLanes)
    transpose_words(w, data, at, j, [&](int64_t word, u32v v) {
      const int64_t k = word * kFields, row = (at.depth + k) / w.block - blocks.first;
      const f32v scale = load(blocks.scale + row * kPanel + j);
      const f32v zero = load(blocks.zero + row * kPanel + j);
#pragma GCC unroll 16
      for (int i = 0; i < kFields; ++i)
        store(to + (k + i) * kPanel + j,
              (field_float<bits>(v, i, w.sign_flip, table) - zero) * scale);
    });
}

// k-major: rows of all columns, shifted first where they do not begin with a byte.
template <int bits, bool has_byte_rows>
void unpack_k_major(const Weights& w, const Data& data, const WeightTile& at, float* to,
                    std::byte* local) {
  const Blocks blocks = read_part<bits>(w, data, at, local);
  const f32v table = pinned(code_table<bits>(w.sign_flip));
  const uint8_t* from = input<uint8_t>(data, kQ);
  const bool begins_line = at.column * bits / 8 % 64 == 0;
  for (int64_t i = 0; i < at.depths; ++i) {
    uint8_t moved[kPanel];
    const uint8_t* p = moved;
    if constexpr (has_byte_rows) {
      p = from + (at.depth + i) * w.row_bytes() + at.column * bits / 8;
      if (begins_line) __builtin_prefetch(p + kDepth * w.row_bytes(), 0, 2);  // of the next tile
    } else {
      copy_codes(w, from, (at.depth + i) * w.row_stride + at.column, at.width, w.all_bytes(),
                 moved);
    }
    const int64_t row = (at.depth + i) / w.block - blocks.first;
    vloop(at.width, [&](int64_t j, auto lanes) {
      f32v code;
      if constexpr (__is_same(decltype(lanes), Full))
        code = unshuffle<bits>(load_codes_shuffled<bits>(p + j * bits / 8, w.sign_flip, table));
      else
        code =
            __builtin_convertvector(load_codes<bits>(p + j * bits / 8, w.sign_flip, lanes), f32v);
      const f32v scale = load(blocks.scale + row * kPanel + j);
      store(to + i * kPanel + j, (code - load(blocks.zero + row * kPanel + j)) * scale);
    });
  }
}

// Transposed n-major weights: a row of the tile is part of a stored row, whose blocks are along it.
// Blocks have at least 16 codes, so a vector lies in one of them, and stored rows are whole blocks,
// so a whole vector can be read at their end.
template <int bits>
void unpack_transposed(const Weights& w, const Data& data, const WeightTile& at, float* to,
                       std::byte* local) {
  auto* scale = reinterpret_cast<float*>(local);
  float* zero = scale + at.depths;
  const f32v table = pinned(code_table<bits>(w.sign_flip));
  const uint8_t* from = input<uint8_t>(data, kQ) + at.depth * w.row_bytes();
  int64_t loaded = -1;  // the block whose scales were read
  for (int64_t j = 0; j < at.width; j += kLanes) {
    const int64_t block = (at.column + j) / w.column_block;
    for (int64_t i = 0; i < at.depths && block != loaded; ++i) {
      scale[i] = scale_of(w, data, block, at.depth + i);
      zero[i] = zero_of(w, data, block, at.depth + i);
    }
    loaded = block;
    const uint8_t* p = from + (at.column + j) * bits / 8;
    for (int64_t i = 0; i < at.depths; ++i, p += w.row_bytes()) {
      const f32v code = unshuffle<bits>(load_codes_shuffled<bits>(p, w.sign_flip, table));
      store(to + i * kPanel + j, (code - splat(zero[i])) * splat(scale[i]));
    }
  }
}

// Dispatch by layout and alignment of the codes.
template <int bits>
UnpackFn unpack_of(const Weights& w) {
  if (w.column_block != 0) return unpack_transposed<bits>;
  if (w.is_k_major)
    return w.has_byte_rows() ? unpack_k_major<bits, true> : unpack_k_major<bits, false>;
  if (!w.has_byte_rows()) return unpack_any;
  return w.n_blocks <= 1 || w.block % (32 / bits) == 0 ? unpack_n_major<bits> : unpack_any;
}

}  // namespace

UnpackFn find_unpack(const Weights& w) {
  return w.bits == 2 ? unpack_of<2>(w) : w.bits == 4 ? unpack_of<4>(w) : unpack_of<8>(w);
}

}  // namespace sdx::SDX_ISA::nbits
