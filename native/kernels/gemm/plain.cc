// Products of f64 and integers, which models rarely multiply, and tiny ones of f32: no packing.
#include "kernels/gemm/rows.h"
#include "kernels/gemm/stack.h"
#include "kernels/pitch.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kColumns = 64;  // of one item: a row of its sums stays in registers and L1

struct PlainArgs {
  Product p;
  int64_t pitch;  // elements between rows of the output
  double alpha;
};

// Items: parts of a row of the output.
template <class T>
Status plain_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PlainArgs*>(args);
  const Product& p = a.p;
  const int64_t parts = (p.n + kColumns - 1) / kColumns;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / parts % p.m, batch = i / parts / p.m, column = i % parts * kColumns;
    const int64_t n = p.n - column < kColumns ? p.n - column : kColumns;
    const T* left = input<T>(data, 0) + p.a.offset(batch) + p.rows.offset(row);
    const T* right =
        input<T>(data, 1) + p.b.offset(p.which.offset(batch)) + column * p.b_column_stride;
    T sum[kColumns] = {};
    for (int64_t k = 0; k < p.k; ++k) {
      const T factor = left[k * p.k_stride];
      const T* b = right + k * p.b_row_stride;
      if (p.b_column_stride == 1) {
        for (int64_t j = 0; j < n; ++j) sum[j] += factor * b[j];
      } else {
        for (int64_t j = 0; j < n; ++j) sum[j] += factor * b[j * p.b_column_stride];
      }
    }
    T* to = output<T>(data) + (batch * p.m + row) * a.pitch + column;
    for (int64_t j = 0; j < n; ++j) to[j] = a.alpha == 1 ? sum[j] : T(double(sum[j]) * a.alpha);
  }
  return {};
}

}  // namespace

Status matmul_plain(const Call& call, Plan& plan) {
  auto* args = plan.make<PlainArgs>();
  args->p = product_of(stack_of(call.in[0], true, call.ints[0] != 0),
                       stack_of(call.in[1], false, call.ints[1] != 0));
  args->pitch = call.out[0].is_contiguous() ? args->p.n : row_pitch(call.out[0]);
  args->alpha = call.floats[0];
  plan.args = args;
  const Product& p = args->p;
  const int64_t count = p.batches * p.m * ((p.n + kColumns - 1) / kColumns);
  const int64_t work = p.k * kColumns / 4;
  switch (call.in[0].dtype) {
    case DType::f32: plan.add(plain_parts<float>, count, work); break;
    case DType::f64: plan.add(plain_parts<double>, count, work); break;
    case DType::i32:  // wraps around, as unsigned numbers do without being undefined
    case DType::u32: plan.add(plain_parts<uint32_t>, count, work); break;
    default: plan.add(plain_parts<uint64_t>, count, work); break;
  }
  return {};
}

}  // namespace sdx::SDX_ISA
