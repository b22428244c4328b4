// Epilogues of convolutions: attributes, activations, and the elementwise program over rows.
#include "kernels/conv/epilogue.h"

#include "kernels/row_stride.h"
#include "simd/math.h"

namespace sdx::SDX_ISA {
namespace {

// Flags of ints[at], see read_epilogue.
constexpr int64_t kHasBias = 1, kHasRelu = 2, kHasHigh = 4, kHasSwish = 8, kHasInitial = 16,
                  kHasResidual = 32;

// Swish (SiLU): x / (1 + e^-x).
SDX_INLINE f32v swish(f32v x) { return x * vsigmoid(x); }

}  // namespace

Epilogue read_epilogue(const Call& call, int at, Plan& plan) {
  Epilogue e;
  const int64_t given = call.ints[at];
  int operand = 2;  // after image and weights
  if ((given & kHasBias) != 0) e.bias_operand = operand++;
  if ((given & kHasInitial) != 0) e.initial_operand = operand++;
  if ((given & kHasResidual) != 0) e.residual_operand = operand++;
  e.relu = (given & kHasRelu) != 0;
  if ((given & kHasHigh) != 0) e.high = float(call.floats[0]);
  e.is_swish = (given & kHasSwish) != 0;
  e.chain = chain_prepare(call, operand, at + 1, 1, plan);
  e.columns = call.out[0].dim(-1);
  e.rows = call.out[0].count(0, call.out[0].rank - 1);
  e.out_row_stride = row_stride(call.out[0]);
  return e;
}

void activate(const Epilogue& e, f32v* y, int n) {
  if (e.relu)
    for (int i = 0; i < n; ++i) y[i] = at_least(y[i], f32v{});
  if (e.high < kInf)
    for (int i = 0; i < n; ++i) y[i] = at_most(y[i], splat(e.high));
  if (e.is_swish)
    for (int i = 0; i < n; ++i) y[i] = swish(y[i]);
}

// Contiguous rows are one long row where the program allows it (chain_rows).
void run_program(const Epilogue& e, const Data& data, int64_t row, int64_t rows, int64_t column,
                 int64_t n, std::byte* local) {
  if (e.chain == nullptr || n <= 0) return;
  float* y = e.out_at(data, row, column);
  if (n == e.out_row_stride) return chain_rows(*e.chain, data, row, rows, y, y, local);
  for (int64_t i = 0; i < rows; ++i, y += e.out_row_stride)
    chain_run(*e.chain, data, row + i, column, n, y, y, local);
}

// Accumulators are in `acc` where there is an addend, else already in the output.
void run_epilogue(const Epilogue& e, const Data& data, const Patch& at, const Target& acc,
                  std::byte* local) {
  float* y = e.out_at(data, at.row, at.column);
  if (e.residual_operand >= 0) {
    const float* end = e.residual(data, at.row, at.column);
    for (int64_t i = 0; i < at.rows; ++i, y += e.out_row_stride, end += e.columns)
      vloop(at.n, [&](int64_t j, auto lanes) {
        const f32v sum = load(acc.c + i * acc.ldc + j, lanes);
        store(y + j, (e.is_swish ? swish(sum) : sum) + load(end + j, lanes), lanes);
      });
  } else if (e.is_swish) {
    const bool is_whole = at.n == e.out_row_stride;
    const int64_t lines = is_whole ? 1 : at.rows, length = is_whole ? at.rows * at.n : at.n;
    for (int64_t i = 0; i < lines; ++i, y += e.out_row_stride)
      vloop(length, [&](int64_t j, auto lanes) { store(y + j, swish(load(y + j, lanes)), lanes); });
  }
  run_program(e, data, at.row, at.rows, at.column, at.n, local);
}

}  // namespace sdx::SDX_ISA
