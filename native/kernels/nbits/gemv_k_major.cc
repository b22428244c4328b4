// n-bit GEMV for k-major weights ([k][n]): vectors of columns, accumulated over strips of rows that
// share a block scale. Integer activations take four rows at a time, interleaved so that a lane
// holds the bytes of four consecutive k of one column for a VNNI dot product.
//
// Split-K: items are parts of k with partial sums of their own, and a second phase adds them up.
// The split depends on sizes only, so any number of threads gives the same bytes.
#include "kernels/nbits/gemv.h"
#include "kernels/nbits/interleaved.h"

namespace sdx::SDX_ISA::nbits {
namespace {

constexpr int64_t kItemBytes = 8192;  // bytes of a weight row in one item
constexpr int64_t kSumColumns = 512;  // columns of an item that adds partial sums
constexpr int64_t kStrip = 32;        // most rows of a strip, whose accumulators stay in registers
constexpr int kGroup = 4;             // rows of k in a 32-bit lane
constexpr int64_t kScalePrefetchBytes = 1024;

// Rows of k that share a block scale; `at` is the first row at the current columns.
struct Strip {
  const uint8_t* at;
  int64_t stride;
  int64_t n;                // rows; a multiple of kGroup for integer activations
  const uint8_t* prefetch;  // lines to prefetch, one for each row
};

// Rows of x, from the first value of a strip on.
template <class T>
struct Rows {
  const T* at;
  int64_t stride, plane;  // of rows, and of byte planes
};

constexpr int64_t kLine = 64;  // bytes of a cache line

SDX_INLINE void prefetch_row(const Strip& s, int64_t row) {
  __builtin_prefetch(s.prefetch + row * kLine, 0, 2);
}

// Vectors of column sums that one vector of packed codes gives.
template <int bits>
constexpr int kVectors = SDX_VEC_BYTES * 8 / bits / kLanes;

// Float activations: accumulators of a strip, a vector for kLanes columns each.
template <int bits, int x_bytes, int R>
SDX_INLINE void add_strip(const Strip& s, Rows<float> x, uint8_t sign_flip,
                          f32v (&sum)[R][kVectors<bits>]) {
  constexpr int kWide = R == 1 ? 8 : 4;
  constexpr int kStep = kWide < kVectors<bits> ? kWide : kVectors<bits>;
  const f32v table = pinned(code_table<bits>(sign_flip));
  for (int first = 0; first < kVectors<bits>; first += kStep) {
    f32v total[R][kStep] = {};
    for (int64_t i = 0; i < s.n; ++i) {
      const uint8_t* p = s.at + i * s.stride + first * kLanes * bits / 8;
      if (first == 0) prefetch_row(s, i);
#pragma GCC unroll 8
      for (int v = 0; v < kStep; ++v) {
        const f32v w = load_codes_shuffled<bits>(p + v * kLanes * bits / 8, sign_flip, table);
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) total[r][v] += x.at[r * x.stride + i] * w;
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kStep; ++v)
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) sum[r][first + v] = unshuffle<bits>(total[r][v]);
  }
}

// Interleaved vectors at a time, so that accumulators of all byte planes fit into registers.
template <int bits, int x_bytes, int R>
constexpr int kAtOnce = x_bytes * R * 8 / bits <= 6    ? 4
                        : x_bytes * R * 8 / bits <= 12 ? 2
                                                       : 1;

// Joins the sums of the byte planes of x, the most significant first.
template <int x_bytes>
SDX_INLINE i32v join_planes(const i32v (&total)[x_bytes]) {
  i32v all = total[0];
  for (int d = 1; d < x_bytes; ++d) all = (all << plane_shift(d)) + total[d];
  return all;
}

// The kGroup bytes of x from row i on, for each row of x and byte plane, in every lane.
template <int R, int x_bytes>
SDX_INLINE void broadcast_group(Rows<int8_t> x, int64_t i, i32v (&right)[R][x_bytes]) {
  for (int r = 0; r < R; ++r)
    for (int d = 0; d < x_bytes; ++d) {
      int32_t word;
      memcpy(&word, x.at + r * x.stride + d * x.plane + i, sizeof word);
      right[r][d] = splat(word);
    }
}

// Integer activations: accumulators for interleaved vectors from `kFirst` on, each lane one byte
// column, a vector for each field of the byte; recursion covers all four vectors.
template <int bits, int x_bytes, int R, int kFirst>
SDX_INLINE void add_planes(const Strip& s, Rows<int8_t> x, uint8_t sign_flip,
                           i32v (&sum)[R][4][8 / bits]) {
  constexpr int kFields = 8 / bits, kCount = kAtOnce<bits, x_bytes, R>;
  const u8v flips = splat(sign_flip);
  i32v total[kCount][kFields][R][x_bytes] = {};
  for (int64_t i = 0; i < s.n; i += kGroup) {
    i32v four[4];
    const uint8_t* p = s.at + i * s.stride;
    if constexpr (kFirst == 0)
#pragma GCC unroll 4
      for (int j = 0; j < kGroup; ++j) prefetch_row(s, i + j);
    interleave4(load(p) ^ flips, load(p + s.stride) ^ flips, load(p + 2 * s.stride) ^ flips,
                load(p + 3 * s.stride) ^ flips, four);
    i32v right[R][x_bytes];
    broadcast_group(x, i, right);
#pragma GCC unroll 4
    for (int q = 0; q < kCount; ++q)
#pragma GCC unroll 4
      for (int field = 0; field < kFields; ++field) {
        const i32v w = field_bytes<bits>((u32v)four[kFirst + q], field);
        auto& own = total[q][field];
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
          for (int d = 0; d < x_bytes; ++d) own[r][d] = dot4(own[r][d], w, right[r][d]);
      }
  }
#pragma GCC unroll 4
  for (int q = 0; q < kCount; ++q)
#pragma GCC unroll 4
    for (int field = 0; field < kFields; ++field)
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r)
        sum[r][kFirst + q][field] = join_planes<x_bytes>(total[q][field][r]);
  if constexpr (kFirst + kCount < 4)
    add_planes<bits, x_bytes, R, kFirst + kCount>(s, x, sign_flip, sum);
}

// The same with the columns brought back into order.
template <int bits, int x_bytes, int R>
SDX_INLINE void add_strip(const Strip& s, Rows<int8_t> x, uint8_t sign_flip,
                          f32v (&sum)[R][kVectors<bits>]) {
  i32v total[R][4][8 / bits];
  add_planes<bits, x_bytes, R, 0>(s, x, sign_flip, total);
  for (int r = 0; r < R; ++r)
    order_columns<bits>(
        total[r], [&](int v, i32v columns) { sum[r][v] = __builtin_convertvector(columns, f32v); });
}

// What all strips of an item share.
struct Context {
  const Gemv& f;
  const Data& data;
  int64_t row, part;  // row of x, part of k
};

// Partial sums of a row in this part of k.
SDX_INLINE float* part_of(const Context& s, int64_t row) {
  return reinterpret_cast<float*>(s.data.scratch + s.f.parts_at) +
         (s.part * s.f.p.m + row) * s.f.width;
}

// Scales the sums of the strip that begins at row k and adds them to the partial sums.
template <int bits, int x_bytes, int R>
SDX_INLINE void add_group(const Context& s, const Strip& strip, int64_t k, int64_t column,
                          bool is_first) {
  const Weights& w = s.f.p.w;
  const Activations& x = s.f.x;
  using T = Activation<x_bytes>;
  constexpr auto kSize = int64_t(sizeof(T));
  const Rows<T> rows{x.values<T>(s.data, s.row) + k, x.value_bytes / kSize, x.plane_bytes / kSize};
  f32v sum[R][kVectors<bits>];
  add_strip<bits, x_bytes, R>(strip, rows, w.sign_flip, sum);
  const int64_t block = k / w.block, own = k / x.block;
  const auto add = [&](int v, auto lanes) {
    const int64_t at = column + v * kLanes;
    __builtin_prefetch(input<std::byte>(s.data, kScale) +
                           w.scale_at.at(block, at) * size_of(w.scale) + kScalePrefetchBytes,
                       0, 2);
    const f32v scale = load_scales<false>(w, s.data, block, at, lanes);
    const f32v zero = load_zeros<false, bits>(w, s.data, block, at, lanes) * scale;
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      float* to = part_of(s, s.row + r) + at;
      const f32v values = splat(x.block_sums(s.data, s.row + r)[own]);
      f32v y = block_sum(sum[r][v], scale * x.scales(s.data, s.row + r)[own], zero, values);
      if (!is_first) y += load(to);
      store(to, y);
    }
  };
  if (column + kVectors<bits> * kLanes <= w.n) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors<bits>; ++v) add(v, Full{});
    return;
  }
  for (int v = 0; v < kVectors<bits>; ++v) {
    const int64_t left = w.n - column - v * kLanes;
    if (left > 0) add(v, Part{int(left < kLanes ? left : kLanes)});
  }
}

// One strip for all columns of an item.
template <int bits, int x_bytes>
void run_strip(Context s, int64_t k, int64_t rows, int64_t begin, int64_t end, bool is_first) {
  const Weights& w = s.f.p.w;
  const int64_t row_bytes = w.row_bytes(), vector_columns = kVectors<bits> * kLanes;
  const uint8_t* from = input<uint8_t>(s.data, kQ) + k * row_bytes;
  // Prefetches the next strip in address order: as many lines for each group of columns as it has
  // rows, so that memory is read as evenly as weights are consumed.
  const bool has_next = k + 2 * rows <= w.k;
  const int64_t width = (end - begin) * bits / 8;
  const uint8_t* next = from + (has_next ? rows * row_bytes : 0) + begin * bits / 8;
  alignas(64) uint8_t own[kStrip][SDX_VEC_BYTES];
  for (int64_t column = begin; column < end; column += vector_columns) {
    const int64_t at = column * bits / 8, bytes = row_bytes - at;
    const int64_t line = (at - begin * bits / 8) / SDX_VEC_BYTES * rows * kLine;
    const uint8_t* prefetch = next + line / width * row_bytes + line % width;
    Strip strip{from + at, row_bytes, rows, prefetch};
    if (bytes < SDX_VEC_BYTES || rows % kGroup != 0) {
      memset(own, 0, sizeof own);
      for (int64_t i = 0; i < rows; ++i)
        memcpy(own[i], strip.at + i * row_bytes,
               size_t(bytes < SDX_VEC_BYTES ? bytes : SDX_VEC_BYTES));
      strip = {own[0], SDX_VEC_BYTES, (rows + kGroup - 1) / kGroup * kGroup, prefetch};
    }
    for (s.row = 0; s.row + 2 <= s.f.p.m; s.row += 2)
      add_group<bits, x_bytes, 2>(s, strip, k, column, is_first);
    if (s.row < s.f.p.m) add_group<bits, x_bytes, 1>(s, strip, k, column, is_first);
  }
}

SDX_INLINE int64_t item_columns(int bits) { return kItemBytes * 8 / bits; }

// Items: parts of k for the same columns follow each other, in the order of prefetching.
template <int bits, int x_bytes>
Status multiply(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& f = *static_cast<const Gemv*>(args);
  const Weights& w = f.p.w;
  const int64_t columns = item_columns(bits);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t part = item % f.n_parts, column = item / f.n_parts * columns;
    const int64_t last = column + columns < w.n ? column + columns : w.n;
    const int64_t first_k = part * f.part_k;
    const int64_t last_k = first_k + f.part_k < w.k ? first_k + f.part_k : w.k;
    for (int64_t k = first_k, rows; k < last_k; k += rows) {
      rows = last_k - k < f.x.block ? last_k - k : f.x.block;
      run_strip<bits, x_bytes>({f, data, 0, part}, k, rows, column, last, k == first_k);
    }
  }
  return {};
}

// Items: columns, whose partial sums are added up and finished.
Status add_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& f = *static_cast<const Gemv*>(args);
  auto* total = reinterpret_cast<float*>(data.local + chain_local_bytes(f.p.chain));
  for (int64_t item = begin; item < end; ++item) {
    const int64_t column = item * kSumColumns;
    const int64_t n = f.p.w.n - column < kSumColumns ? f.p.w.n - column : kSumColumns;
    for (int64_t row = 0; row < f.p.m; ++row) {
      const float* parts = part_of({f, data, 0, 0}, row) + column;
      for (int64_t j = 0; j < n; j += kLanes) {
        f32v y = load(parts + j);
        for (int64_t i = 1; i < f.n_parts; ++i) y += load(parts + i * f.p.m * f.width + j);
        store(total + j, y);
      }
      finish_columns(f, data, row, column, n, total);
    }
  }
  return {};
}

// Rows of a strip: a divisor of the block, at most kStrip; 0 if there is none.
int64_t strip_rows(const Weights& w) {
  if (w.n_blocks == 1) return kStrip;
  if (w.block <= kStrip) return w.block;
  for (int64_t rows : {kStrip, kStrip / 2})
    if (w.block % rows == 0) return rows;
  return 0;
}

}  // namespace

// Strips below 8 rows spend more on scales than on products: GEMM is faster then.
bool plan_gemv_k_major(const MatMul& p, int x_bytes, Plan& plan) {
  const Weights& w = p.w;
  const int64_t rows = strip_rows(w);
  if (!w.has_byte_rows() || rows < 8) return false;
  if (rows % kGroup != 0) {
    if (x_bytes == 1) return false;
    x_bytes = 0;
  }
  auto* f = plan.make<Gemv>();
  plan.args = f;
  f->p = p;
  f->x.x_bytes = x_bytes;
  f->x.order = Order::natural_order;
  f->x.block = rows;
  f->x.n_blocks = (w.k + rows - 1) / rows;
  f->x.k = w.k + kStrip;
  plan_activations(*f, plan);
  f->part_k = part_of_k(rows);
  f->n_parts = (w.k + f->part_k - 1) / f->part_k;
  const int64_t vector_columns = SDX_VEC_BYTES * 8 / w.bits;
  f->width = (w.n + vector_columns - 1) / vector_columns * vector_columns;
  f->parts_at = plan.scratch_bytes;
  plan.scratch_bytes += f->n_parts * p.m * f->width * int64_t(sizeof(float));
  const int64_t own = chain_local_bytes(p.chain) + (kSumColumns + kLanes) * int64_t(sizeof(float));
  if (plan.local_bytes < own) plan.local_bytes = own;
  const PhaseFn run =
      phase_of(w.bits, x_bytes, []<int b, int d>() -> PhaseFn { return multiply<b, d>; });
  const int64_t columns = item_columns(w.bits), tiles = (w.n + columns - 1) / columns;
  plan.add(run, f->n_parts * tiles,
           f->part_k * (w.n < columns ? w.n : columns) * w.bits / 8 / 16 * ((p.m + 1) / 2));
  plan.add(add_parts, (w.n + kSumColumns - 1) / kSumColumns, kSumColumns * p.m * f->n_parts / 16);
  return true;
}

}  // namespace sdx::SDX_ISA::nbits
