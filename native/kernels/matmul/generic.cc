// Blocked matmul of element types without panels and epilogues: f64 and integers. An item is a
// block of rows times a panel of columns: it copies the panel into local memory, a part of the
// depth at a time, and multiplies by it with register tiles, reading A in place with any strides.
#include "kernels/matmul/kernels.h"
#include "kernels/matmul/operands.h"
#include "kernels/row_stride.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int kTileHeight = 6;
constexpr int kVectors = SDX_VEC_BYTES == 64 ? 4 : 2;  // accumulators fill the registers
constexpr int64_t kBlockDepth = 256;                   // rows of a copied panel: it stays in L2
constexpr int64_t kBlockHeight = 96;                   // rows that share a copy of the panel
constexpr int64_t kMinItems = 8;                       // enough to balance over threads
template <class T>
constexpr int64_t kWidth = kVectors * kLanesOf<T>;

struct GenericArgs {
  MatMulShape p;
  int64_t out_row_stride;  // elements between rows of the output
  int64_t row_blocks, panels;
  double alpha;
};

// One tile: `rows` of A, whose element [i, k] is at[i][k * k_stride], times `depth` rows of a
// panel, added to `to`, or written there first.
template <class T, int kRows>
void multiply_tile(const T* const* at, int64_t k_stride, const T* panel, int64_t depth, T* to,
                   int64_t to_stride, int64_t columns, bool is_first) {
  Vec<T> acc[kRows][kVectors] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Vec<T> b[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) b[j] = pinned(load(panel + k * kWidth<T> + j * kLanesOf<T>));
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vec<T> a = splat(at[i][k * k_stride]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) acc[i][j] += a * b[j];
    }
  }
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const int64_t left = columns - j * kLanesOf<T>;
      if (left <= 0) break;
      T* c = to + i * to_stride + j * kLanesOf<T>;
      if (left >= kLanesOf<T>) {
        store(c, is_first ? acc[i][j] : acc[i][j] + load(c));
      } else {
        const Part part{int(left)};
        store(c, is_first ? acc[i][j] : acc[i][j] + load(c, part), part);
      }
    }
}

template <class T>
void multiply_rows(const T* const* at, int64_t rows, int64_t k_stride, const T* panel,
                   int64_t depth, T* to, int64_t to_stride, int64_t columns, bool is_first) {
  switch (rows) {
    case 1:
      return multiply_tile<T, 1>(at, k_stride, panel, depth, to, to_stride, columns, is_first);
    case 2:
      return multiply_tile<T, 2>(at, k_stride, panel, depth, to, to_stride, columns, is_first);
    case 3:
      return multiply_tile<T, 3>(at, k_stride, panel, depth, to, to_stride, columns, is_first);
    case 4:
      return multiply_tile<T, 4>(at, k_stride, panel, depth, to, to_stride, columns, is_first);
    case 5:
      return multiply_tile<T, 5>(at, k_stride, panel, depth, to, to_stride, columns, is_first);
    default:
      return multiply_tile<T, 6>(at, k_stride, panel, depth, to, to_stride, columns, is_first);
  }
}

// Rows [0, depth) of a panel of B, padded with zeros to kWidth columns.
template <class T>
void copy_panel(const MatMulShape& p, const T* from, int64_t depth, int64_t columns, T* to) {
  constexpr int64_t width = kWidth<T>;
  if (p.b_column_stride == 1) {
    for (int64_t k = 0; k < depth; ++k) {
      memcpy(to + k * width, from + k * p.b_row_stride, size_t(columns) * sizeof(T));
      memset(to + k * width + columns, 0, size_t(width - columns) * sizeof(T));
    }
    return;
  }
  for (int64_t j = 0; j < width; ++j)
    for (int64_t k = 0; k < depth; ++k)
      to[k * width + j] = j < columns ? from[k * p.b_row_stride + j * p.b_column_stride] : T(0);
}

template <class T>
void scale_block(const GenericArgs& a, T* to, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      to[i * a.out_row_stride + j] = T(double(to[i * a.out_row_stride + j]) * a.alpha);
}

// Items: blocks of rows times panels; those of a block of rows are neighbours.
template <class T>
Status generic_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GenericArgs*>(args);
  const MatMulShape& p = a.p;
  T* packed = reinterpret_cast<T*>(data.local);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t panel = item % a.panels, block = item / a.panels % a.row_blocks;
    const int64_t batch = item / a.panels / a.row_blocks, column = panel * kWidth<T>;
    const int64_t columns = p.n - column < kWidth<T> ? p.n - column : kWidth<T>;
    const int64_t first = p.m * block / a.row_blocks, last = p.m * (block + 1) / a.row_blocks;
    const T* left = input<T>(data, 0) + p.a.offset(batch);
    const T* right =
        input<T>(data, 1) + p.b.offset(p.b_matrix_index.offset(batch)) + column * p.b_column_stride;
    T* to = output<T>(data) + (batch * p.m + first) * a.out_row_stride + column;
    for (int64_t k = 0; k < p.k; k += kBlockDepth) {
      const int64_t depth = p.k - k < kBlockDepth ? p.k - k : kBlockDepth;
      copy_panel(p, right + k * p.b_row_stride, depth, columns, packed);
      for (int64_t row = first; row < last; row += kTileHeight) {
        const int64_t rows = last - row < kTileHeight ? last - row : kTileHeight;
        const T* at[kTileHeight];
        for (int64_t i = 0; i < rows; ++i) at[i] = left + p.rows.offset(row + i) + k * p.k_stride;
        multiply_rows(at, rows, p.k_stride, packed, depth, to + (row - first) * a.out_row_stride,
                      a.out_row_stride, columns, k == 0);
      }
    }
    if (a.alpha != 1) scale_block(a, to, last - first, columns);
  }
  return {};
}

template <class T>
void plan_blocks(GenericArgs& a, Plan& plan) {
  const MatMulShape& p = a.p;
  a.panels = (p.n + kWidth<T> - 1) / kWidth<T>;
  a.row_blocks = (p.m + kBlockHeight - 1) / kBlockHeight;
  while (p.batches * a.panels * a.row_blocks < kMinItems && p.m / a.row_blocks > 2 * kTileHeight)
    ++a.row_blocks;
  plan.local_bytes = kBlockDepth * kWidth<T> * int64_t(sizeof(T));
  const int64_t rows = p.m / a.row_blocks + 2;  // the copy costs about as much as two rows
  plan.add(generic_blocks<T>, p.batches * a.panels * a.row_blocks, rows * p.k * kVectors / 4);
}

}  // namespace

bool is_generic_blocked(const MatMulShape& p) {
  constexpr int64_t kLeast = 4096;  // multiplications below which the copy does not pay
  return p.k > 0 && p.m * p.n * p.k >= kLeast && (p.m > 1 || p.b_column_stride != 1);
}

void plan_generic(const Call& call, const MatMulShape& shape, Plan& plan) {
  auto* args = plan.make<GenericArgs>();
  args->p = shape;
  args->out_row_stride = call.out[0].is_contiguous() ? shape.n : row_stride(call.out[0]);
  args->alpha = call.floats[0];
  plan.args = args;
  switch (call.in[0].dtype) {
    case DType::f64: return plan_blocks<double>(*args, plan);
    case DType::i32:  // as unsigned: wraps around, which signed overflow may not
    case DType::u32: return plan_blocks<uint32_t>(*args, plan);
    default: return plan_blocks<uint64_t>(*args, plan);
  }
}

}  // namespace sdx::SDX_ISA
