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

// Prefetches the scales and zero points of all blocks of some columns.
SDX_INLINE void prefetch_columns(const Weights& w, const Data& data, int64_t column, int64_t n) {
  constexpr int64_t kLine = 64;
  for (int64_t j = column; j < column + n; ++j) {
    const auto* scale =
        static_cast<const std::byte*>(data.in[kScale]) + w.scale_at.at(0, j) * size_of(w.scale);
    for (int64_t i = 0; i < w.n_blocks * size_of(w.scale); i += kLine)
      __builtin_prefetch(scale + i, 0, 2);
    if (w.zero != DType::f32) continue;  // packed zero points are small
    const float* zero = input<float>(data, kZero) + w.zero_at.at(0, j);
    for (int64_t i = 0; i < w.n_blocks * int64_t(sizeof(float)); i += kLine)
      __builtin_prefetch(reinterpret_cast<const std::byte*>(zero) + i, 0, 2);
  }
}

// n-major: squares of 32-bit words are transposed in registers, so that lanes are columns.
template <int bits>
void unpack_n_major(const Weights& w, const Data& data, const WeightTile& at, float* to,
                    std::byte* local) {
  const Blocks blocks = read_part<bits>(w, data, at, local);
  if (at.next_columns > 0) prefetch_columns(w, data, at.column + at.next_columns, at.width);
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
      if (begins_line) __builtin_prefetch(p + at.depths * w.row_bytes(), 0, 2);  // of the next tile
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

// Scales and zero points of the blocks [first, last) of a stored row, as floats.
constexpr int64_t kMaxRowBlocks = kMaxUnpackColumns / 16;  // blocks have at least 16 codes
struct RowBlocks {
  const float *scale, *zero;
  float buffers[2][kMaxRowBlocks];
};

// Floats are read in place, others are converted.
SDX_INLINE void read_row_blocks(const Weights& w, const Data& data, int64_t row, int64_t first,
                                int64_t last, RowBlocks& to) {
  const bool is_single = w.n_blocks <= 1;  // its stride is 0
  if (w.scale == DType::f32 && (is_single || w.scale_at.block_stride == 1)) {
    to.scale = input<float>(data, kScale) + w.scale_at.at(first, row);
  } else {
    for (int64_t b = first; b < last; ++b) to.buffers[0][b - first] = scale_of(w, data, b, row);
    to.scale = to.buffers[0];
  }
  if (w.zero == DType::none) return;  // set once for all rows
  if (w.zero == DType::f32 && w.zero_shift == 0 && (is_single || w.zero_at.block_stride == 1)) {
    to.zero = input<float>(data, kZero) + w.zero_at.at(first, row);
  } else {
    for (int64_t b = first; b < last; ++b) to.buffers[1][b - first] = zero_of(w, data, b, row);
    to.zero = to.buffers[1];
  }
}

// Transposed n-major weights: a row of the tile is part of a stored row, whose blocks are along it.
// Blocks have at least 16 codes, so a vector lies in one of them, and stored rows are whole blocks,
// so a whole vector can be read at their end. Several panels at a time use what a cache line has.
template <int bits>
void unpack_transposed(const Weights& w, const Data& data, const WeightTile& at, float* to,
                       std::byte*) {
  const int64_t first = at.column / w.column_block, vectors = (at.width + kLanes - 1) / kLanes;
  const int64_t last = (at.column + at.width - 1) / w.column_block + 1;
  int block_of[kMaxUnpackColumns / kLanes];
  for (int64_t v = 0; v < vectors; ++v)
    block_of[v] = int((at.column + v * kLanes) / w.column_block - first);
  RowBlocks blocks;
  for (float& zero : blocks.buffers[1]) zero = w.zero_default;
  blocks.zero = blocks.buffers[1];
  const f32v table = pinned(code_table<bits>(w.sign_flip));
  const int64_t row_bytes = w.row_bytes();
  const int64_t next = at.next_columns > 0 ? at.next_columns * bits / 8 - at.depth * row_bytes
                                           : at.depths * row_bytes;  // bytes to the next tile
  const uint8_t* p = input<uint8_t>(data, kQ) + at.depth * row_bytes + at.column * bits / 8;
  constexpr int64_t kVectors = kPanel / kLanes, kVectorBytes = kLanes * bits / 8;
  for (int64_t i = 0; i < at.depths; ++i, p += row_bytes) {
    __builtin_prefetch(p + next, 0, 2);
    read_row_blocks(w, data, at.depth + i, first, last, blocks);
    for (int64_t v = 0; v < vectors; ++v) {
      const f32v code =
          unshuffle<bits>(load_codes_shuffled<bits>(p + v * kVectorBytes, w.sign_flip, table));
      const int b = block_of[v];
      store(to + v / kVectors * (kDepth * kPanel) + i * kPanel + v % kVectors * kLanes,
            (code - splat(blocks.zero[b])) * splat(blocks.scale[b]));
    }
  }
}

// Dispatch by layout and alignment of the codes.
template <int bits>
Unpack unpack_of(const Weights& w) {
  if (w.column_block != 0) return {unpack_transposed<bits>, kMaxUnpackColumns};
  if (w.is_k_major)
    return {w.has_byte_rows() ? unpack_k_major<bits, true> : unpack_k_major<bits, false>, kPanel};
  const bool has_whole_words = w.n_blocks <= 1 || w.block % (32 / bits) == 0;
  return {w.has_byte_rows() && has_whole_words ? unpack_n_major<bits> : unpack_any, kPanel};
}

}  // namespace

Unpack find_unpack(const Weights& w) {
  return w.bits == 2 ? unpack_of<2>(w) : w.bits == 4 ? unpack_of<4>(w) : unpack_of<8>(w);
}

}  // namespace sdx::SDX_ISA::nbits
