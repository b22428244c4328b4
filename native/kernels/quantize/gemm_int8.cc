// The driver of 8-bit products: column parameters are computed once, then items multiply a block of
// rows (gathered into local memory, or read in place) by some panels of packed weights.
#include "kernels/quantize/pack_int8.h"
#include "kernels/quantize/requantize.h"
#include "kernels/quantize/row_sums_int8.h"

namespace sdx::SDX_ISA::int8 {
namespace {

SDX_INLINE int32_t byte_at(const Data& data, int operand, DType dtype, int64_t i) {
  const void* p = data.in[operand];
  return dtype == DType::u8 ? static_cast<const uint8_t*>(p)[i] : static_cast<const int8_t*>(p)[i];
}
SDX_INLINE float float_at(const Data& data, int operand, int64_t i) {
  return data.in[operand] == nullptr ? 1.0f : input<float>(data, operand)[i];
}

// Column parameters in memory: the Output (in one panel's worth of floats), then four arrays per
// pack, padded to whole panels.
SDX_INLINE int64_t columns_bytes(const Gemm& p) {
  return (kPanel + p.n_packs * 4 * p.shape.n_panels() * kPanel) * 4;
}
SDX_INLINE std::byte* column_memory(const Gemm& p, const Data& data) {
  return p.columns != nullptr ? const_cast<std::byte*>(p.columns) : data.scratch + p.columns_at;
}
SDX_INLINE ColumnParams columns_of(const Gemm& p, std::byte* memory, int64_t pack) {
  const int64_t width = p.shape.n_panels() * kPanel;
  auto* at = reinterpret_cast<float*>(memory) + kPanel + pack * 4 * width;
  auto* int_params = reinterpret_cast<int32_t*>(at + 2 * width);
  return {at, at + width, int_params, int_params + width};
}

SDX_INLINE const uint8_t* pack_of(const Gemm& p, const Data& data, int64_t pack) {
  const uint8_t* packs = p.packed_at < 0
                             ? input<uint8_t>(data, kW)
                             : reinterpret_cast<const uint8_t*>(data.scratch + p.packed_at);
  return packs + pack * p.shape.bytes();
}

// Phase for weights that are not constant: packs them into scratch memory. Items are panels.
Status pack_weights(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const Gemm*>(args);
  const int64_t n_panels = p.shape.n_panels(), n = p.shape.n;
  const uint8_t flip = p.w == DType::u8 ? 128 : 0;
  const Weights weights{1, 1, p.shape.k, 0, 0, n, 1, p.shape.k * n, flip};
  for (int64_t i = begin; i < end; ++i) {
    const int64_t pack = i / n_panels;
    pack_panel(weights, p.shape, input<uint8_t>(data, kW) + pack * weights.pack_stride,
               i % n_panels,
               reinterpret_cast<uint8_t*>(data.scratch + p.packed_at) + pack * p.shape.bytes());
  }
  return {};
}

// A bound of the real output as a code of the output type.
float bound(float real, float scale, float zero, float low, float high) {
  const f32v code = splat(real / scale + zero);
  return round_small(clamp(code, splat(low), splat(high)))[0];
}

}  // namespace

void make_output(const Gemm& p, const Data& data, Output& out) {
  out = {p.low, p.high, 0};
  if (p.out != DType::u8 && p.out != DType::i8) return;
  const float low = p.out == DType::u8 ? 0.0f : -128.0f, scale = float_at(data, kYScale, 0);
  if (data.in[kYZero] != nullptr) out.zero = float(byte_at(data, kYZero, p.out, 0));
  out.low = bound(p.low, scale, out.zero, low, low + 255) - out.zero;
  out.high = bound(p.high, scale, out.zero, low, low + 255) - out.zero;
}

namespace {

// The zero points of columns [j, ...), shifted like the bytes that they belong to.
template <class L>
SDX_INLINE i32v column_zeros(const Gemm& p, const Data& data, int64_t j, L lanes) {
  const i32v shift = splat(p.w == DType::u8 ? -128 : 0);
  if (p.n_w_zero == 0) return shift;
  if (p.n_w_zero == 1) return shift + byte_at(data, kWZero, p.w, 0);
  return shift + (p.w == DType::u8 ? load_i32(input<uint8_t>(data, kWZero) + j, lanes)
                                   : load_i32(input<int8_t>(data, kWZero) + j, lanes));
}

// Parameters of columns, in their order; these run in every step where scales are not constant.
// Wrapping unsigned arithmetic: single terms may exceed int32 although the result fits. `put`
// stores a vector of parameters.
template <class Put>
SDX_INLINE void make_each(const Gemm& p, const Data& data, const WeightColumns& w,
                          const ColumnParams& to, Put&& put) {
  const uint32_t x_zero = uint32_t((p.n_x_zero ? byte_at(data, kXZero, p.x, 0) : 0) + p.flip);
  const float y_scale = float_at(data, kYScale, 0), x_scale = float_at(data, kXScale, 0);
  const float one_scale = x_scale * float_at(data, kWScale, 0) / y_scale;
  vloop(w.n, [&](int64_t j, auto lanes) {
    const int64_t at = w.first + j;
    const i32v zero = column_zeros(p, data, at, lanes);
    u32v offset = ((u32v)zero * uint32_t(p.depth) - (u32v)load(w.column_sums + j, lanes)) * x_zero;
    if (p.bias == DType::i32) offset += (u32v)load(input<int32_t>(data, kBias) + at, lanes);
    f32v scale = splat(one_scale), shift{};
    if (p.n_w_scale > 1) scale = x_scale * load(input<float>(data, kWScale) + at, lanes) / y_scale;
    if (p.bias == DType::f32) shift = load(input<float>(data, kBias) + at, lanes) / y_scale;
    put(to.zero, j, zero, lanes);
    put(to.offset, j, (i32v)offset, lanes);
    put(to.scale, j, scale, lanes);
    put(to.shift, j, shift, lanes);
  });
}

}  // namespace

void make_columns(const Gemm& p, const Data& data, const WeightColumns& w, const ColumnParams& to) {
  if (w.position == nullptr)
    return make_each(p, data, w, to, [](auto* param, int64_t j, auto v, auto lanes) {
      store(param + j, v, lanes);
    });
  make_each(p, data, w, to, [&](auto* param, int64_t j, auto v, auto) {
    for (int64_t i = 0; i < kLanes && j + i < w.n; ++i) param[w.position(j + i)] = v[i];
  });
}

namespace {

void make_packs(const Gemm& p, const Data& data, int64_t begin, int64_t end) {
  std::byte* memory = column_memory(p, data);
  for (int64_t pack = begin; pack < end; ++pack) {
    if (pack == 0) make_output(p, data, *reinterpret_cast<Output*>(memory));
    const auto* column_sums =
        reinterpret_cast<const int32_t*>(pack_of(p, data, pack) + p.shape.column_sums_at());
    const int64_t first = p.is_grouped ? pack * p.shape.n : 0;
    make_columns(p, data, {column_sums, p.shape.n, first, nullptr}, columns_of(p, memory, pack));
  }
}
Status make_all_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  make_packs(*static_cast<const Gemm*>(args), data, begin, end);
  return {};
}

SDX_INLINE ColumnParams from(const ColumnParams& c, int64_t j) {
  return {c.scale + j, c.shift + j, c.offset + j, c.zero + j};
}

// A block of rows times one panel of weights.
template <class T>
struct Strip {
  Rows rows;
  const int8_t* b;
  Target<T> target;
  const int32_t* row_sums;  // where weights have a zero point
};

// Columns of a panel that exist: all, some, or at most one vector of them.
enum class Width : uint8_t { full, partial, one_vector };

template <int R, Width width, bool has_sums, class T>
void strip_tile(const Strip<T>& strip, int64_t row) {
  const Strip<T> s = strip;  // a copy: byte stores cannot alias it, so fields stay in registers
  constexpr int kVecs = width == Width::one_vector ? 1 : kTileVecs;
  for (int j = 0; j < (width == Width::one_vector ? kLanes : kPanel); j += kTileCols) {
    // The weights' zero points times the row's sum are subtracted first: one register each then.
    const auto start_at = [&](int i, int v) {
      const i32v start = load(s.target.columns.offset + j + v * kLanes);
      if constexpr (!has_sums) return start;
      const u32v zero = (u32v)load(s.target.columns.zero + j + v * kLanes);
      return (i32v)((u32v)start - zero * uint32_t(s.row_sums[row + i]));
    };
    tile<R, kVecs>(s.rows.from(row), s.b + j * kGroup, start_at, [&](const auto& accumulators) {
      requantize_tile<width == Width::full>(accumulators, s.target, row, j);
    });
  }
}

// All rows of a block in tiles of 12, 8, 4 and 1.
template <Width width, bool has_sums, class T>
void strip_rows(const Strip<T>& s, int64_t n_rows) {
  int64_t row = 0;
  if constexpr (kTileRows == 12) {
    for (; row + 12 <= n_rows; row += 12) strip_tile<12, width, has_sums>(s, row);
    if (row + 8 <= n_rows) strip_tile<8, width, has_sums>(s, row), row += 8;
  }
  for (; row + 4 <= n_rows; row += 4) strip_tile<4, width, has_sums>(s, row);
  for (; row < n_rows; ++row) strip_tile<1, width, has_sums>(s, row);
}

template <bool has_sums, class T>
void run_strip(const Strip<T>& s, int64_t n_rows) {
  if (s.target.n == kPanel)
    strip_rows<Width::full, has_sums>(s, n_rows);
  else if (s.target.n <= kLanes)
    strip_rows<Width::one_vector, has_sums>(s, n_rows);
  else
    strip_rows<Width::partial, has_sums>(s, n_rows);
}

// The rows of a job from `row` on, read in place.
SDX_INLINE Rows rows_in_place(const Gemm& p, const Data& data, int64_t job, int64_t row) {
  const RowLayout& at = p.layout;
  const uint8_t* images =
      at.at < 0 ? input<uint8_t>(data, kX) : reinterpret_cast<const uint8_t*>(data.scratch + at.at);
  const uint8_t* first =
      images + job / at.jobs * at.image_bytes + job % at.jobs * at.job_bytes + row * p.stride;
  const int64_t groups = p.shape.n_groups() / at.runs.count();
  return {first, p.stride, groups, int32_t(p.flip * 0x01010101u), at.runs};
}

// Local memory: gathered rows, then row sums.
SDX_INLINE int64_t gathered_bytes(const Gemm& p) {
  return p.gather == nullptr ? 0 : p.row_block * p.stride;
}

// Items are (job, row block, panel block) with panel blocks innermost: rows are gathered once for
// consecutive items of the same block.
template <class T>
Status gemm_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const Gemm*>(args);
  auto* rows = reinterpret_cast<uint8_t*>(data.local);
  auto* row_sums = reinterpret_cast<int32_t*>(data.local + gathered_bytes(p));
  std::byte* memory = column_memory(p, data);
  int64_t gathered = -1;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item / p.n_panel_blocks, job = block / p.n_row_blocks;
    const int64_t row = block % p.n_row_blocks * p.row_block;
    const int64_t n_rows = p.m - row < p.row_block ? p.m - row : p.row_block;
    const Rows gathered_rows{rows, p.stride, p.shape.n_groups(), int32_t(p.flip * 0x01010101u)};
    const Rows block_rows = p.gather == nullptr ? rows_in_place(p, data, job, row) : gathered_rows;
    if (gathered != block) {
      if (p.gather != nullptr) p.gather(p, data, job, row, n_rows, rows);
      const int64_t run_bytes = p.gather == nullptr ? p.depth / p.layout.runs.count() : p.shape.k;
      if (p.has_row_sums) sum_rows(block_rows, run_bytes, n_rows, row_sums);
      gathered = block;
    }
    const int64_t pack = p.n_packs == 1 ? 0 : job % p.n_packs;
    const auto* packed = reinterpret_cast<const int8_t*>(pack_of(p, data, pack));
    const ColumnParams columns = columns_of(p, memory, pack);
    const int64_t first = item % p.n_panel_blocks * p.panels;
    const int64_t last = first + p.panels;
    const int64_t start = p.is_grouped ? job / p.n_packs * p.m : job * p.m;
    T* to = output<T>(data) + (start + row) * p.out_stride + (p.is_grouped ? pack * p.shape.n : 0);
    Strip<T> strip{block_rows,
                   nullptr,
                   {{}, *reinterpret_cast<Output*>(memory), nullptr, p.out_stride, 0},
                   row_sums};
    for (int64_t i = first; i < last && i < p.shape.n_panels(); ++i) {
      const int64_t j = i * kPanel;
      strip.b = packed + i * p.shape.panel_bytes();
      strip.target.n = p.shape.n - j < kPanel ? p.shape.n - j : kPanel;
      strip.target.columns = from(columns, j);
      strip.target.to = to + j;
      p.has_row_sums ? run_strip<true>(strip, n_rows) : run_strip<false>(strip, n_rows);
    }
  }
  return {};
}

PhaseFn gemm_into(DType out) {
  switch (out) {
    case DType::i32: return gemm_items<int32_t>;
    case DType::f32: return gemm_items<float>;
    case DType::u8: return gemm_items<uint8_t>;
    default: return gemm_items<int8_t>;
  }
}

constexpr int64_t kBlockBytes = 192
                                << 10;  // of gathered rows: they stay in L2, together with a panel
constexpr int64_t kEnoughItems = 16;    // a few per thread, so that threads finish together
constexpr int64_t kMaxRows = 96;        // 8 tiles of 12 rows

// Row blocks are as large as L2 permits; where that gives too few items, columns are split, then
// rows. Rows that are read in place and are fewer than the columns form one block, so that weights,
// the larger operand, stream from memory once.
void choose_blocks(Gemm& p) {
  const bool is_one = p.gather == nullptr && p.m > kMaxRows && p.m <= p.shape.n &&
                      p.m * p.stride <= 2 * kBlockBytes;
  int64_t rows = is_one ? p.m : kMaxRows;
  if (p.gather != nullptr) {
    // Slack for copy_run's overshoot; an odd number of cache lines, so that rows map to different
    // sets.
    p.stride = ((p.shape.n_groups() * kGroup + 2 * 64 - 1) / 64 | 1) * 64;
    const int64_t fit = kBlockBytes / p.stride / kTileRows * kTileRows;
    rows = fit < kTileRows ? kTileRows : fit < rows ? fit : rows;
  }
  const int64_t n_panels = p.shape.n_panels(), m = p.m < 1 ? 1 : p.m;
  const auto count = [&](int64_t n) { return p.n_jobs * ((m + n - 1) / n); };
  const int64_t least = 2 * kTileRows;
  int64_t blocks = count(rows);
  p.panels = n_panels < 1 ? 1 : n_panels;
  if (blocks > 0 && blocks < kEnoughItems) {
    p.panels = (n_panels * blocks + (is_one ? 0 : kEnoughItems - 1)) / kEnoughItems;
    const int64_t fewest = is_one || n_panels < 2 ? 1 : 2;
    if (p.panels < fewest) p.panels = fewest;
    const int64_t parts = (n_panels + p.panels - 1) / p.panels;
    while (rows > least && count(rows) * parts < kEnoughItems)
      rows = rows > 2 * least ? rows / 2 : least;
    const int64_t each = (m + rows - 1) / rows;
    rows = ((m + each - 1) / each + 3) / 4 * 4;
  }
  p.row_block = m < rows ? m : rows;
  p.n_row_blocks = (p.m + p.row_block - 1) / p.row_block;
  p.n_panel_blocks = (n_panels + p.panels - 1) / p.panels;
}

}  // namespace

void read_operands(Gemm& p, const Call& call) {
  const View* in = call.in;
  const auto count = [&](int operand) { return in[operand].is_given() ? in[operand].count() : 0; };
  p.x = in[kX].dtype, p.out = call.out[0].dtype;
  p.bias = in[kBias].is_given() ? in[kBias].dtype : DType::none;
  p.n_x_zero = count(kXZero), p.n_w_scale = count(kWScale), p.n_w_zero = count(kWZero);
  p.flip = p.x == DType::i8 ? 128 : 0;
  p.has_row_sums = p.w == DType::u8 || p.n_w_zero > 0;  // u8 weights have a zero point of -128 here
  p.low = float(call.floats[0]), p.high = float(call.floats[1]);
}

bool find_constants(const Call& call, const void* (&constants)[kOperands]) {
  for (int i = 0; i < kOperands; ++i) {
    constants[i] = call.in[i].data;
    if (i != kX && call.in[i].is_given() && constants[i] == nullptr) return false;
  }
  return true;
}

Status plan_gemm(Gemm& p, const Call& call, Plan& plan) {
  choose_blocks(p);
  plan.args = &p;
  plan.local_bytes = gathered_bytes(p) + (p.has_row_sums ? (p.row_block + 15) / 16 * 64 : 0);
  const auto take = [&](int64_t bytes) {
    const int64_t at = plan.scratch_bytes;
    plan.scratch_bytes += (bytes + 63) / 64 * 64;
    return at;
  };
  if (p.packed_at >= 0) {
    p.packed_at = take(p.n_packs * p.shape.bytes());
    plan.add(pack_weights, p.n_packs * p.shape.n_panels(), p.shape.k * kPanel);
  }
  const void* constants[kOperands];
  if (p.packed_at < 0 && find_constants(call, constants)) {
    p.columns = plan.table<std::byte>(size_t(columns_bytes(p)));
    if (p.columns == nullptr) return no_table();
    Data data;
    data.in = constants;
    make_packs(p, data, 0, p.n_packs);
  } else {
    p.columns_at = take(columns_bytes(p));
    plan.add(make_all_columns, p.n_packs, p.shape.n_panels() * kPanel);
  }
  const int64_t panel_work = p.shape.k * p.row_block * kPanel / 200;
  plan.add(gemm_into(p.out), p.n_jobs * p.n_row_blocks * p.n_panel_blocks, panel_work * p.panels);
  return {};
}

}  // namespace sdx::SDX_ISA::int8
