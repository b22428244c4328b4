// Epilogue of a convolution: bias, bounds and activation in registers before results are stored,
// then an elementwise program (chain.h) over rows of the output while they are in cache.
#pragma once

#include "kernels/elementwise/chain.h"
#include "kernels/matmul/tile.h"

namespace sdx::SDX_ISA {

struct Epilogue {
  int bias_operand = -1;      // of the inputs; -1: no bias
  int initial_operand = -1;   // initial accumulators, possibly the output's bytes; -1: zero
  int residual_operand = -1;  // addend after the activation (residual), likewise
  bool relu = false;
  float high = kInf;              // upper bound (Clip, Relu6)
  bool is_swish = false;          // y / (1 + e^-y)
  const Chain* chain = nullptr;   // elementwise program after it, or null
  int64_t rows = 0, columns = 0;  // pixels and channels of the output
  int64_t out_row_stride = 0;     // floats between rows of the output

  SDX_INLINE const float* bias(const Data& data) const {
    return bias_operand < 0 ? nullptr : input<float>(data, bias_operand);
  }

  // Address of an output: row is the pixel, column the channel.
  SDX_INLINE float* out_at(const Data& data, int64_t row, int64_t column) const {
    return output<float>(data) + row * out_row_stride + column;
  }

  // Initial accumulator of an output; null: zero.
  SDX_INLINE const float* initial(const Data& data, int64_t row, int64_t column) const {
    return initial_operand < 0 ? nullptr
                               : input<float>(data, initial_operand) + row * columns + column;
  }

  // Residual addend of an output, after the activation; null: none.
  SDX_INLINE const float* residual(const Data& data, int64_t row, int64_t column) const {
    return residual_operand < 0 ? nullptr
                                : input<float>(data, residual_operand) + row * columns + column;
  }

  // The part of the epilogue that a GEMM tile applies, for channels from `first` on.
  SDX_INLINE TileEpilogue finish(const Data& data, int64_t first) const {
    const float* row = bias(data);
    return {1, row == nullptr ? nullptr : row + first, relu, high};
  }
};

// ints[at]: flags (1 a bias, the first operand; 2 relu; 4 an upper bound; 8 swish; 16 initial
// accumulators, the next operand; 32 an addend after the activation, the next). Then the
// elementwise program. floats: the bound, then parameters of the program.
Epilogue read_epilogue(const Call& call, int at, Plan& plan);

// Bounds and activation of n vectors that have their bias already.
void activate(const Epilogue& e, f32v* y, int n);

// Channels [column, column + n) of pixels [row, row + rows).
struct Patch {
  int64_t row, rows, column, n;
};

// Swish, addend and program, for results that are in the output or in a buffer.
void run_epilogue(const Epilogue& e, const Data& data, const Patch& at, const Target& acc,
                  std::byte* local);

// The elementwise program alone, over results in the output.
void run_program(const Epilogue& e, const Data& data, int64_t row, int64_t rows, int64_t column,
                 int64_t n, std::byte* local);

constexpr int64_t kRowsAtOnce = 64;  // pixels of an item

// The program as a phase of its own, for kernels whose items do not finish whole rows. `Args` has
// the epilogue; the program's tiles are at the beginning of local memory.
template <class Args>
Status run_programs(const void* args, const Data& data, int64_t begin, int64_t end) {
  const Epilogue& e = static_cast<const Args*>(args)->epilogue;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i * kRowsAtOnce, left = e.rows - row;
    run_program(e, data, row, left < kRowsAtOnce ? left : kRowsAtOnce, 0, e.columns, data.local);
  }
  return {};
}

template <class Args>
SDX_INLINE void add_program(const Epilogue& e, Plan& plan) {
  if (e.chain == nullptr) return;
  const int64_t bytes = chain_local_bytes(e.chain);
  if (bytes > plan.local_bytes) plan.local_bytes = bytes;
  plan.add(run_programs<Args>, (e.rows + kRowsAtOnce - 1) / kRowsAtOnce,
           kRowsAtOnce * e.columns / 8);
}

}  // namespace sdx::SDX_ISA
