// NonZero: coordinates of the elements that differ from 0, one row of the output per axis. Two
// scans: `resolve_nonzero` counts them to size the output, and the kernel writes them in row-major
// order.
#include "kernels/move/untyped.h"
#include "kernels/select/kernels.h"

namespace sdx::SDX_ISA {
namespace {

// Calls f(i) for every element that is not 0. float32 and float64 are compared as numbers (-0 is 0,
// NaN is not), every other type by its bits.
template <class F>
void visit_nonzero(const void* data, DType dtype, int64_t n, F f) {
  const auto scan = [&]<class T>() {
    const auto* x = static_cast<const Unaligned<T>*>(data);
    for (int64_t i = 0; i < n; ++i)
      if (x[i] != 0) f(i);
  };
  switch (dtype) {
    case DType::f32: return scan.template operator()<float>();
    case DType::f64: return scan.template operator()<double>();
    default: visit_element_size(size_of(dtype), [&]<class T>() { scan.template operator()<T>(); });
  }
}

struct NonzeroArgs {
  View in;
  int64_t n_nonzero;
};

Status nonzero_items(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const NonzeroArgs*>(args);
  int64_t k = 0;
  visit_nonzero(data.in[0], a.in.dtype, a.in.count(), [&](int64_t i) {
    for (int axis = a.in.rank - 1; axis >= 0; --axis) {
      output<int64_t>(data)[axis * a.n_nonzero + k] = i % a.in.dims[axis];
      i /= a.in.dims[axis];
    }
    ++k;
  });
  return {};
}

}  // namespace

Status nonzero(const Call& call, Plan& plan) {
  auto* a = plan.make<NonzeroArgs>();
  *a = {call.in[0], call.out[0].dims[1]};
  plan.args = a;
  plan.add(nonzero_items, call.out[0].count() == 0 ? 0 : 1, call.in[0].count());
  return {};
}

Status resolve_nonzero(const Call& call, const Data& data, View* out) {
  int64_t n_nonzero = 0;
  visit_nonzero(data.in[0], call.in[0].dtype, call.in[0].count(), [&](int64_t) { ++n_nonzero; });
  out->dims[0] = call.in[0].rank;
  out->dims[1] = n_nonzero;
  return {};
}

}  // namespace sdx::SDX_ISA
