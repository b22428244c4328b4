// The tables that a step of an optimizer reads: one record per parameter, one row of
// hyperparameters per group, and the blocks that all parameters together are cut into, so that
// threads share a step whatever the sizes of its tensors.
#pragma once

#include "kernels/elements.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {

// A row of the first input, as sardonyx/train/optim writes it. All tensors of a parameter have the
// same type and strides, so elements correspond by their position in memory.
struct Param {
  void* data;
  void* grad;
  void* states[3];
  float* step;  // updates so far, incremented by the step; null where the optimizer has none
  int64_t n;
  int64_t dtype;
  int64_t group;     // row of the hyperparameters
  int64_t is_first;  // the states have not been written yet
  int64_t rows;      // of the last two axes; 0 for vectors
  int64_t columns;
};
static_assert(sizeof(Param) == 12 * sizeof(int64_t));

constexpr int kHyperparameters = 8;  // columns of the second input

// Elements of a block: long enough for the hardware prefetcher, small enough to balance threads.
constexpr int64_t kBlock = 16384;

// Numbers of the call: floats[0] is the norm that gradients are clipped to, negative for none;
// floats[1] is the factor of the loss, which gradients are divided by; floats[2] is the sum of
// squares of unscaled gradients that are not in the table and count for the norm.
struct StepArgs {
  const Param* params = nullptr;
  int64_t n_params = 0;
  const double* groups = nullptr;
  const int64_t* first_blocks = nullptr;  // of each parameter, then the number of blocks
  double max_norm = -1;
  double inverse_scale = 1;
  double other_squares = 0;

  SDX_INLINE const double* group(const Param& p) const {
    return groups + p.group * kHyperparameters;
  }
  SDX_INLINE int64_t n_blocks() const { return first_blocks[n_params]; }
  SDX_INLINE bool clips() const { return max_norm >= 0; }
};

SDX_INLINE StepArgs read_tables(const Call& call) {
  StepArgs args;
  args.params = static_cast<const Param*>(call.in[0].data);
  args.n_params = call.in[0].dims[0];
  args.groups = static_cast<const double*>(call.in[1].data);
  args.max_norm = call.floats[0];
  args.inverse_scale = 1 / call.floats[1];
  args.other_squares = call.floats[2];
  return args;
}

// The parameter that a block belongs to: the last one whose first block is not after it (parameters
// without elements have no block).
SDX_INLINE int64_t param_of(const int64_t* first_blocks, int64_t n_params, int64_t block) {
  int64_t low = 0, high = n_params;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (first_blocks[middle] <= block ? low : high) = middle;
  }
  return low;
}

// Calls body(param, block of the param) for blocks [begin, end).
template <class Body>
SDX_INLINE void each_block(const StepArgs& a, int64_t begin, int64_t end, Body&& body) {
  int64_t i = param_of(a.first_blocks, a.n_params, begin);
  for (int64_t block = begin; block < end; ++block) {
    while (a.first_blocks[i + 1] <= block) ++i;
    body(i, block - a.first_blocks[i]);
  }
}

// Dispatch by the element type of a parameter; callers admit no other types.
template <class F>
SDX_INLINE void visit_param(const Param& p, F&& f) {
  switch (DType(p.dtype)) {
    case DType::f32: return f.template operator()<float>();
    case DType::f16: return f.template operator()<F16>();
    case DType::bf16: return f.template operator()<BF16>();
    default: return;
  }
}

// Sum of squares, in double after every kSumBlock elements.
template <class T>
SDX_INLINE double sum_of_squares(const T* x, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kSumBlock<float>) {
    f32v a{}, b{};
    const int64_t m = n - i < kSumBlock<float> ? n - i : kSumBlock<float>;
    int64_t j = 0;
    for (; j + 2 * kLanes <= m; j += 2 * kLanes) {
      const f32v u = load_float(x + i + j, Full{}), v = load_float(x + i + j + kLanes, Full{});
      a += u * u;
      b += v * v;
    }
    vloop(m - j, [&](int64_t k, auto lanes) {
      const f32v u = load_float(x + i + j + k, lanes);
      a += u * u;
    });
    total += fold_sum(a + b);
  }
  return total;
}

// The factor that clips unscaled gradients: max_norm / norm where the norm is larger, as
// torch.nn.utils.clip_grad_norm_ has it. NaN stays NaN.
SDX_INLINE double clip_factor(const StepArgs& a, const double* squares, double* norm) {
  if (!a.clips()) return 1;
  double total = 0;
  for (int64_t i = 0; i < a.n_blocks(); ++i) total += squares[i];
  *norm = __builtin_sqrt(total * a.inverse_scale * a.inverse_scale + a.other_squares);
  const double clip = a.max_norm / (*norm + 1e-6);
  return clip > 1 ? 1 : clip;
}

}  // namespace sdx::SDX_ISA
