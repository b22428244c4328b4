// The tables that a step of an optimizer reads: one record per parameter, one row of
// hyperparameters per group, and the blocks that all parameters together are cut into, so that
// threads share a step whatever the sizes of its tensors.
//
// The step of one parameter in a graph has operands instead of addresses in a table, and reads what
// changes between steps from its first input, `Control`.
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
  bool has_operands = false;

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

// What the nodes of a training step read when they run: the output of step_control.
struct Control {
  double lr;
  double count;    // updates, this one included
  double factor;   // of the gradients: clips them and undoes the factor of the loss
  double updates;  // 0: parameters and their states stay as they are
  double keep;     // 1: gradients are added to those accumulated before; 0: they replace them
  double writes;   // 0: accumulated gradients and running statistics stay as they are
};
constexpr int kControl = sizeof(Control) / sizeof(double);

// Operands of a graph's step: control, parameter, gradient, states; outputs are a flag, and the
// parameter and states again, at the same addresses. A state that the parameter lacks is absent.
constexpr int kFirstState = 3;

SDX_INLINE StepArgs read_operands(const Call& call, Plan& plan) {
  auto* param = plan.make<Param>();
  const View& data = call.in[1];
  param->n = data.count();
  param->dtype = int64_t(data.dtype);
  if (data.rank > 1) {
    param->rows = data.dims[data.rank - 2];
    param->columns = data.dims[data.rank - 1];
  }
  auto* group = plan.make<double>(kHyperparameters);
  for (int i = 0; i < kHyperparameters; ++i) group[i] = call.floats[i];
  StepArgs args;
  args.params = param;
  args.n_params = 1;
  args.groups = group;
  args.has_operands = true;
  return args;
}

// One parameter in one run: the record of the table, or that of the operands.
struct RunParam : Param {
  float count = 0;

  SDX_INLINE RunParam(const StepArgs& a, const Data& run, int64_t i) : Param(a.params[i]) {
    if (!a.has_operands) return;
    data = const_cast<void*>(run.in[1]);
    grad = const_cast<void*>(run.in[2]);
    for (int s = 0; s < 3; ++s) states[s] = const_cast<void*>(run.in[kFirstState + s]);
    count = float(input<Control>(run, 0)->count - 1);
    step = &count;
  }
  RunParam(const RunParam&) = delete;
};

// The hyperparameters of a parameter, in a struct of doubles.
template <class Group>
SDX_INLINE Group group_of(const StepArgs& a, const Data& run, const Param& p) {
  static_assert(sizeof(Group) == kHyperparameters * sizeof(double));
  Group group;
  memcpy(&group, a.group(p), sizeof group);
  if (a.has_operands) group.lr = input<Control>(run, 0)->lr;
  return group;
}

// Whether a run leaves parameters as they are.
SDX_INLINE bool is_skipped(const StepArgs& a, const Data& run) {
  return a.has_operands && input<Control>(run, 0)->updates == 0;
}

// Sets the first output of a graph's step: whether it updated its parameter.
SDX_INLINE void report_update(const StepArgs& a, const Data& run) {
  if (a.has_operands) *output<uint8_t>(run) = is_skipped(a, run) ? 0 : 1;
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

// The factor that clips gradients of a norm: max_norm / norm where the norm is larger, as
// torch.nn.utils.clip_grad_norm_ has it. NaN stays NaN.
SDX_INLINE double clip_factor(double max_norm, double norm) {
  const double clip = max_norm / (norm + 1e-6);
  return clip > 1 ? 1 : clip;
}

// The same for the gradients of a step; it computes their norm, and `reports` it as the output. The
// control of a graph's step has the factor.
SDX_INLINE double clip_factor(const StepArgs& a, const Data& run, const double* squares,
                              bool reports) {
  if (a.has_operands) return input<Control>(run, 0)->factor;
  if (!a.clips()) return 1;
  double total = 0;
  for (int64_t i = 0; i < a.n_blocks(); ++i) total += squares[i];
  const double norm = __builtin_sqrt(total * a.inverse_scale * a.inverse_scale + a.other_squares);
  if (reports) *output<double>(run) = norm;
  return clip_factor(a.max_norm, norm);
}

}  // namespace sdx::SDX_ISA
