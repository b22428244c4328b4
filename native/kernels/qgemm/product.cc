// Products of 8-bit matrices: columns are prepared once, then tiles are summed and finished.
#include "kernels/qgemm/product.h"

#include "kernels/qgemm/pack.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA::q8 {
namespace {

SDX_INLINE int32_t byte_at(const Data& data, int slot, DType dtype, int64_t i) {
  const void* p = data.in[slot];
  return dtype == DType::u8 ? static_cast<const uint8_t*>(p)[i] : static_cast<const int8_t*>(p)[i];
}
SDX_INLINE float float_at(const Data& data, int slot, int64_t i) {
  return data.in[slot] == nullptr ? 1.0f : input<float>(data, slot)[i];
}

// Columns of a pack in the scratch; each array has room for whole panels.
SDX_INLINE Columns columns_of(const Product& p, const Data& data, int64_t pack) {
  const int64_t width = p.shape.n_panels() * kPanel;
  auto* at = reinterpret_cast<float*>(data.scratch + p.columns_at) + kPanel + pack * 4 * width;
  auto* whole = reinterpret_cast<int32_t*>(at + 2 * width);
  return {at, at + width, whole, whole + width};
}
SDX_INLINE Output* output_of(const Product& p, const Data& data) {
  return reinterpret_cast<Output*>(data.scratch + p.columns_at);
}

SDX_INLINE const uint8_t* pack_of(const Product& p, const Data& data, int64_t pack) {
  const uint8_t* packs =
      p.packed_at < 0 ? input<uint8_t>(data, kW) : reinterpret_cast<const uint8_t*>(data.scratch);
  return packs + pack * p.shape.bytes();
}

Status pack_weights(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const Product*>(args);
  const int64_t n_panels = p.shape.n_panels(), n = p.shape.n;
  const uint8_t flip = p.w == DType::u8 ? 128 : 0;
  const Weights weights{1, p.shape.k, 0, n, 1, p.shape.k * n, flip};
  for (int64_t i = begin; i < end; ++i) {
    const int64_t pack = i / n_panels;
    pack_panel(weights, p.shape, input<uint8_t>(data, kW) + pack * weights.pack_stride,
               i % n_panels, reinterpret_cast<uint8_t*>(data.scratch) + pack * p.shape.bytes());
  }
  return {};
}

float bound(float real, float scale, float zero, float low, float high) {
  const f32v steps = splat(real / scale + zero);
  return round_small(clamp(steps, splat(low), splat(high)))[0];
}

}  // namespace

void make_output(const Product& p, const Data& data, Output& out) {
  out = {p.low, p.high, 0};
  if (p.out != DType::u8 && p.out != DType::i8) return;
  const float low = p.out == DType::u8 ? 0.0f : -128.0f, scale = float_at(data, kYScale, 0);
  if (data.in[kYZero] != nullptr) out.zero = float(byte_at(data, kYZero, p.out, 0));
  out.low = bound(p.low, scale, out.zero, low, low + 255) - out.zero;
  out.high = bound(p.high, scale, out.zero, low, low + 255) - out.zero;
}

// Zero points as the tiles see them: moved like the bytes.
void make_columns(const Product& p, const Data& data, const Weighed& w, const Columns& to) {
  const int32_t x_zero = (p.n_x_zero ? byte_at(data, kXZero, p.x, 0) : 0) + p.flip;
  const float step = float_at(data, kYScale, 0), x_scale = float_at(data, kXScale, 0);
  for (int64_t j = 0; j < w.n; ++j) {
    const int64_t at = w.first + j, place = w.place == nullptr ? j : w.place(j);
    int32_t zero = p.w == DType::u8 ? -128 : 0;
    if (p.n_w_zero) zero += byte_at(data, kWZero, p.w, p.n_w_zero == 1 ? 0 : at);
    const auto terms = uint32_t(p.shape.k) * uint32_t(zero) - uint32_t(w.sums[j]);
    const uint32_t bias = p.bias == DType::i32 ? uint32_t(input<int32_t>(data, kBias)[at]) : 0;
    to.offset[place] = int32_t(terms * uint32_t(x_zero) + bias);
    to.zero[place] = zero;
    const float w_scale = float_at(data, kWScale, p.n_w_scale == 1 ? 0 : at);
    to.scale[place] = x_scale * w_scale / step;
    to.shift[place] = 0;
    if (p.bias == DType::f32) to.shift[place] = input<float>(data, kBias)[at] / step;
  }
}

namespace {

Status make_all_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const Product*>(args);
  for (int64_t pack = begin; pack < end; ++pack) {
    if (pack == 0) make_output(p, data, *output_of(p, data));
    const auto* sums = reinterpret_cast<const int32_t*>(pack_of(p, data, pack) + p.shape.sums_at());
    const int64_t first = p.is_grouped ? pack * p.shape.n : 0;
    make_columns(p, data, {sums, p.shape.n, first, nullptr}, columns_of(p, data, pack));
  }
  return {};
}

int32_t row_sum(const uint8_t* row, int64_t n) {
  i32v total{};
  vloop<uint8_t>(n, [&](int64_t i, auto lanes) {
    total = dot4(total, (i32v)load(row + i, lanes), splat(int32_t(0x01010101)));
  });
  return reduce_sum(total);
}

template <class T>
SDX_INLINE void finish_vec(T* to, f32v y, const Output& out, auto lanes) {
  const f32v held = clamp(y, splat(out.low), splat(out.high));
  store_i32(to, round_bits(held) + splat(int32_t(out.zero)), lanes);
}
SDX_INLINE void finish_vec(float* to, f32v y, const Output& out, auto lanes) {
  store(to, vmin(vmax(y, splat(out.low)), splat(out.high)), lanes);
}

// Sums of kLanes columns from the j-th on, finished and written. They may wrap around, as may what
// lies behind the last column.
template <bool has_sums, class T>
SDX_INLINE void finish_sums(i32v sums, const Columns& c, int64_t j, const Output& out, int32_t row,
                            T* to, auto lanes) {
  u32v total = (u32v)sums + (u32v)load(c.offset + j);
  if constexpr (has_sums) total -= (u32v)load(c.zero + j) * uint32_t(row);
  const auto v = (i32v)total;
  if constexpr (__is_same(T, int32_t)) {
    store(to, v, lanes);
  } else {
    const f32v y = __builtin_convertvector(v, f32v) * load(c.scale + j) + load(c.shift + j);
    finish_vec(to, y, out, lanes);
  }
}

SDX_INLINE Columns from(const Columns& c, int64_t j) {
  return {c.scale + j, c.shift + j, c.offset + j, c.zero + j};
}

// Gathered rows, one panel of weights, and where the result goes.
template <class T>
struct Strip {
  const uint8_t* a;
  int64_t stride;
  const int32_t* row_sums;  // null where weights have no zero point
  const int8_t* b;
  int64_t n_groups, n;
  Columns columns;
  const Output* out;
  T* to;
  int64_t out_stride;
};

enum class Width : uint8_t { whole, part, vector };  // columns of a panel: all, or one vector

template <int R, Width width, bool has_sums, class T>
void strip_tile(const Strip<T>& strip, int64_t row) {
  const Strip<T> s = strip;  // which bytes that are written cannot alias
  const Output out = *s.out;
  const auto write = [&](int64_t j, int i, int v, i32v sums) {
    const int64_t at = j + v * kLanes, left = s.n - at;
    const int32_t sum = has_sums ? s.row_sums[row + i] : 0;
    T* to = s.to + (row + i) * s.out_stride + at;
    if (width == Width::whole || left >= kLanes)
      finish_sums<has_sums>(sums, s.columns, at, out, sum, to, Full{});
    else if (left > 0)
      finish_sums<has_sums>(sums, s.columns, at, out, sum, to, Part{int(left)});
  };
  constexpr int kVecs = width == Width::vector ? 1 : kTileVecs;
  for (int j = 0; j < (width == Width::vector ? kTileCols : kPanel); j += kTileCols)
    tile<R, kVecs>(s.a + row * s.stride, s.stride, s.b + j * kGroup, s.n_groups,
                   [&](int i, int v, i32v sums) { write(j, i, v, sums); });
}

template <Width width, bool has_sums, class T>
void strip_rows(const Strip<T>& s, int64_t n_rows) {
  int64_t row = 0;
  if constexpr (kTileRows == 12 && width != Width::part) {
    for (; row + 12 <= n_rows; row += 12) strip_tile<12, width, has_sums>(s, row);
    if (row + 8 <= n_rows) strip_tile<8, width, has_sums>(s, row), row += 8;
  }
  for (; row + 4 <= n_rows; row += 4) strip_tile<4, width, has_sums>(s, row);
  for (; row < n_rows; ++row) strip_tile<1, width, has_sums>(s, row);
}

template <bool has_sums, class T>
void run_strip(const Strip<T>& s, int64_t n_rows) {
  if (s.n == kPanel)
    strip_rows<Width::whole, has_sums>(s, n_rows);
  else if (s.n <= kLanes)
    strip_rows<Width::vector, has_sums>(s, n_rows);
  else
    strip_rows<Width::part, has_sums>(s, n_rows);
}

template <class T>
Status product_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const Product*>(args);
  auto* rows = reinterpret_cast<uint8_t*>(data.local);
  auto* row_sums = reinterpret_cast<int32_t*>(data.local + p.row_block * p.stride);
  int64_t gathered = -1;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item / p.n_panel_blocks, job = block / p.n_row_blocks;
    const int64_t row = block % p.n_row_blocks * p.row_block;
    const int64_t n_rows = p.m - row < p.row_block ? p.m - row : p.row_block;
    if (gathered != block) {
      p.gather(p, data, job, row, n_rows, rows);
      for (int64_t i = 0; p.has_row_sums && i < n_rows; ++i)
        row_sums[i] = row_sum(rows + i * p.stride, p.shape.k);
      gathered = block;
    }
    const int64_t pack = p.n_packs == 1 ? 0 : job % p.n_packs;
    const auto* packed = reinterpret_cast<const int8_t*>(pack_of(p, data, pack));
    const Columns columns = columns_of(p, data, pack);
    const int64_t first = item % p.n_panel_blocks * p.panels;
    const int64_t last = first + p.panels;
    const int64_t start = p.is_grouped ? job / p.n_packs * p.m : job * p.m;
    T* to = output<T>(data) + (start + row) * p.out_stride + (p.is_grouped ? pack * p.shape.n : 0);
    Strip<T> strip{rows,        p.stride,           p.has_row_sums ? row_sums : nullptr,
                   nullptr,     p.shape.n_groups(), 0,
                   {},          output_of(p, data), nullptr,
                   p.out_stride};
    for (int64_t i = first; i < last && i < p.shape.n_panels(); ++i) {
      const int64_t j = i * kPanel;
      strip.n = p.shape.n - j < kPanel ? p.shape.n - j : kPanel;
      strip.b = packed + i * p.shape.panel_bytes();
      strip.columns = from(columns, j);
      strip.to = to + j;
      p.has_row_sums ? run_strip<true>(strip, n_rows) : run_strip<false>(strip, n_rows);
    }
  }
  return {};
}

PhaseFn product_into(DType out) {
  switch (out) {
    case DType::i32: return product_items<int32_t>;
    case DType::f32: return product_items<float>;
    case DType::u8: return product_items<uint8_t>;
    default: return product_items<int8_t>;
  }
}

constexpr int64_t kBlockBytes = 192 << 10;  // of gathered rows: a part of the second-level cache
constexpr int64_t kEnoughItems = 16;

// Blocks of rows as large as the cache takes; columns are split only where rows are few.
void choose_blocks(Product& p) {
  const int64_t k = p.shape.n_groups() * kGroup;
  // Room for a run of bytes to overshoot; odd lines, so that rows fall on different cache sets.
  p.stride = ((k + 2 * 64 - 1) / 64 | 1) * 64;
  int64_t rows = kBlockBytes / p.stride / kTileRows * kTileRows;
  rows = rows < kTileRows ? kTileRows : rows > 96 ? 96 : rows;
  p.row_block = p.m < rows ? (p.m < 1 ? 1 : p.m) : rows;
  p.n_row_blocks = (p.m + p.row_block - 1) / p.row_block;
  const int64_t blocks = p.n_jobs * p.n_row_blocks, n_panels = p.shape.n_panels();
  p.panels = n_panels;
  if (blocks > 0 && blocks < kEnoughItems) {
    const int64_t parts = (kEnoughItems + blocks - 1) / blocks;
    p.panels = (n_panels + parts - 1) / parts;
    if (p.panels < 4) p.panels = n_panels < 4 ? n_panels : 4;
  }
  if (p.panels < 1) p.panels = 1;
  p.n_panel_blocks = (n_panels + p.panels - 1) / p.panels;
}

}  // namespace

void read_operands(Product& p, const Call& call) {
  const View* in = call.in;
  const auto count = [&](int slot) { return in[slot].is_given() ? in[slot].count() : 0; };
  p.x = in[kX].dtype, p.out = call.out[0].dtype;
  p.bias = in[kBias].is_given() ? in[kBias].dtype : DType::none;
  p.n_x_zero = count(kXZero), p.n_w_scale = count(kWScale), p.n_w_zero = count(kWZero);
  p.flip = p.x == DType::i8 ? 128 : 0;
  p.has_row_sums = p.w == DType::u8 || p.n_w_zero > 0;
  p.low = float(call.floats[0]), p.high = float(call.floats[1]);
}

void plan_product(Product& p, const Call& call, Plan& plan) {
  read_operands(p, call);
  choose_blocks(p);
  plan.local_bytes = p.row_block * p.stride + (p.row_block + 15) / 16 * 64;
  const int64_t packed = p.packed_at < 0 ? 0 : (p.n_packs * p.shape.bytes() + 63) / 64 * 64;
  const int64_t width = p.shape.n_panels() * kPanel;
  p.columns_at = packed;
  plan.scratch_bytes = packed + (kPanel + p.n_packs * 4 * width) * 4;
  plan.args = &p;
  const int64_t panel_work = p.shape.k * p.row_block * kPanel / 200;
  if (p.packed_at >= 0) plan.add(pack_weights, p.n_packs * p.shape.n_panels(), p.shape.k * kPanel);
  plan.add(make_all_columns, p.n_packs, width);
  plan.add(product_into(p.out), p.n_jobs * p.n_row_blocks * p.n_panel_blocks,
           panel_work * p.panels);
}

}  // namespace sdx::SDX_ISA::q8
