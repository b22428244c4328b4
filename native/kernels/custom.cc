// A custom op in C as a step: calls the user's function with its tensors in place, and reports its
// error code.
#include "kernels/kernel.h"

namespace sdx::SDX_ISA {
namespace {

// As src/sardonyx/include/sardonyx_op.h declares it to users.
struct Tensor {
  void* data = nullptr;  // null for an optional input that is not given
  const int64_t* dims = nullptr;
  int32_t rank = 0;
  int32_t type = 0;
};
using Function = int (*)(const Tensor* in, int n_in, const Tensor* out, int n_out,
                         const double* numbers, int n_numbers);

struct CustomArgs {
  Function function = nullptr;
  const Tensor* tensors = nullptr;  // inputs, then outputs, without data addresses
  int n_in = 0;
  int n_out = 0;
  const double* numbers = nullptr;
  int n_numbers = 0;
};

// One item: the function is called once, on one thread. Descriptors are copied, as runs may
// overlap.
Status call_function(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const CustomArgs*>(args);
  const int n = a.n_in + a.n_out;
  auto* tensors = reinterpret_cast<Tensor*>(data.scratch);
  for (int i = 0; i < n; ++i) {
    tensors[i] = a.tensors[i];
    tensors[i].data = i < a.n_in ? const_cast<void*>(data.in[i]) : data.out[i - a.n_in];
  }
  const int code = a.function(tensors, a.n_in, tensors + a.n_in, a.n_out, a.numbers, a.n_numbers);
  return code == 0 ? Status{} : Status::fail("the function returned the error %d", code);
}

// Fills the part of a descriptor that depends on sizes only.
void describe(const View& view, Tensor& tensor, Plan& plan) {
  if (!view.is_given()) return;
  auto* dims = plan.make<int64_t>(size_t(view.rank) + 1);
  for (int i = 0; i < view.rank; ++i) dims[i] = view.dims[i];
  tensor.dims = dims;
  tensor.rank = view.rank;
  tensor.type = int32_t(view.dtype);
}

// ints: the function's address; floats: the numeric attributes.
Status custom(const Call& call, Plan& plan) {
  auto* args = plan.make<CustomArgs>();
  auto* tensors = plan.make<Tensor>(size_t(call.n_in + call.n_out));
  for (int i = 0; i < call.n_in; ++i) describe(call.in[i], tensors[i], plan);
  for (int i = 0; i < call.n_out; ++i) describe(call.out[i], tensors[call.n_in + i], plan);
  auto* numbers = plan.make<double>(size_t(call.n_floats) + 1);
  for (int i = 0; i < call.n_floats; ++i) numbers[i] = call.floats[i];
  *args = {reinterpret_cast<Function>(call.ints[0]),
           tensors,
           call.n_in,
           call.n_out,
           numbers,
           call.n_floats};
  plan.args = args;
  plan.scratch_bytes = int64_t(sizeof(Tensor)) * (call.n_in + call.n_out);
  plan.add(call_function, 1, 1);
  return {};
}

constexpr Kernel kKernels[] = {{"custom", Accepts::contiguous, custom}};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(custom, kKernels)
