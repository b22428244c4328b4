// CumSum and CumProd: floats are added up in double, integers wrap around.
#include "kernels/axes.h"
#include "kernels/fetch.h"
#include "kernels/reduce/rows.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kColumns = 64;

struct RunningArgs {
  Around around;
  bool is_exclusive, is_reverse;
  int64_t blocks;  // of columns
};

struct Add {
  static constexpr int kStart = 0;
  template <class W>
  static SDX_INLINE W step(W total, W x) {
    return total + x;
  }
};
struct Multiply {
  static constexpr int kStart = 1;
  template <class W>
  static SDX_INLINE W step(W total, W x) {
    return total * x;
  }
};

template <class T>
using Total =
    std::conditional_t<kIsFloat<T>, double, std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>;
using Summable = Types<float, double, F16, BF16, int32_t, int64_t, uint32_t, uint64_t>;

template <class Op, class T>
void run_columns(const RunningArgs& a, const T* x, T* y, int64_t width) {
  using W = Total<T>;
  W totals[kColumns], buffer[kColumns];
  for (int64_t j = 0; j < width; ++j) totals[j] = W(Op::kStart);
  for (int64_t i = 0; i < a.around.n; ++i) {
    const int64_t at = a.is_reverse ? a.around.n - 1 - i : i;
    const W* p = fetch<W>(x + at * a.around.step, a.around.column_step, width, buffer);
    T* to = y + at * a.around.out_step;
    if (a.is_exclusive)
      for (int64_t j = 0; j < width; ++j) to[j] = element<T>(totals[j]);
    for (int64_t j = 0; j < width; ++j) totals[j] = Op::step(totals[j], p[j]);
    if (!a.is_exclusive)
      for (int64_t j = 0; j < width; ++j) to[j] = element<T>(totals[j]);
  }
}

// One row: nothing lies side by side with the numbers that are added up.
template <class Op, class T>
void run_row(const RunningArgs& a, const T* x, T* y) {
  using W = Total<T>;
  const int64_t n = a.around.n, step = a.is_reverse ? -a.around.step : a.around.step;
  const int64_t out = a.is_reverse ? -1 : 1;
  if (a.is_reverse) x += (n - 1) * a.around.step, y += n - 1;
  W total = W(Op::kStart);
  for (int64_t i = 0; i < n; ++i) {
    const W next = Op::step(total, number<W>(x[i * step]));
    y[i * out] = element<T>(a.is_exclusive ? total : next);
    total = next;
  }
}

template <class Op, class T>
Status run_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const RunningArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t outer = item / a.blocks, first = item % a.blocks * kColumns;
    const int64_t rest = a.around.columns - first;
    const Place place = place_of(a.around.outer, a.around.outer.n, outer);
    const T* x = input<T>(data, 0) + place.in + first * a.around.column_step;
    T* y = output<T>(data) + place.out + first;
    if (a.around.columns == 1)
      run_row<Op>(a, x, y);
    else
      run_columns<Op>(a, x, y, rest < kColumns ? rest : kColumns);
  }
  return {};
}

template <class Op>
Status prepare(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Summable{}, [&]<class T>() {
    auto* args = plan.make<RunningArgs>();
    plan.args = args;
    args->around = around(call.in[0], call.out[0], int(call.ints[0]));
    args->is_exclusive = call.ints[1] != 0;
    args->is_reverse = call.ints[2] != 0;
    args->blocks = (args->around.columns + kColumns - 1) / kColumns;
    plan.add(run_items<Op, T>, args->around.n_outer * args->blocks, args->around.n * 4);
    return Status{};
  });
}

}  // namespace

Status running_sum(const Call& call, Plan& plan) { return prepare<Add>(call, plan); }
Status running_prod(const Call& call, Plan& plan) { return prepare<Multiply>(call, plan); }

}  // namespace sdx::SDX_ISA
