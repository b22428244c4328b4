// n-bit GEMV for n-major weights ([n][k]) with any block size: each column is a dot product over
// the vectors of its row; lanes of a vector may belong to different blocks, whose scales are
// permuted to them.
#include "kernels/nbits/gemv.h"

namespace sdx::SDX_ISA::nbits {
namespace {

constexpr int64_t kItemColumns = 64;      // columns of an item
constexpr int64_t kColumnGroup = 8;       // columns that share a segment of x in L1
constexpr int64_t kSegmentBytes = 16384;  // of x: half of an L1 cache
constexpr int64_t kPrefetchBytes = 4096;  // prefetch distance: covers the memory latency

// How codes are widened to float: XOR mask, lookup table.
struct Fields {
  uint8_t sign_flip;
  f32v table;
};

// Rows of x, from the value on that is multiplied by the first weight of a vector.
template <class T>
struct Values {
  const T* at;
  int64_t stride, plane;  // of rows, and of byte planes
};

// One vector of weights against R rows: dot products by lane, scaled by the block of each lane.
template <int bits, int x_bytes, int R>
struct Vector {
  static constexpr int kFields = x_bytes > 0 ? 8 / bits : 32 / bits;
  using Value = Activation<x_bytes>;

  static SDX_INLINE void add(u32v v, Values<Value> x, const f32v (&scale)[R], i32v at,
                             const Fields& fields, f32v (&total)[R]) {
    if constexpr (x_bytes > 0) {
      i32v sum[R];
      dot_fields<bits, x_bytes, R>(v ^ splat(fields.sign_flip * 0x01010101u), x.at, x.stride,
                                   x.plane, sum);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
        total[r] += __builtin_convertvector(sum[r], f32v) * permute(scale[r], at);
    } else {
      f32v sum[R] = {};
#pragma GCC unroll 16
      for (int i = 0; i < kFields; ++i) {
        const f32v w = field_float<bits>(v, i, fields.sign_flip, fields.table);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sum[r] += w * load(x.at + r * x.stride + i * kLanes);
      }
      const f32v own = permute(scale[0], at);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) total[r] += sum[r] * own;
    }
  }
};

// What the columns of an item share.
struct Context {
  const Gemv& f;
  const Data& data;
  int64_t row;        // first row of x
  const int32_t* at;  // block of each lane, for each vector of weights in kLanes blocks
  int64_t n_vectors;  // vectors of weights in kLanes blocks
  Fields fields;
};

// Loads the scales of kLanes blocks, multiplied by those of each row of x, and subtracts the zero
// points times the block sums of x.
template <int bits, int x_bytes, int R>
SDX_INLINE void read_blocks(const Context& s, int64_t column, int64_t block, auto lanes,
                            f32v (&scale)[R], f32v (&sum)[R]) {
  const Weights& w = s.f.p.w;
  const Activations& x = s.f.x;
  const int64_t at = w.n_blocks == 1 ? 0 : block;
  __builtin_prefetch(input<std::byte>(s.data, kScale) +
                         w.scale_at.at(at, column) * size_of(w.scale) + kPrefetchBytes / 2,
                     0, 2);
  const f32v own = load_scales<true>(w, s.data, at, column, lanes);
  const f32v zero = load_zeros<true, bits>(w, s.data, at, column, lanes) * own;
  scale[0] = own;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    sum[r] -= zero * load(x.block_sums(s.data, s.row + r) + block);
    if constexpr (x_bytes > 0) scale[r] = own * load(x.scales(s.data, s.row + r) + block);
  }
}

// Blocks [first, last) of one column; `first` is a multiple of kLanes.
template <int bits, int x_bytes, int R>
SDX_INLINE void add_blocks(const Context& s, int64_t column, int64_t first, int64_t last,
                           f32v (&total)[R]) {
  using V = Vector<bits, x_bytes, R>;
  const Weights& w = s.f.p.w;
  const Activations& x = s.f.x;
  constexpr auto kSize = int64_t(sizeof(typename V::Value));
  const int64_t stride = x.value_bytes / kSize, plane = x.plane_bytes / kSize;
  const int64_t n_vectors = s.n_vectors, row_bytes = w.row_bytes();
  const int64_t reach = last * x.block * bits / 8, end = reach < row_bytes ? reach : row_bytes;
  int64_t byte = first * x.block * bits / 8;
  const uint8_t* q = input<uint8_t>(s.data, kQ) + column * row_bytes;
  const auto* values = x.values<typename V::Value>(s.data, s.row);
  const Fields fields{s.fields.sign_flip, pinned(s.fields.table)};
  f32v sum[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) sum[r] = total[r];
  for (int64_t b = first; b < last; b += kLanes) {
    f32v scale[R];
    if (b + kLanes <= last)
      read_blocks<bits, x_bytes>(s, column, b, Full{}, scale, sum);
    else
      read_blocks<bits, x_bytes>(s, column, b, Part{int(last - b)}, scale, sum);
    const auto add = [&](u32v v, int64_t i) {
      V::add(v, {values + byte * 8 / bits, stride, plane}, scale, load(s.at + i * kLanes), fields,
             sum);
    };
    const int64_t left = (end - byte) / SDX_VEC_BYTES, whole = left < n_vectors ? left : n_vectors;
#pragma GCC unroll 2
    for (int64_t i = 0; i < whole; ++i, byte += SDX_VEC_BYTES) {
      __builtin_prefetch(q + byte + kPrefetchBytes, 0, 2);
      add((u32v)load(q + byte), i);
    }
    if (whole < n_vectors && byte < end)
      add((u32v)load(q + byte, Part{int(end - byte)}), whole), byte = end;
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) total[r] = sum[r];
}

SDX_INLINE float sum_lanes(f32v v) {
  typedef float Four __attribute__((vector_size(16)));
  Four parts[kLanes / 4];
  memcpy(parts, &v, sizeof v);
  for (int width = kLanes / 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  const Four s = parts[0] + __builtin_shufflevector(parts[0], parts[0], 2, 3, 0, 1);
  return s[0] + s[1];
}

// Up to kColumnGroup columns, segment by segment of x: a segment is used by all of them from L1.
template <int bits, int x_bytes, int R>
void add_columns(const Context& s, int64_t column, int64_t columns, float* acc) {
  f32v total[kColumnGroup][R] = {};
  const int64_t n_blocks = (s.f.p.w.k + s.f.x.block - 1) / s.f.x.block;
  constexpr int64_t kBytes = x_bytes > 0 ? x_bytes : sizeof(float);
  int64_t segment = kSegmentBytes / (kBytes * R) / s.f.x.block / kLanes * kLanes;
  segment = segment < kLanes ? kLanes : segment;
  for (int64_t b = 0; b < n_blocks; b += segment)
    for (int64_t j = 0; j < columns; ++j)
      add_blocks<bits, x_bytes>(s, column + j, b, b + segment < n_blocks ? b + segment : n_blocks,
                                total[j]);
  for (int64_t j = 0; j < columns; ++j)
    for (int r = 0; r < R; ++r) acc[r * kItemColumns + j] = sum_lanes(total[j][r]);
}

// Items: kItemColumns columns of all rows.
template <int bits, int x_bytes>
Status multiply(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& f = *static_cast<const Gemv*>(args);
  const MatMul& p = f.p;
  constexpr int64_t kCount = SDX_VEC_BYTES * 8 / bits;
  constexpr int64_t kPerLane = kCount / kLanes;
  auto* at = reinterpret_cast<int32_t*>(data.local + chain_local_bytes(p.chain));
  const int64_t n_vectors = (kLanes * f.x.block + kCount - 1) / kCount;
  for (int64_t i = 0; i < n_vectors * kLanes; ++i) at[i] = int32_t(i * kPerLane / f.x.block);
  auto* acc = reinterpret_cast<float*>(at + n_vectors * kLanes);
  const Fields fields{p.w.sign_flip, code_table<bits>(p.w.sign_flip)};
  for (int64_t item = begin; item < end; ++item) {
    const int64_t column = item * kItemColumns;
    const int64_t columns = p.w.n - column < kItemColumns ? p.w.n - column : kItemColumns;
    for (int64_t j = 0; j < columns; j += kColumnGroup) {
      const int64_t n = columns - j < kColumnGroup ? columns - j : kColumnGroup;
      for (int64_t row = 0; row < p.m;) {
        const Context site{f, data, row, at, n_vectors, fields};
        float* to = acc + row * kItemColumns + j;
        const int64_t left = p.m - row;
        if (left >= 4)
          add_columns<bits, x_bytes, 4>(site, column + j, n, to), row += 4;
        else if (left >= 2)
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

bool plan_gemv_n_major(const MatMul& p, int x_bytes, Plan& plan) {
  const Weights& w = p.w;
  const int64_t count = SDX_VEC_BYTES * 8 / w.bits, per_lane = count / kLanes;
  const int64_t block = w.n_blocks == 1 ? 64 : w.block;
  // All codes of a 32-bit lane must belong to one block.
  if (!w.has_byte_rows() || block % per_lane != 0 || block > 256) return false;
  auto* f = plan.make<Gemv>();
  plan.args = f;
  f->p = p;
  f->x.x_bytes = x_bytes;
  f->x.order = Order::fields;
  f->x.block = block;
  f->x.n_blocks = (w.k + block - 1) / block;
  f->x.k = (f->x.n_blocks * block + count - 1) / count * count;
  plan_activations(*f, plan);
  const int64_t own = chain_local_bytes(p.chain) + kLanes * block * int64_t(sizeof(int32_t)) + 64 +
                      (p.m * kItemColumns + kLanes) * int64_t(sizeof(float));
  if (plan.local_bytes < own) plan.local_bytes = own;
  const PhaseFn run =
      phase_of(w.bits, x_bytes, []<int b, int d>() -> PhaseFn { return multiply<b, d>; });
  plan.add(run, (w.n + kItemColumns - 1) / kItemColumns,
           kItemColumns * w.k * w.bits / 8 / 16 * ((p.m + 1) / 2));
  return true;
}

}  // namespace sdx::SDX_ISA::nbits
