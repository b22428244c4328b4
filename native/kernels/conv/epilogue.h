// What follows the sums of a convolution: a bias, bounds and an activation where they are stored, a
// program over rows of them for all else.
#pragma once

#include "kernels/elementwise/chain.h"
#include "kernels/matmul/tile.h"

namespace sdx::SDX_ISA {

struct Epilogue {
  int bias_slot = -1;   // of the inputs; -1: no bias
  int start_slot = -1;  // of what sums begin with, which may be the output; -1: nothing
  int end_slot = -1;    // of what is added behind the activation, likewise
  bool relu = false;
  float high = kInf;              // the upper bound of what comes out of it
  bool is_swish = false;          // y / (1 + e^-y)
  const Chain* chain = nullptr;   // of what comes then, or null
  int64_t rows = 0, columns = 0;  // pixels and channels of the output
  int64_t out_row_stride = 0;     // floats between rows of the output

  SDX_INLINE const float* bias(const Data& data) const {
    return bias_slot < 0 ? nullptr : input<float>(data, bias_slot);
  }

  SDX_INLINE float* out_at(const Data& data, int64_t row, int64_t column) const {
    return output<float>(data) + row * out_row_stride + column;
  }

  // What the sums of column `column` of row `row` begin with; null: nothing.
  SDX_INLINE const float* start(const Data& data, int64_t row, int64_t column) const {
    return start_slot < 0 ? nullptr : input<float>(data, start_slot) + row * columns + column;
  }

  // What is added to it behind the activation; null: nothing.
  SDX_INLINE const float* end(const Data& data, int64_t row, int64_t column) const {
    return end_slot < 0 ? nullptr : input<float>(data, end_slot) + row * columns + column;
  }

  // What a product does with the sums of columns from `first` on.
  SDX_INLINE TileEpilogue finish(const Data& data, int64_t first) const {
    const float* row = bias(data);
    return {1, row == nullptr ? nullptr : row + first, relu, high};
  }
};

// ints[at ...): what is given (1 a bias, the first operand; 2 a cut at 0; 4 an upper bound; 8
// swish; 16 what sums begin with, the next operand; 32 what is then added, the next), then the
// program of the rest. floats: the bound, then those of the program.
Epilogue read_epilogue(const Call& call, int at, Plan& plan);

// Bounds and activation of n vectors of sums, which have their bias.
void activate(const Epilogue& e, f32v* y, int n);

// Columns [column, column + n) of rows [row, row + rows).
struct Patch {
  int64_t row, rows, column, n;
};

// Swish, what is added then, and the program, for sums that are in the output or elsewhere.
void run_epilogue(const Epilogue& e, const Data& data, const Patch& at, const Target& sums,
                  std::byte* local);

// The program only.
void run_program(const Epilogue& e, const Data& data, int64_t row, int64_t rows, int64_t column,
                 int64_t n, std::byte* local);

constexpr int64_t kRowsAtOnce = 64;

// The program as a phase of its own, for kernels whose items have no whole rows: an item is
// kRowsAtOnce rows. `Args` has the epilogue; the program's memory is the first of a thread's own.
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
