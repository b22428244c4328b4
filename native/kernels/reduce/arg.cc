// ArgMax and ArgMin. NaN is better than any number, and the first NaN is the best of all.
// Contiguous axes reduce a buffer to its best value and then search for that value, two vector
// loops instead of one that carries indices; other axes carry an index vector.
#include "kernels/axes.h"
#include "kernels/kernel.h"
#include "kernels/reduce/elements.h"
#include "kernels/reduce/kernels.h"
#include "kernels/reduce/min_max.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int kBuffer = 1024;  // elements that are converted and reduced at a time

struct ArgArgs {
  AxisView around;
  Elements elements;
  bool takes_last;
  int64_t blocks;  // of columns
};

// The first or last position of a value, or -1; NaN equals NaN.
template <class C>
int64_t find(const C* x, int64_t n, C value, bool takes_last) {
  const auto matches = [&](int64_t i) { return x[i] == value || (value != value && x[i] != x[i]); };
  if (takes_last) {
    for (int64_t i = n - 1; i >= 0; --i)
      if (matches(i)) return i;
  } else {
    for (int64_t i = 0; i < n; ++i)
      if (matches(i)) return i;
  }
  return -1;
}

// The axis is contiguous or has a stride of its own: one output.
template <class Order, class C>
int64_t best_of_run(const ArgArgs& a, const std::byte* x) {
  C buffer[kBuffer];
  C best{};
  int64_t where = -1;
  const auto better = [](auto p, auto q) { return Order::better(p, q); };
  for (int64_t i = 0; i < a.around.n; i += kBuffer) {
    const int64_t n = a.around.n - i < kBuffer ? a.around.n - i : kBuffer;
    const std::byte* from = x + i * a.around.step * a.elements.bytes;
    const C* p = numbers(a.elements, from, a.around.step, n, buffer);
    constexpr C kWorst = Order::template kWorst<C>;
    const C best_here = fold(accumulate(p, n, splat(kWorst), kWorst, better, better), better);
    const bool is_equal = best_here == best || (best_here != best_here && best != best);
    const bool is_better =
        best == best && (best_here != best_here || Order::is_better(best_here, best));
    if (where >= 0 && !is_better && !(is_equal && a.takes_last)) continue;
    best = best_here;
    where = i + find(p, n, best_here, a.takes_last);
  }
  return where;
}

// kLanesOf<C> neighbouring outputs, one per lane.
template <class Order, class C>
void best_of_columns(const ArgArgs& a, const std::byte* x, int64_t* y, int width) {
  using Index = std::conditional_t<sizeof(C) == 8, int64_t, int32_t>;
  C buffer[kLanesOf<C>];
  const auto row = [&](int64_t i) {
    const std::byte* from = x + i * a.around.step * a.elements.bytes;
    const C* p = numbers(a.elements, from, a.around.column_step, width, buffer);
    return width == kLanesOf<C> ? load(p) : load(p, Part{width});
  };
  Vec<C> best = row(0);
  Vec<Index> where{};
  for (int64_t i = 1; i < a.around.n; ++i) {
    const Vec<C> v = row(i);
    auto takes = Order::is_better(v, best) | ((v != v) & (best == best));
    if (a.takes_last) takes |= (v == best) | ((v != v) & (best != best));
    best = takes ? v : best;
    where = takes ? splat(Index(i)) : where;
  }
  for (int j = 0; j < width; ++j) y[j] = where[j];
}

template <class Order, class C>
Status run_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ArgArgs*>(args);
  constexpr int64_t lanes = kLanesOf<C>;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t outer = item / a.blocks, first = item % a.blocks * lanes;
    const int64_t rest = a.around.columns - first;
    const Offsets place = offsets_of(a.around.outer, a.around.outer.n, outer);
    const int64_t at = place.in + first * a.around.column_step;
    const std::byte* x = input<std::byte>(data, 0) + at * a.elements.bytes;
    int64_t* y = output<int64_t>(data) + place.out + first;
    if (a.around.columns == 1)
      *y = best_of_run<Order, C>(a, x);
    else
      best_of_columns<Order, C>(a, x, y, int(rest < lanes ? rest : lanes));
  }
  return {};
}

template <class Order, class C>
Status prepare_in(const Call& call, Plan& plan) {
  constexpr int64_t lanes = kLanesOf<C>;
  const View& x = call.in[0];
  auto* args = plan.make<ArgArgs>();
  plan.args = args;
  args->elements = elements_of<C, C>(x.dtype);
  if (!args->elements.is_known())
    return Status::fail("the kernel does not take elements of type %d", int(x.dtype));
  // The output has one element along the axis, whether it keeps it or not.
  View y = x;
  y.dims[call.ints[0]] = 1;
  y.pack();
  args->around = view_along(x, y, int(call.ints[0]));
  args->takes_last = call.ints[1] != 0;
  args->blocks = (args->around.columns + lanes - 1) / lanes;
  const int64_t work = args->around.columns == 1 ? args->around.n / 4 : args->around.n * 2;
  plan.add(run_items<Order, C>, args->around.n_outer * args->blocks, work + 10);
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
