// What follows the sums of a convolution: a bias and a cut at 0 where they are stored, a program
// over blocks of them for all else.
#pragma once

#include "kernels/chain/chain.h"
#include "kernels/gemm/tile.h"

namespace sdx::SDX_ISA {

struct Epilogue {
  int bias_slot = -1;  // of the inputs; -1: no bias
  bool relu = false;
  const Chain* chain = nullptr;  // of what comes then, or null
  bool joins_rows = false;       // no operand of the program differs from column to column only
  int64_t columns = 0;           // channels of the output

  SDX_INLINE const float* bias(const Data& data) const {
    return bias_slot < 0 ? nullptr : input<float>(data, bias_slot);
  }

  // What a product does with the sums of columns from `first` on.
  SDX_INLINE Finish finish(const Data& data, int64_t first) const {
    const float* row = bias(data);
    return {1, row == nullptr ? nullptr : row + first, relu};
  }
};

// ints[at ...): 1 for a bias (the first operand) + 2 for a cut at 0, then the program of the rest.
SDX_INLINE Epilogue read_epilogue(const Call& call, int at, Plan& plan) {
  constexpr int kFirst = 2;  // of the operands, behind image and weights
  Epilogue e;
  const int64_t flags = call.ints[at];
  const int operand = (flags & 1) != 0 ? kFirst + 1 : kFirst;
  if ((flags & 1) != 0) e.bias_slot = kFirst;
  e.relu = (flags & 2) != 0;
  e.chain = chain_prepare(call, operand, at + 1, 0, plan);
  e.columns = call.out[0].dim(-1);
  e.joins_rows = true;
  const int64_t size = call.out[0].count();
  for (int i = operand; i < call.n_in; ++i) {
    const int64_t count = call.in[i].count();
    e.joins_rows = e.joins_rows && (count == size || count == 1);
  }
  return e;
}

// The program for columns [column, column + n) of rows [row, row + rows) of the output, in place.
// Where rows lie side by side and their operands do too, they are one long row.
SDX_INLINE void run_epilogue(const Epilogue& e, const Data& data, int64_t row, int64_t rows,
                             int64_t column, int64_t n, std::byte* local) {
  if (e.chain == nullptr || n <= 0) return;
  float* y = output<float>(data) + row * e.columns + column;
  if (e.joins_rows && n == e.columns)
    return chain_run(*e.chain, data, row, 0, rows * n, y, y, local);
  for (int64_t i = 0; i < rows; ++i, y += e.columns)
    chain_run(*e.chain, data, row + i, column, n, y, y, local);
}

}  // namespace sdx::SDX_ISA
