// Naive matmul without packing: sizes so small that packing costs more than the arithmetic, and
// single rows of f64 and integers. Each item accumulates 64 columns of a row.
#include "kernels/matmul/kernels.h"
#include "kernels/matmul/operands.h"
#include "kernels/row_stride.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kColumns = 64;  // of one item: its accumulators stay in registers and L1

struct NaiveArgs {
  MatMulShape p;
  int64_t out_row_stride;  // elements between rows of the output
  double alpha;
};

// Items: parts of a row of the output.
template <class T>
Status naive_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const NaiveArgs*>(args);
  const MatMulShape& p = a.p;
  const int64_t parts = (p.n + kColumns - 1) / kColumns;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / parts % p.m, batch = i / parts / p.m, column = i % parts * kColumns;
    const int64_t n = p.n - column < kColumns ? p.n - column : kColumns;
    const T* left = input<T>(data, 0) + p.a.offset(batch) + p.rows.offset(row);
    const T* right =
        input<T>(data, 1) + p.b.offset(p.b_matrix_index.offset(batch)) + column * p.b_column_stride;
    T acc[kColumns] = {};
    for (int64_t k = 0; k < p.k; ++k) {
      const T factor = left[k * p.k_stride];
      const T* b = right + k * p.b_row_stride;
      if (p.b_column_stride == 1) {
        for (int64_t j = 0; j < n; ++j) acc[j] += factor * b[j];
      } else {
        for (int64_t j = 0; j < n; ++j) acc[j] += factor * b[j * p.b_column_stride];
      }
    }
    T* to = output<T>(data) + (batch * p.m + row) * a.out_row_stride + column;
    for (int64_t j = 0; j < n; ++j) to[j] = a.alpha == 1 ? acc[j] : T(double(acc[j]) * a.alpha);
  }
  return {};
}

}  // namespace

// Epilogues are not applied: is_tiny (gemm.cc) and providers/cpu/matmul.py exclude them.
Status matmul_naive(const Call& call, Plan& plan) {
  const MatMulShape shape = matmul_shape(matrix_batch(call.in[0], true, call.ints[0] != 0),
                                         matrix_batch(call.in[1], false, call.ints[1] != 0));
  if (call.in[0].dtype != DType::f32 && is_generic_blocked(shape)) {
    plan_generic(call, shape, plan);
    return {};
  }
  auto* args = plan.make<NaiveArgs>();
  args->p = shape;
  args->out_row_stride = call.out[0].is_contiguous() ? args->p.n : row_stride(call.out[0]);
  args->alpha = call.floats[0];
  plan.args = args;
  const MatMulShape& p = args->p;
  const int64_t count = p.batches * p.m * ((p.n + kColumns - 1) / kColumns);
  const int64_t work = p.k * kColumns / 4;
  switch (call.in[0].dtype) {
    case DType::f32: plan.add(naive_parts<float>, count, work); break;
    case DType::f64: plan.add(naive_parts<double>, count, work); break;
    case DType::i32:  // as unsigned: wraps around, which signed overflow may not
    case DType::u32: plan.add(naive_parts<uint32_t>, count, work); break;
    default: plan.add(naive_parts<uint64_t>, count, work); break;
  }
  return {};
}

}  // namespace sdx::SDX_ISA
