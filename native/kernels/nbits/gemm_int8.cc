// n-bit GEMM in int8, for many rows at accuracy level 4: weights are unpacked into panels of signed
// bytes, with zero points subtracted where they fit, and multiplied by unsigned activations with
// VNNI dot products (dot4: u8 by s8). Activations are quantized per block as for GEMV and made
// unsigned by adding 128, which `start` corrects.
#include "kernels/nbits/gemv.h"
#include "kernels/nbits/interleaved.h"
#include "kernels/nbits/transpose_words.h"

namespace sdx::SDX_ISA::nbits {
namespace {

constexpr int64_t kColumns = 8 * kPanel;     // of an item: a whole vector of bytes of 2-bit codes
constexpr int64_t kMaxBlocks = kDepth / 16;  // blocks of a tile: 16 is the smallest
constexpr int kGroup = 4;                    // bytes of a dot product
constexpr int kMaxRows = SDX_VEC_BYTES == 64 ? 6 : 2;  // 12 integer and 12 float accumulators
constexpr int kVecs = 2;

// A tile of kDepth x kColumns weights in local memory. Per block there is one number for each
// column.
struct Unpacked {
  int8_t bytes[kColumns / kPanel][kDepth / kGroup][kPanel][kGroup];
  int32_t start[kMaxBlocks][kColumns];  // initial accumulators: -128 * sum of weights, as x is u8
  int32_t zero[kMaxBlocks][kColumns];   // zero point in each of the four bytes
  float scale[kMaxBlocks][kColumns];
  float shift[kMaxBlocks][kColumns];  // scale times the zero point that was not subtracted
};

struct Local {
  Unpacked* unpacked;
  float* acc;  // [kBlockRows][kColumns]
};
constexpr int64_t kUnpackedBytes = (int64_t(sizeof(Unpacked)) + 63) / 64 * 64;
constexpr int64_t kSumBytes = kBlockRows * kColumns * int64_t(sizeof(float));

SDX_INLINE Local local_of(const MatMul& p, const Data& data) {
  std::byte* at = data.local + chain_local_bytes(p.chain);
  return {reinterpret_cast<Unpacked*>(at), reinterpret_cast<float*>(at + kUnpackedBytes)};
}

// Whether code - zero fits into a signed byte, with integer zero points.
SDX_INLINE bool takes_zeros(const Weights& w) {
  return w.bits < 8 && (w.zero == DType::u8 || w.zero == DType::none);
}

// Scales and zero points for each block of x in the tile.
template <int bits>
void read_numbers(const Gemv& f, const Data& data, const WeightTile& at, Unpacked& to) {
  const Weights& w = f.p.w;
  const int64_t n_blocks = (at.depths + f.x.block - 1) / f.x.block;
  const bool takes = takes_zeros(w);
  float scale[kMaxBlocks * kRow], zero[kMaxBlocks * kRow];
  for (int64_t j = 0; j < at.width; j += kRow) {
    const int64_t width = at.width - j < kRow ? at.width - j : kRow;
    const int64_t first = at.depth / w.block, last = (at.depth + at.depths - 1) / w.block + 1;
    read_blocks<bits>(w, data, {first, last, at.column + j, width}, scale, zero);
    for (int64_t b = 0; b < n_blocks; ++b) {
      const int64_t row = ((at.depth + b * f.x.block) / w.block - first) * kRow;
      for (int64_t i = 0; i < kRow; i += kLanes) {
        const f32v s = load(scale + row + i), z = load(zero + row + i);
        const f32v rest = takes ? f32v{} : z - (bits == 8 ? 128.0f : 0.0f);
        const i32v whole = takes ? __builtin_convertvector(z, i32v) : i32v{};
        store(to.scale[b] + j + i, s);
        store(to.shift[b] + j + i, s * rest);
        store(to.zero[b] + j + i, (i32v)((u32v)whole * 0x01010101u));
      }
    }
  }
}

// Stores 4 weights of kLanes columns.
template <int bits>
SDX_INLINE void put_bytes(i32v codes, int64_t group, int64_t block, int64_t column, Unpacked& to) {
  i32v bytes = codes;
  if constexpr (bits == 8)
    bytes = (i32v)((u32v)codes ^ 0x80808080u);
  else
    bytes = (i32v)((u8v)codes -
                   (u8v)load(to.zero[block] + column));  // columns after the last one wrap around
  memcpy(to.bytes[column / kPanel][group][column % kPanel], &bytes, sizeof bytes);
}

// Initial accumulators of the blocks, from their unpacked bytes.
SDX_INLINE void put_starts(int64_t n_blocks, int64_t groups, int64_t width, Unpacked& to) {
  for (int64_t j = 0; j < width; j += kLanes)
    for (int64_t b = 0; b < n_blocks; ++b) {
      i32v start{};
      for (int64_t g = b * groups; g < (b + 1) * groups; ++g) {
        i32v bytes;
        memcpy(&bytes, to.bytes[j / kPanel][g][j % kPanel], sizeof bytes);
        start = dot4(start, splat(int32_t(0x80808080)), bytes);
      }
      store(to.start[b] + j, -start);
    }
}

// Transposes words, as unpack_n_major of dequantize.cc does.
template <int bits>
void unpack_n_major(const Gemv& f, const Data& data, const WeightTile& at, Unpacked& to) {
  constexpr int kFields = 8 / bits;
  const u32v sign_flip = splat(f.p.w.sign_flip * 0x01010101u);
  for (int64_t j = 0; j < at.width; j += kLanes)
    transpose_words(f.p.w, data, at, j, [&](int64_t word, u32v v) {
      const int64_t block = word * 4 * kFields / f.x.block;
#pragma GCC unroll 4
      for (int i = 0; i < kFields; ++i)
        put_bytes<bits>(field_bytes<bits>(v ^ sign_flip, i), word * kFields + i, block, j, to);
    });
}

// Interleaves four rows, as gemv_k_major.cc does.
template <int bits>
void unpack_k_major(const Gemv& f, const Data& data, const WeightTile& at, Unpacked& to) {
  constexpr int kFields = 8 / bits;
  const Weights& w = f.p.w;
  const int64_t row_bytes = w.row_bytes();
  const u8v sign_flip = splat(w.sign_flip);
  for (int64_t k = 0; k < at.depths; k += kGroup)
    for (int64_t j = 0; j < at.width; j += SDX_VEC_BYTES * kFields) {
      const int64_t byte = (at.column + j) * bits / 8, left = row_bytes - byte;
      const uint8_t* from = input<uint8_t>(data, kQ) + (at.depth + k) * row_bytes + byte;
      u8v rows[kGroup] = {};
      for (int i = 0; i < kGroup && k + i < at.depths; ++i) {
        __builtin_prefetch(from + (kDepth + i) * row_bytes, 0, 2);  // of the next tile
        rows[i] = left >= SDX_VEC_BYTES ? load(from + i * row_bytes)
                                        : load(from + i * row_bytes, Part{int(left)});
      }
      i32v four[4], fields[4][kFields];
      interleave4(rows[0] ^ sign_flip, rows[1] ^ sign_flip, rows[2] ^ sign_flip,
                  rows[3] ^ sign_flip, four);
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q)
#pragma GCC unroll 4
        for (int i = 0; i < kFields; ++i) fields[q][i] = field_bytes<bits>((u32v)four[q], i);
      order_columns<bits>(fields, [&](int v, i32v columns) {
        put_bytes<bits>(columns, k / kGroup, k / f.x.block, j + v * kLanes, to);
      });
    }
}

// Unpacks a tile; the rest of the last block is zero.
template <int bits>
void unpack(const Gemv& f, const Data& data, const WeightTile& at, Unpacked& to) {
  read_numbers<bits>(f, data, at, to);
  const int64_t end = (at.depths + f.x.block - 1) / f.x.block * f.x.block;
  for (int64_t k = at.depths / kGroup * kGroup; k < end; k += kGroup)  // of the last block
    for (auto& panel : to.bytes) memset(panel[k / kGroup], 0, sizeof panel[0]);
  if (f.p.w.is_k_major)
    unpack_k_major<bits>(f, data, at, to);
  else
    unpack_n_major<bits>(f, data, at, to);
  put_starts(end / f.x.block, f.x.block / kGroup, at.width, to);
}

// Rows of x from the tile's depth on, and the destination of their accumulators.
struct Rows {
  const uint8_t* x;
  int64_t x_stride;
  const float *x_scales, *x_sums;
  int64_t block_stride;
  int64_t n_blocks, groups;  // blocks in the tile, dot products in a block
  float* to;
  bool add;
};

// Register tile of R rows by kVecs vectors: integer dot products over a block, then scaled into
// float accumulators.
template <int R, bool has_shift>
SDX_INLINE void tile(const Rows& rows, const Unpacked& w, int64_t column) {
  f32v total[R][kVecs] = {};
  float* to = rows.to + column;
  if (rows.add)
#pragma GCC unroll 6
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < kVecs; ++v) total[i][v] = load(to + i * kColumns + v * kLanes);
  const int8_t* bytes = w.bytes[column / kPanel][0][column % kPanel];
  const uint8_t* x = rows.x;
  for (int64_t b = 0; b < rows.n_blocks; ++b) {
    i32v sum[R][kVecs];
#pragma GCC unroll 6
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < kVecs; ++v) sum[i][v] = load(w.start[b] + column + v * kLanes);
    for (int64_t g = 0; g < rows.groups; ++g, x += kGroup, bytes += kPanel * kGroup) {
      i32v right[kVecs];
      for (int v = 0; v < kVecs; ++v) memcpy(&right[v], bytes + v * SDX_VEC_BYTES, SDX_VEC_BYTES);
#pragma GCC unroll 6
      for (int i = 0; i < R; ++i) {
        int32_t four;
        memcpy(&four, x + i * rows.x_stride, sizeof four);
        for (int v = 0; v < kVecs; ++v) sum[i][v] = dot4(sum[i][v], splat(four), right[v]);
      }
    }
#pragma GCC unroll 6
    for (int i = 0; i < R; ++i) {
      const float x_scale = rows.x_scales[i * rows.block_stride + b];
      for (int v = 0; v < kVecs; ++v) {
        const int64_t at = column + v * kLanes;
        total[i][v] += __builtin_convertvector(sum[i][v], f32v) * (load(w.scale[b] + at) * x_scale);
        if constexpr (has_shift)
          total[i][v] -= load(w.shift[b] + at) * rows.x_sums[i * rows.block_stride + b];
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < kVecs; ++v) store(to + i * kColumns + v * kLanes, total[i][v]);
}

// All rows of a column strip, in tiles of nearly equal height.
template <bool has_shift>
void multiply_rows(Rows rows, int64_t m, const Unpacked& w, int64_t column) {
  const int64_t tiles = (m + kMaxRows - 1) / kMaxRows, height = m / tiles, higher = m % tiles;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t n = height + (t < higher ? 1 : 0);
    switch (n) {
#if SDX_VEC_BYTES == 64
      case 6: tile<6, has_shift>(rows, w, column); break;
      case 5: tile<5, has_shift>(rows, w, column); break;
      case 4: tile<4, has_shift>(rows, w, column); break;
      case 3: tile<3, has_shift>(rows, w, column); break;
#endif
      case 2: tile<2, has_shift>(rows, w, column); break;
      default: tile<1, has_shift>(rows, w, column); break;
    }
    rows.x += n * rows.x_stride, rows.to += n * kColumns;
    rows.x_scales += n * rows.block_stride, rows.x_sums += n * rows.block_stride;
  }
}

// Accumulates rows [row, row + rows) of columns [column, column + columns) over all of k.
template <int bits>
void add_up(const Gemv& f, const Data& data, int64_t row, int64_t rows, int64_t column,
            int64_t columns) {
  const Weights& w = f.p.w;
  const Activations& x = f.x;
  const Local local = local_of(f.p, data);
  const bool has_shift = !takes_zeros(w) && !(w.zero == DType::none && w.zero_default == 128);
  for (int64_t depth = 0; depth < w.k; depth += kDepth) {
    const WeightTile weights{depth, w.k - depth < kDepth ? w.k - depth : kDepth, column, columns};
    unpack<bits>(f, data, weights, *local.unpacked);
    const int64_t n_blocks = (weights.depths + x.block - 1) / x.block;
    const Rows part{x.values<uint8_t>(data, row) + depth,
                    x.value_bytes,
                    x.scales(data, row) + depth / x.block,
                    x.block_sums(data, row) + depth / x.block,
                    x.n_blocks,
                    n_blocks,
                    x.block / kGroup,
                    local.acc,
                    depth > 0};
    for (int64_t j = 0; j < columns; j += kVecs * kLanes)
      has_shift ? multiply_rows<true>(part, rows, *local.unpacked, j)
                : multiply_rows<false>(part, rows, *local.unpacked, j);
  }
}

// Items: blocks of rows of blocks of columns.
template <int bits>
Status multiply(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& f = *static_cast<const Gemv*>(args);
  const MatMul& p = f.p;
  float* acc = local_of(p, data).acc;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item % p.row_blocks, column = item / p.row_blocks * kColumns;
    const int64_t row = part_begin(p.m, p.row_blocks, block);
    const int64_t rows = part_begin(p.m, p.row_blocks, block + 1) - row;
    const int64_t columns = p.w.n - column < kColumns ? p.w.n - column : kColumns;
    add_up<bits>(f, data, row, rows, column, columns);
    for (int64_t i = row; i < row + rows; ++i) {
      float* own = acc + (i - row) * kColumns;
      finish_columns(f, data, i, column, columns, own);
    }
  }
  return {};
}

// Values of x that share a scale: a power of two that divides the weights' block; 0 if there is
// none.
int64_t block_of(const Weights& w) {
  if (w.n_blocks == 1) return 64;
  for (int64_t block = kDepth; block >= 16; block /= 2)
    if (w.block % block == 0) return block;
  return 0;
}

}  // namespace

bool plan_gemm_int8(const MatMul& p, Plan& plan) {
  const Weights& w = p.w;
  const int64_t block = block_of(w);
  if (!w.has_byte_rows() || block == 0) return false;
  auto* f = plan.make<Gemv>();
  plan.args = f;
  f->p = p;
  f->x.x_bytes = 1;
  f->x.order = w.is_k_major ? Order::natural_order : Order::words;
  f->x.sign_flip = 0x80;
  f->x.block = block;
  f->x.n_blocks = (w.k + block - 1) / block;
  f->x.k = f->x.n_blocks * block;
  plan_activations(*f, plan);
  const int64_t own = chain_local_bytes(p.chain) + kUnpackedBytes + kSumBytes;
  if (plan.local_bytes < own) plan.local_bytes = own;
  f->p.row_blocks = (p.m + kBlockRows - 1) / kBlockRows;
  const PhaseFn run = w.bits == 2 ? multiply<2> : w.bits == 4 ? multiply<4> : multiply<8>;
  plan.add(run, f->p.row_blocks * ((w.n + kColumns - 1) / kColumns),
           (p.m / f->p.row_blocks + 8) * w.k * kColumns / (SDX_VEC_BYTES * 2));
  return true;
}

}  // namespace sdx::SDX_ISA::nbits
