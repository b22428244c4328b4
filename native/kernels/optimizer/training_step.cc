// The nodes of a training step other than the updates: what the updates read (step_control), the
// norm of all gradients, accumulation of gradients, and running statistics.
#include "kernels/optimizer/kernels.h"
#include "kernels/optimizer/params.h"

namespace sdx::SDX_ISA {
namespace {

// The first input of step_control, as sardonyx/train/training_step.py writes it.
struct Settings {
  double lr, count, scale, updates, keep, run;
};

struct ControlArgs {
  double max_norm = -1;  // negative: gradients are not clipped
  bool skips = false;    // a norm that is not finite skips the update, whatever the loss is
};

// One item.
Status make_control(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const ControlArgs*>(args);
  const Settings& s = *input<Settings>(data, 0);
  const double loss = *input<double>(data, 1);
  const bool has_norm = data.in[2] != nullptr;
  const double norm = has_norm ? *input<double>(data, 2) * s.scale : 0;
  const bool is_valid = __builtin_isfinite(a.skips ? norm : loss);
  Control& c = *output<Control>(data);
  c.lr = s.lr;
  c.count = s.count;
  c.factor = s.scale * (has_norm && a.max_norm >= 0 ? clip_factor(a.max_norm, norm) : 1);
  c.updates = is_valid ? s.updates : 0;
  c.keep = s.keep;
  c.writes = a.skips || is_valid ? 1 : 0;
  return {};
}

struct NormArgs {
  const int64_t* first_blocks = nullptr;  // of each gradient, then the number of blocks
  const View* grads = nullptr;
  int n = 0;
};

// Dispatch by the element type of a gradient; lowerings admit no other types.
template <class F>
SDX_INLINE void visit_grad(DType dtype, F&& f) {
  Param p{};
  p.dtype = int64_t(dtype);
  visit_param(p, f);
}

SDX_INLINE int64_t block_size(int64_t n, int64_t block) {
  return n - block * kBlock < kBlock ? n - block * kBlock : kBlock;
}

// Items: blocks.
Status square_grads(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const NormArgs*>(args);
  auto* squares = reinterpret_cast<double*>(data.scratch);
  int64_t i = param_of(a.first_blocks, a.n, begin);
  for (int64_t at = begin; at < end; ++at) {
    while (a.first_blocks[i + 1] <= at) ++i;
    const int64_t block = at - a.first_blocks[i], n = block_size(a.grads[i].count(), block);
    visit_grad(a.grads[i].dtype, [&]<class T>() {
      squares[at] = sum_of_squares(input<T>(data, int(i)) + block * kBlock, n);
    });
  }
  return {};
}

// One item.
Status add_squares(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const NormArgs*>(args);
  const auto* squares = reinterpret_cast<const double*>(data.scratch);
  double total = 0;
  for (int64_t i = 0; i < a.first_blocks[a.n]; ++i) total += squares[i];
  *output<double>(data) = __builtin_sqrt(total);
  return {};
}

struct ArrayArgs {
  int64_t n = 0;
  DType dtype = DType::f32;
};

// Blocks [begin, end) of a sum and a gradient, which is added, or replaces the sum.
void accumulate(const ArrayArgs& a, void* sum, const void* addend, bool keeps, int64_t begin,
                int64_t end) {
  visit_grad(a.dtype, [&]<class T>() {
    const int64_t from = begin * kBlock, to = end * kBlock < a.n ? end * kBlock : a.n;
    T* total = static_cast<T*>(sum) + from;
    const T* grad = static_cast<const T*>(addend) + from;
    if (!keeps) {
      memcpy(total, grad, size_t(to - from) * sizeof(T));
      return;
    }
    vloop(to - from, [&](int64_t i, auto lanes) {
      store_float(total + i, load_float(total + i, lanes) + load_float(grad + i, lanes), lanes);
    });
  });
}

// Items: blocks.
Status add_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const Control& c = *input<Control>(data, 0);
  if (c.writes == 0) return {};
  const auto& a = *static_cast<const ArrayArgs*>(args);
  accumulate(a, data.out[0], data.in[2], c.keep != 0, begin, end);
  return {};
}

// Items: blocks. The first output says that the sum was updated.
Status add_blocks_in_place(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ArrayArgs*>(args);
  if (begin == 0) *output<uint8_t>(data) = 1;
  const bool overwrites = data.in[2] != nullptr && *input<uint8_t>(data, 2) != 0;
  if (a.n > 0) accumulate(a, data.out[1], data.in[1], !overwrites, begin, end);
  return {};
}

// Items: blocks.
Status store_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ArrayArgs*>(args);
  const bool writes = input<Control>(data, 0)->writes != 0;
  if (begin == 0) *output<uint8_t>(data) = writes ? 1 : 0;
  if (!writes || a.n == 0) return {};
  const int64_t size = size_of(a.dtype), from = begin * kBlock;
  const int64_t to = end * kBlock < a.n ? end * kBlock : a.n;
  memcpy(output<std::byte>(data, 1) + from * size, input<std::byte>(data, 2) + from * size,
         size_t((to - from) * size));
  return {};
}

ArrayArgs* array_args(const Call& call, Plan& plan) {
  auto* args = plan.make<ArrayArgs>();
  args->n = call.in[1].count();
  args->dtype = call.in[1].dtype;
  plan.args = args;
  return args;
}

}  // namespace

Status step_control(const Call& call, Plan& plan) {
  auto* args = plan.make<ControlArgs>();
  args->max_norm = call.floats[0];
  args->skips = call.ints[0] != 0;
  plan.args = args;
  plan.add(make_control, 1, 1);
  return {};
}

Status gradient_norm(const Call& call, Plan& plan) {
  auto* args = plan.make<NormArgs>();
  auto* first_blocks = plan.table<int64_t>(size_t(call.n_in) + 1);
  auto* grads = plan.table<View>(size_t(call.n_in));
  if (first_blocks == nullptr || grads == nullptr) return no_table();
  for (int i = 0; i < call.n_in; ++i) {
    grads[i] = call.in[i];
    first_blocks[i + 1] = first_blocks[i] + (grads[i].count() + kBlock - 1) / kBlock;
  }
  args->first_blocks = first_blocks;
  args->grads = grads;
  args->n = call.n_in;
  plan.args = args;
  plan.scratch_bytes = first_blocks[call.n_in] * int64_t(sizeof(double));
  plan.add(square_grads, first_blocks[call.n_in], kBlock / 4);
  plan.add(add_squares, 1, 1);
  return {};
}

Status accumulate_gradient(const Call& call, Plan& plan) {
  const ArrayArgs* args = array_args(call, plan);
  plan.add(add_blocks, (args->n + kBlock - 1) / kBlock, kBlock / 2);
  return {};
}

Status accumulate_in_place(const Call& call, Plan& plan) {
  const ArrayArgs* args = array_args(call, plan);
  plan.add(add_blocks_in_place, args->n == 0 ? 1 : (args->n + kBlock - 1) / kBlock, kBlock / 2);
  return {};
}

Status store_state(const Call& call, Plan& plan) {
  const ArrayArgs* args = array_args(call, plan);
  plan.add(store_blocks, args->n == 0 ? 1 : (args->n + kBlock - 1) / kBlock, kBlock / 4);
  return {};
}

}  // namespace sdx::SDX_ISA
