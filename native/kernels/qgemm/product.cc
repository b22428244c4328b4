// Products of 8-bit matrices: columns are prepared once, then tiles are summed and finished.
#include "kernels/qgemm/product.h"

#include "kernels/qgemm/pack.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA {
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
  const uint8_t* packs = p.packed_at < 0 ? input<uint8_t>(data, kW)
                                         : reinterpret_cast<const uint8_t*>(data.scratch);
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

void make_output(const Product& p, const Data& data) {
  Output& out = *output_of(p, data);
  out = {p.low, p.high, 0};
  if (p.out != DType::u8 && p.out != DType::i8) return;
  const float low = p.out == DType::u8 ? 0.0f : -128.0f, scale = float_at(data, kYScale, 0);
  if (data.in[kYZero] != nullptr) out.zero = float(byte_at(data, kYZero, p.out, 0));
  out.low = bound(p.low, scale, out.zero, low, low + 255) - out.zero;
  out.high = bound(p.high, scale, out.zero, low, low + 255) - out.zero;
}

// The zero point of the rows and of each column as the tiles see them, moved like the bytes.
void make_columns(const Product& p, const Data& data, int64_t pack) {
  const Columns c = columns_of(p, data, pack);
  const auto* sums =
      reinterpret_cast<const int32_t*>(pack_of(p, data, pack) + p.shape.sums_at());
  const int64_t n = p.shape.n, first = p.is_grouped ? pack * n : 0;
  const int32_t x_zero = (p.n_x_zero ? byte_at(data, kXZero, p.x, 0) : 0) + p.flip;
  const float step = float_at(data, kYScale, 0);
  for (int64_t j = 0; j < n; ++j) {
    const int64_t at = first + j;
    int32_t zero = p.w == DType::u8 ? -128 : 0;
    if (p.n_w_zero) zero += byte_at(data, kWZero, p.w, p.n_w_zero == 1 ? 0 : at);
    const auto terms = uint32_t(p.shape.k) * uint32_t(zero) - uint32_t(sums[j]);
    c.offset[j] = int32_t(terms * uint32_t(x_zero));
    c.zero[j] = zero;
    const float w_scale = float_at(data, kWScale, p.n_w_scale == 1 ? 0 : at);
    c.scale[j] = float_at(data, kXScale, 0) * w_scale / step;
    c.shift[j] = 0;
    if (p.bias == DType::i32) c.offset[j] += input<int32_t>(data, kBias)[at];
    if (p.bias == DType::f32) c.shift[j] = input<float>(data, kBias)[at] / step;
  }
}

Status make_all_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const Product*>(args);
  for (int64_t pack = begin; pack < end; ++pack) {
    if (pack == 0) make_output(p, data);
    make_columns(p, data, pack);
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
  store_i32(to, __builtin_convertvector(round_small(held) + splat(out.zero), i32v), lanes);
}
SDX_INLINE void finish_vec(float* to, f32v y, const Output& out, auto lanes) {
  store(to, vmin(vmax(y, splat(out.low)), splat(out.high)), lanes);
}

// A row of sums in one panel, finished and written.
template <class T>
void finish_row(const int32_t* sums, const Columns& c, const Output& out, int64_t n, int32_t row,
                T* to) {
  vloop(n, [&](int64_t j, auto lanes) {
    i32v v = load(sums + j, Full{}) + load(c.offset + j, Full{});
    if (row != 0) v -= load(c.zero + j, Full{}) * row;
    if constexpr (sizeof(T) == 4 && T(0.5f) == T(0)) {
      store(to + j, v, lanes);
    } else {
      const f32v y = __builtin_convertvector(v, f32v) * load(c.scale + j, Full{});
      finish_vec(to + j, y + load(c.shift + j, Full{}), out, lanes);
    }
  });
}

SDX_INLINE Columns from(const Columns& c, int64_t j) {
  return {c.scale + j, c.shift + j, c.offset + j, c.zero + j};
}

template <int R>
void panel_tile(const uint8_t* a, int64_t stride, const int8_t* b, int64_t n_groups, int32_t* sums) {
  for (int j = 0; j < kPanel; j += kTileCols)
    tile<R>(a, stride, b + j * kGroup, n_groups, sums + j);
}

// Sums of up to kTileRows rows, and how many of them were taken.
int some_rows(const uint8_t* a, int64_t stride, const int8_t* b, int64_t n_groups, int64_t rows,
              int32_t* sums) {
  if (kTileRows == 12 && rows >= 12) return panel_tile<12>(a, stride, b, n_groups, sums), 12;
  if (kTileRows == 12 && rows >= 8) return panel_tile<8>(a, stride, b, n_groups, sums), 8;
  if (rows >= 4) return panel_tile<4>(a, stride, b, n_groups, sums), 4;
  if (rows >= 2) return panel_tile<2>(a, stride, b, n_groups, sums), 2;
  return panel_tile<1>(a, stride, b, n_groups, sums), 1;
}

struct Block {
  const uint8_t* a;
  const int32_t* row_sums;  // null where weights have no zero point
  int64_t rows;
};

template <class T>
void panel_rows(const Product& p, const Block& block, const int8_t* b, const Columns& c,
                const Output& out, int64_t n, T* to) {
  alignas(64) int32_t sums[kTileRows * kPanel];
  for (int64_t row = 0; row < block.rows;) {
    const int done = some_rows(block.a + row * p.stride, p.stride, b, p.shape.n_groups(),
                               block.rows - row, sums);
    for (int i = 0; i < done; ++i, ++row) {
      const int32_t sum = block.row_sums == nullptr ? 0 : block.row_sums[row];
      finish_row(sums + i * kPanel, c, out, n, sum, to + row * p.out_stride);
    }
  }
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
    const Block gathered_rows{rows, p.has_row_sums ? row_sums : nullptr, n_rows};
    for (int64_t i = first; i < last && i < p.shape.n_panels(); ++i) {
      const int64_t j = i * kPanel, n = p.shape.n - j < kPanel ? p.shape.n - j : kPanel;
      panel_rows(p, gathered_rows, packed + i * p.shape.panel_bytes(), from(columns, j),
                 *output_of(p, data), n, to + j);
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
  p.stride = ((k + 63) / 64 | 1) * 64;  // odd lines: rows do not fall on the same cache sets
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

void plan_product(Product& p, const Call& call, Plan& plan) {
  const View* in = call.in;
  const auto count = [&](int slot) { return in[slot].is_given() ? in[slot].count() : 0; };
  p.x = in[kX].dtype, p.out = call.out[0].dtype;
  p.bias = in[kBias].is_given() ? in[kBias].dtype : DType::none;
  p.n_x_zero = count(kXZero), p.n_w_scale = count(kWScale), p.n_w_zero = count(kWZero);
  p.flip = p.x == DType::i8 ? 128 : 0;
  p.has_row_sums = p.w == DType::u8 || p.n_w_zero > 0;
  p.low = float(call.floats[0]), p.high = float(call.floats[1]);
  choose_blocks(p);
  plan.local_bytes = p.row_block * p.stride + p.row_block * 4;
  const int64_t packed = p.packed_at < 0 ? 0 : (p.n_packs * p.shape.bytes() + 63) / 64 * 64;
  const int64_t width = p.shape.n_panels() * kPanel;
  p.columns_at = packed;
  plan.scratch_bytes = packed + (kPanel + p.n_packs * 4 * width) * 4;
  plan.args = &p;
  const int64_t panel_work = p.shape.k * p.row_block * kPanel / 200;
  if (p.packed_at >= 0)
    plan.add(pack_weights, p.n_packs * p.shape.n_panels(), p.shape.k * kPanel);
  plan.add(make_all_columns, p.n_packs, width);
  plan.add(product_into(p.out), p.n_jobs * p.n_row_blocks * p.n_panel_blocks,
           panel_work * p.panels);
}

}  // namespace sdx::SDX_ISA
