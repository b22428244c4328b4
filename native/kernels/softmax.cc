// Softmax, LogSoftmax and Hardmax along an axis. Rows (the axis is the last) of up to eight vectors
// stay in registers; longer ones take three passes through L1. Along other axes lanes are columns.
#include "kernels/axes.h"
#include "kernels/elements.h"
#include "kernels/reduce/arg.h"
#include "simd/double_math.h"
#include "simd/exponential.h"
#include "simd/half_parts.h"
#include "simd/reduction.h"
#include "simd/softmax_exp.h"

namespace sdx::SDX_ISA {
namespace {

struct SoftmaxArgs {
  AxisView axis;
  int64_t blocks;  // blocks of columns
};

constexpr int32_t kLaneNumbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

template <class C>
constexpr C kLowest = -C(kInf);
template <class C>
constexpr int64_t kColumns = 4 * kLanesOf<C>;  // of an item: whole cache lines

// Maximum that may drop a NaN: its exponential makes the sum NaN in any case.
template <class V>
SDX_INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

SDX_INLINE f32v exp_of(f32v x) { return vexp_softmax(x); }
SDX_INLINE f64v exp_of(f64v x) { return dexp(x); }

template <class C>
C top_of(const C* x, int64_t n) {
  const auto max = [](Vec<C> a, Vec<C> b) { return larger(a, b); };
  return fold(accumulate(x, n, splat(kLowest<C>), kLowest<C>, max, max), max);
}

// Sum of e^(x - top), in blocks (kSumBlock) for accuracy. Softmax stores the exponentials in y.
template <bool kIsLog, class C>
double exponentials(const C* x, C top, C* y, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kSumBlock<C>) {
    Vec<C> part{};
    vloop<C>(n - i < kSumBlock<C> ? n - i : kSumBlock<C>, [&](int64_t j, auto lanes) {
      const Vec<C> e = exp_of(load(x + i + j, lanes, kLowest<C>) - top);
      if (!kIsLog) store(y + i + j, e, lanes);
      part += e;
    });
    total += fold_sum(part);
  }
  return total;
}

// Last pass: divides by the sum, or subtracts its logarithm.
template <bool kIsLog, class C>
void finish(const C* x, C top, double total, C* y, int64_t n) {
  const C last = C(kIsLog ? __builtin_log(total) : 1 / total);
  vloop<C>(n, [&](int64_t i, auto lanes) {
    if (kIsLog)
      store(y + i, (load(x + i, lanes) - top) - last, lanes);
    else
      store(y + i, load(y + i, lanes) * last, lanes);
  });
}

// Three passes over one row, which stays in L1 for every row length that models use.
template <bool kIsLog, class C>
void softmax_row(const C* x, C* y, int64_t n) {
  const C top = top_of(x, n);
  finish<kIsLog>(x, top, exponentials<kIsLog>(x, top, y, n), y, n);
}

// Joins kCount vectors to one, by pairs.
template <int kCount, class V, class Step>
SDX_INLINE V joined(const V* v, Step step) {
  if constexpr (kCount == 1)
    return v[0];
  else
    return step(joined<kCount / 2>(v, step), joined<kCount - kCount / 2>(v + kCount / 2, step));
}

// Elements as vectors of the type that they compute in.
template <class T, class L>
SDX_INLINE Vec<Wide<T>> load_wide(const T* p, L lanes, Wide<T> fill) {
  if constexpr (!kIsHalf<T>) {
    return load(p, lanes, fill);
  } else if constexpr (std::is_same_v<L, Part>) {
    const f32v v = widen_half(p, load_half_part(&p->bits, lanes));
    return load(kLaneNumbers) < lanes.n ? v : splat(fill);
  } else {
    return load_float(p, lanes);
  }
}
template <class T, class V, class L>
SDX_INLINE void store_narrow(T* p, V v, L lanes) {
  if constexpr (kIsHalf<T> && std::is_same_v<L, Part>)
    store_half_part(&p->bits, narrow_half(p, v), lanes);
  else if constexpr (kIsHalf<T>)
    store_float(p, v, lanes);
  else
    store(p, v, lanes);
}

SDX_INLINE float log_of(float x) { return vlog(splat(x))[0]; }
SDX_INLINE double log_of(double x) { return __builtin_log(x); }

// A row of kCount vectors, the last one partial, which stays in registers.
template <bool kIsLog, int kCount, class T>
void softmax_short(const T* x, T* y, int64_t n) {
  using C = Wide<T>;
  constexpr int64_t lanes = kLanesOf<C>;
  const Part rest{int(n - (kCount - 1) * lanes)};
  const auto add = [](auto a, auto b) { return a + b; };
  const auto max = [](auto a, auto b) { return larger(a, b); };
  Vec<C> v[kCount], e[kCount];
  for (int i = 0; i < kCount - 1; ++i) v[i] = load_wide(x + i * lanes, Full{}, kLowest<C>);
  v[kCount - 1] = load_wide(x + (kCount - 1) * lanes, rest, kLowest<C>);
  const C top = fold(joined<kCount>(v, max), max);
  for (int i = 0; i < kCount; ++i) e[i] = exp_of(v[i] -= top);
  const C sum = fold(joined<kCount>(e, add), add), last = kIsLog ? log_of(sum) : 1 / sum;
  for (int i = 0; i < kCount; ++i) v[i] = kIsLog ? v[i] - last : e[i] * last;
  for (int i = 0; i < kCount - 1; ++i) store_narrow(y + i * lanes, v[i], Full{});
  store_narrow(y + (kCount - 1) * lanes, v[kCount - 1], rest);
}

template <class T>
using RowFn = void (*)(const T* x, T* y, int64_t n);

// The instantiation for rows of n elements; null for long rows.
template <bool kIsLog, class C>
RowFn<C> short_function(int64_t n) {
  switch ((n + kLanesOf<Wide<C>> - 1) / kLanesOf<Wide<C>>) {
    case 1: return softmax_short<kIsLog, 1, C>;
    case 2: return softmax_short<kIsLog, 2, C>;
    case 3: return softmax_short<kIsLog, 3, C>;
    case 4: return softmax_short<kIsLog, 4, C>;
    case 5: return softmax_short<kIsLog, 5, C>;
    case 6: return softmax_short<kIsLog, 6, C>;
    case 7: return softmax_short<kIsLog, 7, C>;
    case 8: return softmax_short<kIsLog, 8, C>;
    default: return nullptr;
  }
}

// Items: rows. Long rows of halves, and elements that are not contiguous, go through local memory.
template <bool kIsLog, class T>
Status softmax_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = static_cast<const SoftmaxArgs*>(args)->axis;
  using C = Wide<T>;
  const RowFn<T> run_short = a.stride == 1 ? short_function<kIsLog, T>(a.n) : nullptr;
  const RowFn<C> run_copy = short_function<kIsLog, C>(a.n);
  const RowFn<C> run_row = run_copy != nullptr ? run_copy : softmax_row<kIsLog, C>;
  C* local = reinterpret_cast<C*>(data.local);
  for (int64_t row = begin; row < end; ++row) {
    const Offsets at = offsets_of(a.outer, a.outer.n, row);
    T* to = output<T>(data) + at.out;
    if (run_short != nullptr) {
      run_short(input<T>(data, 0) + at.in, to, a.n);
      continue;
    }
    C* y = result_buffer<C>(to, local);
    run_row(read_elements<C>(input<T>(data, 0) + at.in, a.stride, a.n, local), y, a.n);
    write_elements(to, y, a.n);
  }
  return {};
}

// A block of columns: elements of one result are a.stride apart, those of neighbours contiguous.
template <bool kIsLog, class C, class T>
void softmax_columns(const AxisView& a, const T* x, T* y, int64_t width, C* e) {
  constexpr int64_t kMax = kColumns<C>;
  C tops[kMax], totals[kMax], buffer[kMax];
  for (C& top : tops) top = kLowest<C>;
  for (C& total : totals) total = 0;
  const auto each = [&](int64_t i, auto&& body) {
    const C* p = read_elements<C>(x + i * a.stride, a.column_stride, width, buffer);
    vloop<C>(width, [&](int64_t j, auto lanes) { body(j, load(p + j, lanes, kLowest<C>), lanes); });
  };
  for (int64_t i = 0; i < a.n; ++i)
    each(i, [&](int64_t j, Vec<C> v, auto) { store(tops + j, larger(load(tops + j), v)); });
  for (int64_t i = 0; i < a.n; ++i)
    each(i, [&](int64_t j, Vec<C> v, auto) {
      const Vec<C> part = exp_of(v - load(tops + j));
      if (!kIsLog) store(e + i * kMax + j, part);
      store(totals + j, load(totals + j) + part);
    });
  for (int64_t j = 0; j < width; ++j) totals[j] = kIsLog ? __builtin_log(totals[j]) : 1 / totals[j];
  for (int64_t i = 0; i < a.n; ++i) {
    T* to = y + i * a.out_stride;
    C* numbers = result_buffer<C>(to, e + i * kMax);
    each(i, [&](int64_t j, Vec<C> v, auto lanes) {
      if (kIsLog)
        store(numbers + j, (v - load(tops + j)) - load(totals + j), lanes);
      else
        store(numbers + j, load(e + i * kMax + j) * load(totals + j), lanes);
    });
    write_elements(to, numbers, width);
  }
}

// Items: blocks of columns.
template <bool kIsLog, class T>
Status softmax_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const SoftmaxArgs*>(args);
  using C = Wide<T>;
  for (int64_t item = begin; item < end; ++item) {
    const Offsets at = offsets_of(a.axis.outer, a.axis.outer.n, item / a.blocks);
    const int64_t first = item % a.blocks * kColumns<C>, rest = a.axis.columns - first;
    softmax_columns<kIsLog>(a.axis, input<T>(data, 0) + at.in + first * a.axis.column_stride,
                            output<T>(data) + at.out + first,
                            rest < kColumns<C> ? rest : kColumns<C>,
                            reinterpret_cast<C*>(data.local));
  }
  return {};
}

template <bool kIsLog>
Status softmax(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Floats{}, [&]<class T>() {
    using C = Wide<T>;
    auto* args = plan.make<SoftmaxArgs>();
    plan.args = args;
    const AxisView& a = args->axis = view_along(call.in[0], call.out[0], int(call.ints[0]));
    args->blocks = (a.columns + kColumns<C> - 1) / kColumns<C>;
    if (a.columns == 1)
      plan.add(softmax_rows<kIsLog, T>, a.n_outer, a.n / 2 + 20);
    else
      plan.add(softmax_blocks<kIsLog, T>, a.n_outer * args->blocks, a.n * kColumns<C> / 2 + 20);
    plan.local_bytes = a.n * int64_t(sizeof(C)) * (a.columns == 1 ? 1 : kColumns<C>);
    return Status{};
  });
}

// Items of ArgMax. 1 at the first of the largest numbers; NaN is larger than any.
template <class T>
Status hardmax_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ArgArgs*>(args);
  using C = Wide<T>;
  int64_t where[kLanesOf<C>];
  for (int64_t item = begin; item < end; ++item) {
    const ArgItem found = best_of_item<Largest, C>(a, data.in[0], item, where);
    T* y = output<T>(data) + found.offsets.out;
    const int64_t stride = a.axis.out_stride, column = a.column_out;
    // The contiguous axis in the inner loop.
    if (stride == 1)
      for (int j = 0; j < found.n; ++j) memset(y + j * column, 0, size_t(a.axis.n) * sizeof(T));
    else
      for (int64_t i = 0; i < a.axis.n; ++i)
        for (int j = 0; j < found.n; ++j) y[i * stride + j * column] = element<T>(0.0f);
    for (int j = 0; j < found.n; ++j) y[where[j] * stride + j * column] = element<T>(1.0f);
  }
  return {};
}

Status hardmax(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Floats{}, [&]<class T>() {
    auto* args = plan.make<ArgArgs>();
    plan.args = args;
    plan_arg<Wide<T>>(call.in[0], call.out[0], int(call.ints[0]), *args);
    plan.add(hardmax_items<T>, args->items(), 2 * arg_work<Wide<T>>(*args));
    return Status{};
  });
}

constexpr Kernel kKernels[] = {
    {"softmax", Accepts::any, softmax<false>},
    {"log_softmax", Accepts::any, softmax<true>},
    {"hardmax", Accepts::any, hardmax},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(softmax, kKernels)
