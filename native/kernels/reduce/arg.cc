// ArgMax and ArgMin. A NaN is better than any number, and the first of them the best.
#include "kernels/axes.h"
#include "kernels/fetch.h"
#include "kernels/reduce/extreme.h"
#include "kernels/reduce/rows.h"
#include "simd/fold.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int kBuffer = 1024;

struct ArgArgs {
  Around around;
  bool takes_last;
  int64_t blocks;  // of columns
};

// What numbers are compared in; columns need an index as wide as the numbers.
template <class T>
using Compared =
    std::conditional_t<kIsFloat<T>, Wide<T>, std::conditional_t<sizeof(T) < 4, int32_t, T>>;
using Comparable = Types<float, double, F16, BF16, int8_t, uint8_t, int16_t, uint16_t, int32_t,
                         uint32_t, int64_t, uint64_t>;

// The first or last place of a number in a run, or -1; NaN is found as NaN.
template <class C>
int64_t find(const C* x, int64_t n, C wanted, bool takes_last) {
  const auto is = [&](int64_t i) { return x[i] == wanted || (wanted != wanted && x[i] != x[i]); };
  if (takes_last) {
    for (int64_t i = n - 1; i >= 0; --i)
      if (is(i)) return i;
  } else {
    for (int64_t i = 0; i < n; ++i)
      if (is(i)) return i;
  }
  return -1;
}

template <class Order, class C, class T>
int64_t best_of_run(const ArgArgs& a, const T* x) {
  C buffer[kBuffer];
  C best{};
  int64_t where = -1;
  const auto better = [](auto p, auto q) { return Order::better(p, q); };
  for (int64_t i = 0; i < a.around.n; i += kBuffer) {
    const int64_t n = a.around.n - i < kBuffer ? a.around.n - i : kBuffer;
    const C* p = fetch<C>(x + i * a.around.step, a.around.step, n, buffer);
    constexpr C kWorst = Order::template kWorst<C>;
    const C found = fold(run(p, n, splat(kWorst), kWorst, better, better), better);
    const bool is_equal = found == best || (found != found && best != best);
    const bool is_better = best == best && (found != found || Order::is_better(found, best));
    if (where >= 0 && !is_better && !(is_equal && a.takes_last)) continue;
    best = found;
    where = i + find(p, n, found, a.takes_last);
  }
  return where;
}

// kLanesOf<C> columns side by side.
template <class Order, class C, class T>
void best_of_columns(const ArgArgs& a, const T* x, int64_t* y, int width) {
  using Index = std::conditional_t<sizeof(C) == 8, int64_t, int32_t>;
  C buffer[kLanesOf<C>];
  const auto row = [&](int64_t i) {
    const C* p = fetch<C>(x + i * a.around.step, a.around.column_step, width, buffer);
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

template <class Order, class T>
Status run_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ArgArgs*>(args);
  using C = Compared<T>;
  constexpr int64_t lanes = kLanesOf<C>;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t outer = item / a.blocks, first = item % a.blocks * lanes;
    const int64_t rest = a.around.columns - first;
    const Place place = place_of(a.around.outer, a.around.outer.n, outer);
    const T* x = input<T>(data, 0) + place.in + first * a.around.column_step;
    int64_t* y = output<int64_t>(data) + place.out + first;
    if (a.around.columns == 1)
      *y = best_of_run<Order, C>(a, x);
    else
      best_of_columns<Order, C>(a, x, y, int(rest < lanes ? rest : lanes));
  }
  return {};
}

template <class Order>
Status prepare(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Comparable{}, [&]<class T>() {
    constexpr int64_t lanes = kLanesOf<Compared<T>>;
    auto* args = plan.make<ArgArgs>();
    plan.args = args;
    // The output has one element along the axis, whether it keeps it or not.
    View y = call.in[0];
    y.dims[call.ints[0]] = 1;
    y.pack();
    args->around = around(call.in[0], y, int(call.ints[0]));
    args->takes_last = call.ints[1] != 0;
    args->blocks = (args->around.columns + lanes - 1) / lanes;
    const int64_t work = args->around.columns == 1 ? args->around.n / 4 : args->around.n * 2;
    plan.add(run_items<Order, T>, args->around.n_outer * args->blocks, work + 10);
    return Status{};
  });
}

}  // namespace

Status arg_max(const Call& call, Plan& plan) { return prepare<Largest>(call, plan); }
Status arg_min(const Call& call, Plan& plan) { return prepare<Smallest>(call, plan); }

}  // namespace sdx::SDX_ISA
