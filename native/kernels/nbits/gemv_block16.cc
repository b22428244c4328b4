// n-bit GEMV for n-major weights whose blocks fill 16 bytes (4 bits, block size 32: the common
// case) and integer activations. A block is one 128-bit lane, so sums of blocks need no
// permutation.
//
// Block sums are exact integers, and are added up in the order of gemv_k_major.cc: a model gives
// the same result whichever layout its weights have.
#include "kernels/nbits/gemv.h"
#include "simd/transpose.h"

namespace sdx::SDX_ISA::nbits {
namespace {

constexpr int64_t kItemColumns = 64;
constexpr int kColumnGroup = 2;                      // columns that share a loaded vector of x
constexpr int64_t kPrefetchBytes = 8192;             // prefetch distance of weights
constexpr int64_t kScalePrefetchBytes = 2048;        // the same number of blocks ahead
constexpr int kGroups = SDX_VEC_BYTES / kLaneBytes;  // blocks in a vector of weights

// R rows of x against kLanes columns; block sums are stored as [kLanes blocks][R][column][block].
struct Context {
  const Gemv& f;
  const Data& data;
  int64_t row;       // first row of x
  int64_t prefetch;  // distance in bytes
  float* block_acc;
};

// Horizontal sums of each 128-bit lane (block) of four vectors, in the order of the blocks.
SDX_INLINE f32v sums_of_lanes(i32v a, i32v b, i32v c, i32v d) {
  constexpr auto kWords = std::make_index_sequence<kLanes>{};
  constexpr auto kPairs = std::make_index_sequence<kLanes / 2>{};
  using Words = Wide<uint32_t, SDX_VEC_BYTES>;
  using Pairs = Wide<uint64_t, SDX_VEC_BYTES>;
  const auto halves = [&](i32v left, i32v right) {
    const auto l = (Words)left, r = (Words)right;
    return (Pairs)(interleave<uint32_t, SDX_VEC_BYTES, 0>(l, r, kWords) +
                   interleave<uint32_t, SDX_VEC_BYTES, 1>(l, r, kWords));
  };
  const Pairs ab = halves(a, b), cd = halves(c, d);
  const auto low = (Words)interleave<uint64_t, SDX_VEC_BYTES, 0>(ab, cd, kPairs);
  const auto high = (Words)interleave<uint64_t, SDX_VEC_BYTES, 1>(ab, cd, kPairs);
  i32v order;
  for (int i = 0; i < kLanes; ++i) order[i] = i % kGroups * 4 + i / kGroups;
  return permute(__builtin_convertvector((i32v)(low + high), f32v), order);
}

// Four vectors of weights, zeros after the last byte.
SDX_INLINE void load_four(const uint8_t* q, int64_t left, u32v (&v)[4]) {
  for (int i = 0; i < 4; ++i) {
    const int64_t n = left - i * SDX_VEC_BYTES;
    if (n >= SDX_VEC_BYTES)
      v[i] = (u32v)load(q + i * SDX_VEC_BYTES);
    else
      v[i] = n > 0 ? (u32v)load(q + i * SDX_VEC_BYTES, Part{int(n)}) : u32v{};
  }
}

// kLanes blocks of C columns, or those that are left.
template <int bits, int x_bytes, int R, int C>
SDX_INLINE void add_blocks(const Context& s, int64_t column, int64_t block, auto lanes, float* to) {
  const Weights& w = s.f.p.w;
  const Activations& x = s.f.x;
  const int64_t byte = block * kLaneBytes, row_bytes = w.row_bytes();
  const uint8_t* q = input<uint8_t>(s.data, kQ) + column * row_bytes + byte;
  const int8_t* values = x.values<int8_t>(s.data, s.row) + byte * 8 / bits;
  u32v v[C][4];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) load_four(q + c * row_bytes, row_bytes - byte, v[c]);
  i32v sum[C][4][R];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      __builtin_prefetch(q + c * row_bytes + i * SDX_VEC_BYTES + s.prefetch, 0, 2);
      dot_fields<bits, x_bytes, R>(v[c][i] ^ splat(w.sign_flip * 0x01010101u),
                                   values + i * 8 / bits * SDX_VEC_BYTES, x.value_bytes,
                                   x.plane_bytes, sum[c][i]);
    }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c, to += kLanes) {
    __builtin_prefetch(input<std::byte>(s.data, kScale) +
                           w.scale_at.at(block, column + c) * size_of(w.scale) +
                           kScalePrefetchBytes,
                       0, 2);
    const f32v scale = load_scales<true>(w, s.data, block, column + c, lanes);
    const f32v zero = load_zeros<true, bits>(w, s.data, block, column + c, lanes) * scale;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const f32v sums = sums_of_lanes(sum[c][0][r], sum[c][1][r], sum[c][2][r], sum[c][3][r]);
      const f32v x_scale = load(x.scales(s.data, s.row + r) + block);
      store(to + r * kLanes * kLanes,
            block_sum(sums, scale * x_scale, zero, load(x.block_sums(s.data, s.row + r) + block)));
    }
  }
}

// All blocks of C columns.
template <int bits, int x_bytes, int R, int C>
SDX_INLINE void add_column(const Context& s, int64_t column, float* to) {
  const int64_t n_blocks = s.f.p.w.n_blocks;
  for (int64_t b = 0; b < n_blocks; b += kLanes, to += R * kLanes * kLanes) {
    if (b + kLanes <= n_blocks)
      add_blocks<bits, x_bytes, R, C>(s, column, b, Full{}, to);
    else
      add_blocks<bits, x_bytes, R, C>(s, column, b, Part{int(n_blocks - b)}, to);
  }
}

// Adds the block sums of kLanes columns of one row, in parts of k as gemv_k_major.cc does.
template <int R>
SDX_INLINE f32v add_up(const Context& s, int r) {
  const int64_t n_blocks = s.f.p.w.n_blocks, in_part = s.f.part_k / s.f.x.block;
  alignas(64) float transposed[kLanes][kLanes];
  f32v total{}, part{};
  for (int64_t b = 0; b < n_blocks; ++b) {
    if (b % kLanes == 0)
      transpose_square<uint32_t, SDX_VEC_BYTES>(
          reinterpret_cast<const std::byte*>(s.block_acc + (b / kLanes * R + r) * kLanes * kLanes),
          SDX_VEC_BYTES, reinterpret_cast<std::byte*>(transposed), SDX_VEC_BYTES);
    const f32v own = load(transposed[b % kLanes]);
    part = b % in_part == 0 ? own : part + own;
    if (b % in_part == in_part - 1 || b == n_blocks - 1) total = b < in_part ? part : total + part;
  }
  return total;
}

template <int bits, int x_bytes, int R>
void add_columns(const Context& s, int64_t column, int64_t columns, float* to) {
  int64_t j = 0;
  for (; j + kColumnGroup <= columns; j += kColumnGroup)
    add_column<bits, x_bytes, R, kColumnGroup>(s, column + j, s.block_acc + j * kLanes);
  for (; j < columns; ++j) add_column<bits, x_bytes, R, 1>(s, column + j, s.block_acc + j * kLanes);
  for (int r = 0; r < R; ++r) store(to + r * kItemColumns, add_up<R>(s, r));
}

// Items: kItemColumns columns of all rows.
template <int bits, int x_bytes>
Status multiply(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& f = *static_cast<const Gemv*>(args);
  const MatMul& p = f.p;
  auto* acc = reinterpret_cast<float*>(data.local + chain_local_bytes(p.chain));
  float* block_acc = acc + p.m * kItemColumns;
  const int64_t together = kColumnGroup * p.w.row_bytes();
  const int64_t prefetch = (kPrefetchBytes + together - 1) / together * together;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t column = item * kItemColumns;
    const int64_t columns = p.w.n - column < kItemColumns ? p.w.n - column : kItemColumns;
    for (int64_t j = 0; j < columns; j += kLanes) {
      const int64_t n = columns - j < kLanes ? columns - j : kLanes;
      for (int64_t row = 0; row < p.m;) {
        const Context site{f, data, row, prefetch, block_acc};
        float* to = acc + row * kItemColumns + j;
        if (p.m - row >= 2)
          add_columns<bits, x_bytes, 2>(site, column + j, n, to), row += 2;
        else
          add_columns<bits, x_bytes, 1>(site, column + j, n, to), row += 1;
      }
    }
    for (int64_t row = 0; row < p.m; ++row)
      finish_columns(f, data, row, column, columns, acc + row * kItemColumns);
  }
  return {};
}

}  // namespace

bool plan_gemv_block16(const MatMul& p, int x_bytes, Plan& plan) {
  const Weights& w = p.w;
  if (x_bytes == 0 || !w.has_byte_rows() || w.block * w.bits != kLaneBytes * 8) return false;
  auto* f = plan.make<Gemv>();
  plan.args = f;
  f->p = p;
  f->x.x_bytes = x_bytes;
  f->x.order = Order::fields;
  f->x.block = w.block;
  f->x.n_blocks = w.n_blocks;
  const int64_t whole = SDX_VEC_BYTES * 4 * 8 / w.bits;  // values of kLanes blocks
  f->x.k = (w.k + whole - 1) / whole * whole;
  f->part_k = part_of_k(w.block);
  plan_activations(*f, plan);
  const int64_t groups = (w.n_blocks + kLanes - 1) / kLanes;
  const int64_t own = chain_local_bytes(p.chain) +
                      (p.m * kItemColumns + 2 * groups * kLanes * kLanes) * int64_t(sizeof(float));
  if (plan.local_bytes < own) plan.local_bytes = own;
  const PhaseFn run =
      int_phase_of(w.bits, x_bytes, []<int b, int d>() -> PhaseFn { return multiply<b, d>; });
  plan.add(run, (w.n + kItemColumns - 1) / kItemColumns,
           kItemColumns * w.k * w.bits / 8 / 16 * ((p.m + 1) / 2));
  return true;
}

}  // namespace sdx::SDX_ISA::nbits
