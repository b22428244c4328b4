// LRN (local response normalization): x / (bias + alpha / size * sum of squares of the neighbouring
// channels)^beta. A block of columns fits its squares of all channels into local memory, so every
// square is computed once; sums are not running ones, which would accumulate rounding errors.
#include "kernels/axes.h"
#include "kernels/elements.h"
#include "kernels/normalize/kernels.h"

namespace sdx::SDX_ISA {
namespace {

// Two vectors of columns: enough independent chains for the sums, and the squares of 1024 channels
// still take only 128 KiB.
template <class C>
constexpr int64_t kColumns = 2 * kLanesOf<C>;

struct ResponseArgs {
  AxisView axis;
  int64_t blocks;         // of columns
  int64_t before, after;  // channels in the sum, on either side of the own
  double alpha, beta, bias;
};

// x / t^beta for a block of columns; for the usual beta, t^0.75 = sqrt(t) * sqrt(sqrt(t)).
template <class C>
void divide(const C* x, const C* t, double beta, C* y, int64_t n) {
  if (beta == 0.75)
    for (int64_t j = 0; j < n; ++j) {
      const C root = C(__builtin_sqrt(t[j]));
      y[j] = x[j] / (root * C(__builtin_sqrt(root)));
    }
  else
    for (int64_t j = 0; j < n; ++j) y[j] = C(x[j] / __builtin_pow(double(t[j]), beta));
}

// One block: the squares of all channels, then the sum of a window of them for each channel.
template <class C, class T>
void run_block(const ResponseArgs& a, const T* x, T* y, int64_t width, C* squares) {
  const AxisView& r = a.axis;
  constexpr int64_t kMax = kColumns<C>;
  C buffer[kMax] = {};
  for (int64_t c = 0; c < r.n; ++c) {
    const C* p = read_elements<C>(x + c * r.stride, r.column_stride, width, buffer);
    for (int64_t j = 0; j < kMax; ++j) squares[c * kMax + j] = j < width ? p[j] * p[j] : C(0);
  }
  for (int64_t c = 0; c < r.n; ++c) {
    const int64_t low = c > a.before ? c - a.before : 0;
    const int64_t high = c + a.after < r.n - 1 ? c + a.after : r.n - 1;
    C total[kMax] = {}, result[kMax];
    for (int64_t k = low; k <= high; ++k)
      for (int64_t j = 0; j < kMax; ++j) total[j] += squares[k * kMax + j];
    for (C& t : total) t = C(a.bias) + C(a.alpha) * t;
    const C* p = read_elements<C>(x + c * r.stride, r.column_stride, width, buffer);
    divide(p, total, a.beta, result, width);
    T* to = y + c * r.out_stride;
    for (int64_t j = 0; j < width; ++j) to[j] = element<T>(result[j]);
  }
}

template <class T>
Status run_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ResponseArgs*>(args);
  using C = Wide<T>;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % a.blocks * kColumns<C>, rest = a.axis.columns - first;
    const Offsets at = offsets_of(a.axis.outer, a.axis.outer.n, item / a.blocks);
    run_block(a, input<T>(data, 0) + at.in + first * a.axis.column_stride,
              output<T>(data) + at.out + first, rest < kColumns<C> ? rest : kColumns<C>,
              reinterpret_cast<C*>(data.local));
  }
  return {};
}

}  // namespace

Status local_response(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Floats{}, [&]<class T>() {
    using C = Wide<T>;
    auto* a = plan.make<ResponseArgs>();
    plan.args = a;
    const AxisView& r = a->axis = view_along(call.in[0], call.out[0], 1);
    const int64_t size = call.ints[0];
    a->before = (size - 1) / 2, a->after = size / 2;
    a->alpha = call.floats[0] / double(size), a->beta = call.floats[1], a->bias = call.floats[2];
    a->blocks = (r.columns + kColumns<C> - 1) / kColumns<C>;
    plan.add(run_items<T>, r.n_outer * a->blocks, r.n * (size + 4) * 4);
    plan.local_bytes = r.n * kColumns<C> * int64_t(sizeof(C));
    return Status{};
  });
}

}  // namespace sdx::SDX_ISA
