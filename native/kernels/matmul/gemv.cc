// GEMV and small-m/small-n matmuls of f32. They are bound by the bandwidth of the large operand,
// so it is read once, in place, and nothing is packed. Three access patterns:
//   gemv_columns  n <= 4: the columns of B are transposed once, each row of A gives n dot products
//   gemv_dot      m <= 4 and B transposed (columns contiguous): dot products along k
//   gemv_axpy     m <= 4 and B row-major: rows of B are scaled and added to accumulators in L1
#include "kernels/matmul/gemm.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kMaxVectors = 4;     // rows or columns; above, panels pay off
constexpr int64_t kItemRows = 64;      // long vectors of one item
constexpr int64_t kItemColumns = 512;  // 4 rows of them are 8 KB: accumulators stay in L1

typedef float Four __attribute__((vector_size(16)));

// Sum of all lanes, in a tree of fixed order.
SDX_INLINE float sum_lanes(f32v v) {
  Four parts[kLanes / 4];
  memcpy(parts, &v, sizeof v);
  for (int width = kLanes / 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  const Four s = parts[0] + __builtin_shufflevector(parts[0], parts[0], 2, 3, 0, 1);
  return s[0] + s[1];
}

// Dot products of R vectors with W vectors of k elements. Fewer than 4 products would wait for the
// FMA latency, so each is then split into several independent accumulators.
template <int R, int W>
SDX_INLINE void dots(const float* x, int64_t x_stride, const float* y, int64_t y_stride, int64_t k,
                     float (&out)[R][W]) {
  constexpr int kChains = R * W >= 4 ? 1 : 4 / (R * W);
  f32v acc[kChains][R][W] = {};
  int64_t p = 0;
  for (; p + kChains * kLanes <= k; p += kChains * kLanes)
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c)
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < W; ++j)
          acc[c][i][j] +=
              load(x + i * x_stride + p + c * kLanes) * load(y + j * y_stride + p + c * kLanes);
  vloop(k - p, [&](int64_t at, auto lanes) {
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < W; ++j)
        acc[0][i][j] +=
            load(x + i * x_stride + p + at, lanes) * load(y + j * y_stride + p + at, lanes);
  });
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < W; ++j) {
      f32v total = acc[0][i][j];
      for (int c = 1; c < kChains; ++c) total += acc[c][i][j];
      out[i][j] = sum_lanes(total);
    }
}

// Dot products of many vectors with few: the one of vector i of `many` and j of `few` goes to out[i
// * out_many_stride + j * out_few_stride], added to the same element of `start` if that is given.
struct Dots {
  const float *many, *few;
  int64_t many_stride, few_stride, k;
  const float* start;
  float* out;
  int64_t out_many_stride, out_few_stride;
};

template <int R, int W>
SDX_INLINE void dots_at(const Dots& d, int64_t i) {
  float out[R][W];
  dots<R, W>(d.many + i * d.many_stride, d.many_stride, d.few, d.few_stride, d.k, out);
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) {
      const int64_t at = (i + r) * d.out_many_stride + w * d.out_few_stride;
      d.out[at] = d.start == nullptr ? out[r][w] : out[r][w] + d.start[at];
    }
}

template <int W>
void all_dots(const Dots& d, int64_t n) {
  constexpr int kRows = W <= 2 ? 4 : 2;
  int64_t i = 0;
  for (; i + kRows <= n; i += kRows) dots_at<kRows, W>(d, i);
  for (; i < n; ++i) dots_at<1, W>(d, i);
}

void run_dots(const Dots& d, int64_t many, int64_t few) {
  switch (few) {
    case 1: return all_dots<1>(d, many);
    case 2: return all_dots<2>(d, many);
    case 3: return all_dots<3>(d, many);
    default: return all_dots<4>(d, many);
  }
}

// Alpha, bias and relu, which GEMM applies in its tiles, then the epilogue program.
void finish_gemv(const GemmArgs& a, const Data& data, const OutputTile& at) {
  const Target acc{output<float>(data) + (at.batch * a.p.m + at.row) * a.out_row_stride + at.column,
                   a.out_row_stride};
  const float* bias = a.bias_operand < 0 ? nullptr : input<float>(data, a.bias_operand) + at.column;
  if (a.finish.alpha != 1 || a.finish.relu || bias != nullptr)
    for (int64_t i = 0; i < at.rows; ++i)
      vloop(at.columns, [&](int64_t j, auto lanes) {
        f32v y = load(acc.c + i * acc.ldc + j, lanes) * a.finish.alpha;
        if (bias != nullptr) y += load(bias + j, lanes);
        store(acc.c + i * acc.ldc + j, a.finish.relu ? vmax(y, f32v{}) : y, lanes);
      });
  if (a.chain != nullptr) finish_tile(a, data, at, acc);
}

int64_t parts_of(int64_t n, int64_t each) { return (n + each - 1) / each; }

SDX_INLINE const float* left_of(const GemmArgs& a, const Data& data, int64_t batch) {
  return input<float>(data, 0) + a.p.a.offset(batch);
}
SDX_INLINE const float* right_of(const GemmArgs& a, const Data& data, int64_t batch) {
  return input<float>(data, 1) + a.p.b.offset(a.p.b_matrix_index.offset(batch));
}
SDX_INLINE int64_t a_row_stride(const MatMulShape& p) {
  return p.rows.rank == 0 ? 0 : p.rows.strides[0];
}

// Few columns, transposed into local memory first. Items: parts of the rows of every batch.
Status gemv_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GemmArgs*>(args);
  const MatMulShape& p = a.p;
  auto* columns = reinterpret_cast<float*>(data.local + a.b_at);
  const int64_t parts = parts_of(p.m, kItemRows);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t batch = i / parts, row = i % parts * kItemRows;
    const int64_t rows = p.m - row < kItemRows ? p.m - row : kItemRows;
    copy_matrix(right_of(a, data, batch), p.b_column_stride, p.b_row_stride, p.n, p.k, columns,
                p.k);
    const OutputTile area{batch, row, rows, 0, p.n};
    const Target acc{output<float>(data) + (batch * p.m + row) * a.out_row_stride,
                     a.out_row_stride};
    run_dots({left_of(a, data, batch) + row * a_row_stride(p), columns, a_row_stride(p), p.k, p.k,
              start_of(a, data, area, acc), acc.c, a.out_row_stride, 1},
             rows, p.n);
    finish_gemv(a, data, area);
  }
  return {};
}

// Few rows, and B with contiguous columns. Items: parts of the columns.
Status gemv_dot(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GemmArgs*>(args);
  const MatMulShape& p = a.p;
  const int64_t parts = parts_of(p.n, kItemRows);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t batch = i / parts, column = i % parts * kItemRows;
    const int64_t columns = p.n - column < kItemRows ? p.n - column : kItemRows;
    const OutputTile area{batch, 0, p.m, column, columns};
    const Target acc{output<float>(data) + batch * p.m * a.out_row_stride + column,
                     a.out_row_stride};
    run_dots({right_of(a, data, batch) + column * p.b_column_stride, left_of(a, data, batch),
              p.b_column_stride, a_row_stride(p), p.k, start_of(a, data, area, acc), acc.c, 1,
              a.out_row_stride},
             columns, p.m);
    finish_gemv(a, data, area);
  }
  return {};
}

// acc[0, n) += sum over r of a[r] * row r of B: R rows per pass, so that an accumulator is loaded
// and stored once for R FMAs.
template <int R>
SDX_INLINE void add_rows(const float* a, int64_t a_stride, const float* b, int64_t stride,
                         int64_t n, float* acc) {
  vloop(n, [&](int64_t j, auto lanes) {
    f32v y = load(acc + j, lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) y += a[r * a_stride] * load(b + r * stride + j, lanes);
    store(acc + j, y, lanes);
  });
}

// Initializes accumulators with zeros or initial values, which may be there already.
void begin_rows(const float* start, int64_t stride, const OutputTile& at, float* to) {
  if (start == to) return;
  const size_t bytes = size_t(at.columns) * sizeof(float);
  for (int64_t i = 0; i < at.rows; ++i) {
    if (start == nullptr)
      memset(to + i * stride, 0, bytes);
    else
      memcpy(to + i * stride, start + i * stride, bytes);
  }
}

// Few rows, and row-major B. Items: parts of the columns.
Status gemv_axpy(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GemmArgs*>(args);
  const MatMulShape& p = a.p;
  const int64_t parts = parts_of(p.n, kItemColumns);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t batch = i / parts, column = i % parts * kItemColumns;
    const int64_t columns = p.n - column < kItemColumns ? p.n - column : kItemColumns;
    const float* b = right_of(a, data, batch) + column;
    float* to = output<float>(data) + batch * p.m * a.out_row_stride + column;
    const OutputTile area{batch, 0, p.m, column, columns};
    begin_rows(start_of(a, data, area, {to, a.out_row_stride}), a.out_row_stride, area, to);
    int64_t k = 0;
    for (; k + 8 <= p.k; k += 8)
      for (int64_t row = 0; row < p.m; ++row)
        add_rows<8>(left_of(a, data, batch) + row * a_row_stride(p) + k * p.k_stride, p.k_stride,
                    b + k * p.b_row_stride, p.b_row_stride, columns, to + row * a.out_row_stride);
    for (; k < p.k; ++k)
      for (int64_t row = 0; row < p.m; ++row)
        add_rows<1>(left_of(a, data, batch) + row * a_row_stride(p) + k * p.k_stride, p.k_stride,
                    b + k * p.b_row_stride, p.b_row_stride, columns, to + row * a.out_row_stride);
    finish_gemv(a, data, area);
  }
  return {};
}

}  // namespace

bool plan_gemv(const GemmArgs& args, Plan& plan) {
  const MatMulShape& p = args.p;
  if (args.is_buffered || p.rows.rank > 1) return false;
  if (p.m == 0 || p.n == 0 || p.k == 0) return false;
  const bool is_row_whole = p.k_stride == 1;
  if (p.n <= kMaxVectors && is_row_whole) {
    plan.local_bytes += p.n * p.k * int64_t(sizeof(float));
    plan.add(gemv_columns, p.batches * parts_of(p.m, kItemRows),
             p.n * p.k * (kItemRows + 16) / kLanes / 2);
    return true;
  }
  if (p.m > kMaxVectors) return false;
  if (p.b_row_stride == 1 && is_row_whole) {
    plan.add(gemv_dot, p.batches * parts_of(p.n, kItemRows), p.m * p.k * kItemRows / kLanes / 2);
    return true;
  }
  if (p.b_column_stride != 1) return false;
  plan.add(gemv_axpy, p.batches * parts_of(p.n, kItemColumns),
           p.m * p.k * (p.n < kItemColumns ? p.n : kItemColumns) / kLanes / 2);
  return true;
}

}  // namespace sdx::SDX_ISA
