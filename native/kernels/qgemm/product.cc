// Products of 8-bit matrices: columns are prepared once, then tiles are summed and finished.
#include "kernels/qgemm/finish.h"
#include "kernels/qgemm/pack.h"

namespace sdx::SDX_ISA::q8 {
namespace {

SDX_INLINE int32_t byte_at(const Data& data, int slot, DType dtype, int64_t i) {
  const void* p = data.in[slot];
  return dtype == DType::u8 ? static_cast<const uint8_t*>(p)[i] : static_cast<const int8_t*>(p)[i];
}
SDX_INLINE float float_at(const Data& data, int slot, int64_t i) {
  return data.in[slot] == nullptr ? 1.0f : input<float>(data, slot)[i];
}

// What belongs to columns: the output, then arrays for each pack with room for whole panels.
SDX_INLINE int64_t columns_bytes(const Product& p) {
  return (kPanel + p.n_packs * 4 * p.shape.n_panels() * kPanel) * 4;
}
SDX_INLINE std::byte* made_columns(const Product& p, const Data& data) {
  return p.columns != nullptr ? const_cast<std::byte*>(p.columns) : data.scratch + p.columns_at;
}
SDX_INLINE Columns columns_of(const Product& p, std::byte* made, int64_t pack) {
  const int64_t width = p.shape.n_panels() * kPanel;
  auto* at = reinterpret_cast<float*>(made) + kPanel + pack * 4 * width;
  auto* whole = reinterpret_cast<int32_t*>(at + 2 * width);
  return {at, at + width, whole, whole + width};
}

SDX_INLINE const uint8_t* pack_of(const Product& p, const Data& data, int64_t pack) {
  const uint8_t* packs = p.packed_at < 0
                             ? input<uint8_t>(data, kW)
                             : reinterpret_cast<const uint8_t*>(data.scratch + p.packed_at);
  return packs + pack * p.shape.bytes();
}

Status pack_weights(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const Product*>(args);
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

namespace {

// Loops are plain, so that compilers make vectors of them: what depends on the scales of a run is
// made again in each.
template <class PlaceOf>
SDX_INLINE void make_whole(const Product& p, const Data& data, const Weighed& w, const Columns& to,
                           PlaceOf&& place) {
  const int32_t x_zero = (p.n_x_zero ? byte_at(data, kXZero, p.x, 0) : 0) + p.flip;
  const int32_t middle = p.w == DType::u8 ? -128 : 0;
  for (int64_t j = 0; j < w.n; ++j) to.zero[place(j)] = middle;
  if (p.n_w_zero)
    for (int64_t j = 0; j < w.n; ++j)
      to.zero[place(j)] += byte_at(data, kWZero, p.w, p.n_w_zero == 1 ? 0 : w.first + j);
  for (int64_t j = 0; j < w.n; ++j) {
    const auto terms = uint32_t(p.depth) * uint32_t(to.zero[place(j)]) - uint32_t(w.sums[j]);
    to.offset[place(j)] = int32_t(terms * uint32_t(x_zero));
  }
  if (p.bias != DType::i32) return;
  const int32_t* bias = input<int32_t>(data, kBias) + w.first;
  for (int64_t j = 0; j < w.n; ++j)
    to.offset[place(j)] = int32_t(uint32_t(to.offset[place(j)]) + uint32_t(bias[j]));
}

template <class PlaceOf>
SDX_INLINE void make_real(const Product& p, const Data& data, const Weighed& w, const Columns& to,
                          PlaceOf&& place) {
  const float step = float_at(data, kYScale, 0), x_scale = float_at(data, kXScale, 0);
  if (p.n_w_scale > 1) {
    const float* scale = input<float>(data, kWScale) + w.first;
    for (int64_t j = 0; j < w.n; ++j) to.scale[place(j)] = x_scale * scale[j] / step;
  } else {
    const float scale = x_scale * float_at(data, kWScale, 0) / step;
    for (int64_t j = 0; j < w.n; ++j) to.scale[place(j)] = scale;
  }
  const float* bias = p.bias == DType::f32 ? input<float>(data, kBias) + w.first : nullptr;
  for (int64_t j = 0; j < w.n; ++j) to.shift[place(j)] = bias == nullptr ? 0 : bias[j] / step;
}

}  // namespace

// Zero points as the tiles see them: moved like the bytes.
void make_columns(const Product& p, const Data& data, const Weighed& w, const Columns& to) {
  const auto make = [&](auto&& place) {
    make_whole(p, data, w, to, place);
    make_real(p, data, w, to, place);
  };
  if (w.place == nullptr)
    make([](int64_t j) { return j; });
  else
    make(w.place);
}

namespace {

void make_packs(const Product& p, const Data& data, int64_t begin, int64_t end) {
  std::byte* made = made_columns(p, data);
  for (int64_t pack = begin; pack < end; ++pack) {
    if (pack == 0) make_output(p, data, *reinterpret_cast<Output*>(made));
    const auto* sums = reinterpret_cast<const int32_t*>(pack_of(p, data, pack) + p.shape.sums_at());
    const int64_t first = p.is_grouped ? pack * p.shape.n : 0;
    make_columns(p, data, {sums, p.shape.n, first, nullptr}, columns_of(p, made, pack));
  }
}
Status make_all_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  make_packs(*static_cast<const Product*>(args), data, begin, end);
  return {};
}

int32_t row_sum(const uint8_t* row, int64_t n, uint8_t flip) {
  i32v total{};
  vloop<uint8_t>(n, [&](int64_t i, auto lanes) {
    const auto bytes = load(row + i, lanes, flip) ^ splat(flip);
    total = dot4(total, (i32v)bytes, splat(int32_t(0x01010101)));
  });
  return reduce_sum(total);
}

SDX_INLINE Columns from(const Columns& c, int64_t j) {
  return {c.scale + j, c.shift + j, c.offset + j, c.zero + j};
}

// Rows, one panel of weights, and where the result goes.
template <class T>
struct Strip {
  Rows rows;
  const int8_t* b;
  Target<T> target;
};

enum class Width : uint8_t { whole, part, vector };  // columns of a panel: all, or one vector

template <int R, Width width, bool has_sums, class T>
void strip_tile(const Strip<T>& strip, int64_t row) {
  const Strip<T> s = strip;  // which bytes that are written cannot alias
  constexpr int kVecs = width == Width::vector ? 1 : kTileVecs;
  for (int j = 0; j < (width == Width::vector ? kLanes : kPanel); j += kTileCols) {
    i32v start[kVecs];
    for (int v = 0; v < kVecs; ++v) start[v] = load(s.target.columns.offset + j + v * kLanes);
    tile<R, kVecs>(s.rows.from(row), s.b + j * kGroup, start, [&](const auto& sums) {
      finish_tile<has_sums, width == Width::whole>(sums, s.target, row, j);
    });
  }
}

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
    strip_rows<Width::whole, has_sums>(s, n_rows);
  else if (s.target.n <= kLanes)
    strip_rows<Width::vector, has_sums>(s, n_rows);
  else
    strip_rows<Width::part, has_sums>(s, n_rows);
}

// Rows of a job from `row` on where they lie.
SDX_INLINE Rows placed_rows(const Product& p, const Data& data, int64_t job, int64_t row) {
  const Place& at = p.place;
  const uint8_t* images =
      at.at < 0 ? input<uint8_t>(data, kX) : reinterpret_cast<const uint8_t*>(data.scratch + at.at);
  const uint8_t* first =
      images + job / at.jobs * at.image_bytes + job % at.jobs * at.job_bytes + row * p.stride;
  const int64_t groups = p.shape.n_groups() / at.n_lines;
  return {first, p.stride, groups, int32_t(p.flip * 0x01010101u), at.n_lines, at.line_stride};
}

template <class T>
Status product_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const Product*>(args);
  auto* rows = reinterpret_cast<uint8_t*>(data.local);
  auto* row_sums = reinterpret_cast<int32_t*>(data.local + p.row_block * p.stride);
  std::byte* made = made_columns(p, data);
  int64_t gathered = -1;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item / p.n_panel_blocks, job = block / p.n_row_blocks;
    const int64_t row = block % p.n_row_blocks * p.row_block;
    const int64_t n_rows = p.m - row < p.row_block ? p.m - row : p.row_block;
    if (p.gather != nullptr && gathered != block) {
      p.gather(p, data, job, row, n_rows, rows);
      for (int64_t i = 0; p.has_row_sums && i < n_rows; ++i)
        row_sums[i] = row_sum(rows + i * p.stride, p.shape.k, p.flip);
      gathered = block;
    }
    const int64_t pack = p.n_packs == 1 ? 0 : job % p.n_packs;
    const auto* packed = reinterpret_cast<const int8_t*>(pack_of(p, data, pack));
    const Columns columns = columns_of(p, made, pack);
    const int64_t first = item % p.n_panel_blocks * p.panels;
    const int64_t last = first + p.panels;
    const int64_t start = p.is_grouped ? job / p.n_packs * p.m : job * p.m;
    T* to = output<T>(data) + (start + row) * p.out_stride + (p.is_grouped ? pack * p.shape.n : 0);
    const Rows gathered_rows{rows, p.stride, p.shape.n_groups(), int32_t(p.flip * 0x01010101u)};
    Strip<T> strip{p.gather == nullptr ? placed_rows(p, data, job, row) : gathered_rows,
                   nullptr,
                   {{}, *reinterpret_cast<Output*>(made), row_sums, nullptr, p.out_stride, 0}};
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
constexpr int64_t kMostRows = 96;

// Blocks of rows as large as the cache takes; where they are few, columns are split, then rows.
// Rows that lie still, and are fewer than the columns, are one block, so that weights are read
// once, unless there are too few columns for all threads.
void choose_blocks(Product& p) {
  const bool is_one = p.gather == nullptr && p.m > kMostRows && p.m <= p.shape.n &&
                      p.m * p.stride <= 2 * kBlockBytes;
  int64_t rows = is_one ? p.m : kMostRows;
  if (p.gather != nullptr) {
    // Room for a run of bytes to overshoot; odd lines, so that rows fall on different cache sets.
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

bool finds_constants(const Call& call, const void* (&constants)[kOperands]) {
  for (int i = 0; i < kOperands; ++i) {
    constants[i] = call.in[i].data;
    if (i != kX && call.in[i].is_given() && constants[i] == nullptr) return false;
  }
  return true;
}

Status plan_product(Product& p, const Call& call, Plan& plan) {
  choose_blocks(p);
  plan.args = &p;
  if (p.gather != nullptr) plan.local_bytes = p.row_block * p.stride + (p.row_block + 15) / 16 * 64;
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
  if (p.packed_at < 0 && finds_constants(call, constants)) {
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
  plan.add(product_into(p.out), p.n_jobs * p.n_row_blocks * p.n_panel_blocks,
           panel_work * p.panels);
  return {};
}

}  // namespace sdx::SDX_ISA::q8
