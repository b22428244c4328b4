// MeanVarianceNormalization over any axes: the two-pass algorithm, mean first, then the squares of
// the differences; a third pass writes. Reduced axes may be scattered, so rows are visited in runs.
#include "kernels/axes.h"
#include "kernels/elements.h"
#include "kernels/normalize/kernels.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kBuffer = 1024;  // elements that are converted at a time

struct MeanVarianceArgs {
  Axes kept, reduced;
  int64_t n;
};

// Calls body(numbers, n, output offset) for runs of all elements that share statistics.
template <class C, class T, class Body>
SDX_INLINE void each(const MeanVarianceArgs& a, const T* x, Body&& body) {
  C buffer[kBuffer];
  const int64_t inner = a.reduced.last_size(), stride = a.reduced.last_stride();
  for (int64_t i = 0; i < a.n; i += inner) {
    Offsets at = offsets_of(a.reduced, a.reduced.n - 1, i / inner);
    for (int64_t j = 0; j < inner; j += kBuffer) {
      const int64_t n = inner - j < kBuffer ? inner - j : kBuffer;
      body(read_elements<C>(x + at.in + j * stride, stride, n, buffer), n,
           at.out + j * a.reduced.last_out());
    }
  }
}

template <class T>
Status run_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const MeanVarianceArgs*>(args);
  using C = Wide<T>;
  for (int64_t item = begin; item < end; ++item) {
    const Offsets at = offsets_of(a.kept, a.kept.n, item);
    const T* x = input<T>(data, 0) + at.in;
    T* y = output<T>(data) + at.out;
    double total = 0, squares = 0;
    each<C>(a, x, [&](const C* p, int64_t n, int64_t) {
      total += sum_of(p, n, C(0), [](Vec<C> s, Vec<C> v) { return s + v; });
    });
    const C mean = C(total / double(a.n));
    each<C>(a, x, [&](const C* p, int64_t n, int64_t) {
      squares += sum_of(p, n, mean, [&](Vec<C> s, Vec<C> v) {
        const Vec<C> d = v - mean;
        return s + d * d;
      });
    });
    // ONNX adds 1e-9 to the deviation, not to the variance; constant input gives 0.
    const C deviation = C(__builtin_sqrt(squares / double(a.n)) + 1e-9);
    const int64_t stride = a.reduced.last_out();
    each<C>(a, x, [&](const C* p, int64_t n, int64_t to) {
      for (int64_t i = 0; i < n; ++i) y[to + i * stride] = element<T>((p[i] - mean) / deviation);
    });
  }
  return {};
}

}  // namespace

Status mean_variance(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Floats{}, [&]<class T>() {
    auto* a = plan.make<MeanVarianceArgs>();
    plan.args = a;
    const View &x = call.in[0], &y = call.out[0];
    for (int i = 0; i < x.rank; ++i)
      (uint64_t(call.ints[0]) >> i & 1 ? a->reduced : a->kept)
          .add(x.dims[i], x.strides[i], y.strides[i]);
    a->kept.merge();
    a->reduced.sort(), a->reduced.merge();
    a->n = a->reduced.count();
    plan.add(run_items<T>, a->n ? a->kept.count() : 0, a->n);
    return Status{};
  });
}

}  // namespace sdx::SDX_ISA
