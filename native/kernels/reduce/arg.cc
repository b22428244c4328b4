// ArgMax and ArgMin.
#include "kernels/reduce/arg.h"

#include "kernels/kernel.h"
#include "kernels/reduce/kernels.h"

namespace sdx::SDX_ISA {
namespace {

template <class Order, class C>
Status run_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ArgArgs*>(args);
  int64_t where[kLanesOf<C>];
  for (int64_t item = begin; item < end; ++item) {
    const ArgItem found = best_of_item<Order, C>(a, data.in[0], item, where);
    int64_t* y = output<int64_t>(data) + found.offsets.out;
    for (int j = 0; j < found.n; ++j) y[j * a.column_out] = where[j];
  }
  return {};
}

template <class Order, class C>
Status prepare_in(const Call& call, Plan& plan) {
  const View& x = call.in[0];
  auto* args = plan.make<ArgArgs>();
  plan.args = args;
  // The output has one element along the axis, with or without keepdims.
  View y = x;
  y.dims[call.ints[0]] = 1;
  y.set_contiguous_strides();
  plan_arg<C>(x, y, int(call.ints[0]), *args);
  if (!args->elements.is_known())
    return Status::fail("the kernel is not implemented for element type %s", name_of(x.dtype));
  args->takes_last = call.ints[1] != 0;
  plan.add(run_items<Order, C>, args->items(), arg_work<C>(*args));
  return {};
}

template <class Order>
Status prepare(const Call& call, Plan& plan) {
  switch (call.in[0].dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16: return prepare_in<Order, float>(call, plan);
    case DType::f64: return prepare_in<Order, double>(call, plan);
    case DType::u64: return prepare_in<Order, uint64_t>(call, plan);
    default: return prepare_in<Order, int64_t>(call, plan);
  }
}

}  // namespace

Status arg_max(const Call& call, Plan& plan) { return prepare<Largest>(call, plan); }
Status arg_min(const Call& call, Plan& plan) { return prepare<Smallest>(call, plan); }

}  // namespace sdx::SDX_ISA
