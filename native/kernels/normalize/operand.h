// Rows of operands of any type and stride, broadcast to the shape of the first.
#pragma once

#include "kernels/axes.h"
#include "kernels/fetch.h"

namespace sdx::SDX_ISA {

// A tensor as rows of the axes from some axis on, in the shape of another that it broadcasts to.
struct Operand {
  int slot = -1;  // -1: not given
  DType dtype = DType::none;
  Axes outer, inner;
  SDX_INLINE bool is_given() const { return slot >= 0; }
};

template <class C, class T>
SDX_INLINE const C* fetch_row(const Axes& inner, const T* x, C* buffer) {
  const int64_t n = inner.last_size(), runs = inner.count(inner.n - 1);
  if (inner.n < 2) return fetch<C>(x, inner.last_step(), n, buffer);
  for (int64_t i = 0; i < runs; ++i) {
    const T* p = x + place_of(inner, inner.n - 1, i).in;
    for (int64_t j = 0; j < n; ++j) buffer[i * n + j] = number<C>(p[j * inner.last_step()]);
  }
  return buffer;
}

// n elements that lie at `at` behind an address, without a call for the types that need none.
template <class C>
SDX_INLINE const C* row_at(const Operand& o, const Data& data, int64_t at, C* buffer) {
  const void* x = data.in[o.slot];
  switch (o.dtype) {
    case DType::f32: return fetch_row(o.inner, static_cast<const float*>(x) + at, buffer);
    case DType::f64: return fetch_row(o.inner, static_cast<const double*>(x) + at, buffer);
    case DType::f16: return fetch_row(o.inner, static_cast<const F16*>(x) + at, buffer);
    default: return fetch_row(o.inner, static_cast<const BF16*>(x) + at, buffer);
  }
}
template <class C>
SDX_INLINE const C* row_of(const Operand& o, const Data& data, int64_t row, C* buffer) {
  return row_at(o, data, place_of(o.outer, o.outer.n, row).in, buffer);
}

// Where n results are computed that go to `y` at `at`: there itself, or in `buffer`.
template <class C>
SDX_INLINE C* place_row(DType dtype, void* y, int64_t at, C* buffer) {
  return dtype == kDType<C> ? static_cast<C*>(y) + at : buffer;
}
template <class C>
SDX_INLINE void put_row(DType dtype, void* y, int64_t at, const C* numbers, int64_t n) {
  switch (dtype) {
    case DType::f32: return put(static_cast<float*>(y) + at, numbers, n);
    case DType::f64: return put(static_cast<double*>(y) + at, numbers, n);
    case DType::f16: return put(static_cast<F16*>(y) + at, numbers, n);
    default: return put(static_cast<BF16*>(y) + at, numbers, n);
  }
}

SDX_INLINE Operand operand(const Call& call, int slot, int axis) {
  Operand made;
  if (slot >= call.n_in || !call.in[slot].is_given()) return made;
  const View &x = call.in[0], &v = call.in[slot];
  made.slot = slot;
  made.dtype = v.dtype;
  for (int i = 0; i < x.rank; ++i) {
    const int at = i - (x.rank - v.rank);
    const bool repeats = at < 0 || v.dims[at] == 1;
    (i < axis ? made.outer : made.inner).add(x.dims[i], repeats ? 0 : v.strides[at], 0);
  }
  made.outer.merge(), made.inner.merge();
  return made;
}

}  // namespace sdx::SDX_ISA
