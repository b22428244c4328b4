// CumSum and CumProd (prefix sums and products): floats accumulate in double, integers wrap around.
// A prefix sum is sequential along its axis, so vectors and instruction-level parallelism come from
// the other axes.
#include <utility>

#include "kernels/axes.h"
#include "kernels/elements.h"
#include "kernels/reduce/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kColumns = 256;  // columns of an item: runs that the prefetcher follows

struct CumulativeArgs {
  AxisView axis;
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

// Neighbouring elements belong to different sums: one row of totals, vectorized by the compiler.
template <class Op, class T>
void run_columns(const CumulativeArgs& a, const T* x, T* y, int64_t width) {
  using W = Total<T>;
  W totals[kColumns], buffer[kColumns];
  for (int64_t j = 0; j < width; ++j) totals[j] = W(Op::kStart);
  for (int64_t i = 0; i < a.axis.n; ++i) {
    const int64_t at = a.is_reverse ? a.axis.n - 1 - i : i;
    const W* p = read_elements<W>(x + at * a.axis.stride, a.axis.column_stride, width, buffer);
    T* to = y + at * a.axis.out_stride;
    if (a.is_exclusive)
      for (int64_t j = 0; j < width; ++j) to[j] = element<T>(totals[j]);
    for (int64_t j = 0; j < width; ++j) totals[j] = Op::step(totals[j], p[j]);
    if (!a.is_exclusive)
      for (int64_t j = 0; j < width; ++j) to[j] = element<T>(totals[j]);
  }
}

// The axis is contiguous, so every addition waits for the one before it: several rows are
// interleaved to hide the latency.
template <class Op, int kCount, class T>
void run_rows(const CumulativeArgs& a, const T* const* x, T* const* y) {
  using W = Total<T>;
  // Elements of a row before the loop switches to the next row: a cache line of a 4-byte type,
  // since the lines of rows with a power-of-two stride evict each other from one L1 set.
  constexpr int64_t kRun = 16;
  const int64_t n = a.axis.n, stride = a.axis.stride;
  W totals[kCount];
  for (W& total : totals) total = W(Op::kStart);
  for (int64_t begin = 0; begin < n; begin += kRun) {
    const int64_t end = begin + kRun < n ? begin + kRun : n;
    for (int k = 0; k < kCount; ++k) {
      W total = totals[k];
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = a.is_reverse ? n - 1 - i : i;
        const W next = Op::step(total, number<W>(x[k][at * stride]));
        y[k][at] = element<T>(a.is_exclusive ? total : next);
        total = next;
      }
      totals[k] = total;
    }
  }
}

// Lane i of the result is lane i - kBy, and those below are `fill`.
template <int kBy, class V, int... kIndex>
SDX_INLINE V shifted(V v, V fill, std::integer_sequence<int, kIndex...>) {
  return __builtin_shufflevector(fill, v,
                                 (kIndex < kBy ? 0 : int(sizeof...(kIndex)) + kIndex - kBy)...);
}

// Prefix totals of one vector's lanes, in log2(lanes) steps.
template <class Op, int kBy = 1, class W>
SDX_INLINE Vec<W> scan_lanes(Vec<W> v) {
  if constexpr (kBy >= kLanesOf<W>) {
    return v;
  } else {
    constexpr std::make_integer_sequence<int, kLanesOf<W>> lanes{};
    const Vec<W> before = shifted<kBy>(v, splat(W(Op::kStart)), lanes);
    return scan_lanes<Op, 2 * kBy, W>(Op::step(before, v));
  }
}

// One contiguous row, forwards: vectors are scanned by themselves, and the total so far is added.
// The order of a row's additions does not depend on the number of rows.
template <class Op, class T>
void scan_row(const CumulativeArgs& a, const T* x, T* y) {
  using W = Total<T>;
  typedef T Narrow __attribute__((vector_size(kLanesOf<W> * sizeof(T))));
  constexpr int64_t lanes = kLanesOf<W>;
  constexpr std::make_integer_sequence<int, int(lanes)> order{};
  W total = W(Op::kStart);
  int64_t i = 0;
  for (; i + lanes <= a.axis.n; i += lanes) {
    Narrow given;
    memcpy(&given, x + i, sizeof given);
    const Vec<W> scanned = scan_lanes<Op, 1, W>(__builtin_convertvector(given, Vec<W>));
    const Vec<W> before = splat(total);
    const Vec<W> sums = Op::step(before, scanned);
    const Narrow made =
        __builtin_convertvector(a.is_exclusive ? shifted<1>(sums, before, order) : sums, Narrow);
    memcpy(y + i, &made, sizeof made);
    total = sums[lanes - 1];
  }
  for (; i < a.axis.n; ++i) {
    const W next = Op::step(total, W(x[i]));
    y[i] = T(a.is_exclusive ? total : next);
    total = next;
  }
}

template <class Op, class T>
Status run_row_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const CumulativeArgs*>(args);
  constexpr int kCount = 8;
  const T* x[kCount];
  T* y[kCount];
  // Not float64: a vector's own total could overflow where that of the row does not.
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, double>)
    if (a.axis.stride == 1 && !a.is_reverse) {
      for (int64_t item = begin; item < end; ++item) {
        const Offsets at = offsets_of(a.axis.outer, a.axis.outer.n, item);
        scan_row<Op>(a, input<T>(data, 0) + at.in, output<T>(data) + at.out);
      }
      return {};
    }
  for (int64_t item = begin; item < end;) {
    const int count = end - item < kCount ? 1 : kCount;
    for (int k = 0; k < count; ++k) {
      const Offsets offsets = offsets_of(a.axis.outer, a.axis.outer.n, item + k);
      x[k] = input<T>(data, 0) + offsets.in, y[k] = output<T>(data) + offsets.out;
    }
    count == 1 ? run_rows<Op, 1>(a, x, y) : run_rows<Op, kCount>(a, x, y);
    item += count;
  }
  return {};
}

template <class Op, class T>
Status run_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const CumulativeArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t outer = item / a.blocks, first = item % a.blocks * kColumns;
    const int64_t rest = a.axis.columns - first;
    const Offsets offsets = offsets_of(a.axis.outer, a.axis.outer.n, outer);
    const T* x = input<T>(data, 0) + offsets.in + first * a.axis.column_stride;
    T* y = output<T>(data) + offsets.out + first;
    run_columns<Op>(a, x, y, rest < kColumns ? rest : kColumns);
  }
  return {};
}

template <class Op>
Status prepare(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Summable{}, [&]<class T>() {
    auto* args = plan.make<CumulativeArgs>();
    plan.args = args;
    args->axis = view_along(call.in[0], call.out[0], int(call.ints[0]));
    args->is_exclusive = call.ints[1] != 0;
    args->is_reverse = call.ints[2] != 0;
    args->blocks = (args->axis.columns + kColumns - 1) / kColumns;
    if (args->axis.columns == 1)
      plan.add(run_row_items<Op, T>, args->axis.n_outer, args->axis.n);
    else
      plan.add(run_items<Op, T>, args->axis.n_outer * args->blocks, args->axis.n * 4);
    return Status{};
  });
}

}  // namespace

Status cumulative_sum(const Call& call, Plan& plan) { return prepare<Add>(call, plan); }
Status cumulative_prod(const Call& call, Plan& plan) { return prepare<Multiply>(call, plan); }

}  // namespace sdx::SDX_ISA
