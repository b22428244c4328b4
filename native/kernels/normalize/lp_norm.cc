// LpNormalization: elements along an axis divided by their L1 or L2 norm; a norm of 0 gives zeros.
#include "kernels/axes.h"
#include "kernels/elements.h"
#include "kernels/normalize/kernels.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {
namespace {

struct NormArgs {
  AxisView axis;
  int64_t blocks;  // of columns
  bool is_square;
};

template <class C>
constexpr int64_t kColumns = 4 * kLanesOf<C>;

template <class C>
SDX_INLINE Vec<C> added(Vec<C> total, Vec<C> v, bool is_square) {
  return total + (is_square ? v * v : v < 0 ? -v : v);
}

// v / norm, with 0 / 0 = 0.
template <class C>
SDX_INLINE Vec<C> divided(Vec<C> v, Vec<C> norm) {
  return norm == 0 ? Vec<C>{} : v / norm;
}

// The axis is contiguous: items are rows.
template <class T>
Status norm_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const NormArgs*>(args);
  using C = Wide<T>;
  const int64_t n = a.axis.n;
  C* scratch = reinterpret_cast<C*>(data.local);
  for (int64_t row = begin; row < end; ++row) {
    const Offsets at = offsets_of(a.axis.outer, a.axis.outer.n, row);
    const C* x = read_elements<C>(input<T>(data, 0) + at.in, a.axis.stride, n, scratch);
    const auto add = [&](Vec<C> s, Vec<C> v) { return added<C>(s, v, a.is_square); };
    const double total = sum_of(x, n, C(0), add);
    const Vec<C> norm = splat(C(a.is_square ? __builtin_sqrt(total) : total));
    T* to = output<T>(data) + at.out;
    C* y = result_buffer<C>(to, scratch);
    vloop<C>(n, [&](int64_t i, auto lanes) {
      store(y + i, divided<C>(load(x + i, lanes), norm), lanes);
    });
    write_elements(to, y, n);
  }
  return {};
}

// Another axis is contiguous: items are blocks of columns, whose norms accumulate in vectors.
template <class T>
Status norm_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const NormArgs*>(args);
  using C = Wide<T>;
  const AxisView& r = a.axis;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % a.blocks * kColumns<C>, rest = r.columns - first;
    const int64_t width = rest < kColumns<C> ? rest : kColumns<C>;
    const Offsets at = offsets_of(r.outer, r.outer.n, item / a.blocks);
    const T* from = input<T>(data, 0) + at.in + first * r.column_stride;
    C norms[kColumns<C>] = {}, buffer[kColumns<C>];
    for (int64_t i = 0; i < r.n; ++i) {
      const C* x = read_elements<C>(from + i * r.stride, r.column_stride, width, buffer);
      vloop<C>(width, [&](int64_t j, auto lanes) {
        store(norms + j, added<C>(load(norms + j), load(x + j, lanes), a.is_square));
      });
    }
    if (a.is_square)
      for (C& norm : norms) norm = C(__builtin_sqrt(norm));
    for (int64_t i = 0; i < r.n; ++i) {
      const C* x = read_elements<C>(from + i * r.stride, r.column_stride, width, buffer);
      T* to = output<T>(data) + at.out + i * r.out_stride + first;
      C* y = result_buffer<C>(to, buffer);
      vloop<C>(width, [&](int64_t j, auto lanes) {
        store(y + j, divided<C>(load(x + j, lanes), load(norms + j)), lanes);
      });
      write_elements(to, y, width);
    }
  }
  return {};
}

}  // namespace

Status lp_norm(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Floats{}, [&]<class T>() {
    using C = Wide<T>;
    auto* a = plan.make<NormArgs>();
    plan.args = a;
    const AxisView& r = a->axis = view_along(call.in[0], call.out[0], int(call.ints[0]));
    a->is_square = call.ints[1] == 2;
    a->blocks = (r.columns + kColumns<C> - 1) / kColumns<C>;
    if (r.columns == 1) {
      plan.add(norm_rows<T>, r.n_outer, r.n / 4 + 20);
      plan.local_bytes = r.n * int64_t(sizeof(C));
    } else {
      plan.add(norm_columns<T>, r.n_outer * a->blocks, r.n * kColumns<C> / 4 + 20);
    }
    return Status{};
  });
}

}  // namespace sdx::SDX_ISA
