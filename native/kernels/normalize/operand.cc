// Fetching and storing rows of any type; instantiated once here and not in every normalization.
#include "kernels/normalize/operand.h"

namespace sdx::SDX_ISA {
namespace {

template <class C, class T>
const C* fetch_from(const Axes& inner, const T* x, C* buffer) {
  const int64_t n = inner.last_size(), runs = inner.count(inner.n - 1);
  if (inner.n < 2) return read_elements<C>(x, inner.last_stride(), n, buffer);
  for (int64_t i = 0; i < runs; ++i) {
    const T* p = x + offsets_of(inner, inner.n - 1, i).in;
    for (int64_t j = 0; j < n; ++j) buffer[i * n + j] = number<C>(p[j * inner.last_stride()]);
  }
  return buffer;
}

}  // namespace

// Axes align at the last one, as in numpy's broadcasting.
Operand operand(const Call& call, int number, int axis) {
  Operand result;
  if (number >= call.n_in || !call.in[number].is_given()) return result;
  const View &x = call.in[0], &v = call.in[number];
  result.number = number;
  result.dtype = v.dtype;
  for (int i = 0; i < x.rank; ++i) {
    const int at = i - (x.rank - v.rank);
    const bool repeats = at < 0 || v.dims[at] == 1;
    (i < axis ? result.outer : result.inner).add(x.dims[i], repeats ? 0 : v.strides[at], 0);
  }
  result.outer.merge(), result.inner.merge();
  return result;
}

template <class C>
const C* fetch_row(const Operand& o, const void* x, int64_t at, C* buffer) {
  switch (o.dtype) {
    case DType::f32: return fetch_from(o.inner, static_cast<const float*>(x) + at, buffer);
    case DType::f64: return fetch_from(o.inner, static_cast<const double*>(x) + at, buffer);
    case DType::f16: return fetch_from(o.inner, static_cast<const F16*>(x) + at, buffer);
    default: return fetch_from(o.inner, static_cast<const BF16*>(x) + at, buffer);
  }
}

template <class C>
void convert_row(DType dtype, void* y, int64_t at, const C* numbers, int64_t n) {
  switch (dtype) {
    case DType::f32: return write_elements(static_cast<float*>(y) + at, numbers, n);
    case DType::f64: return write_elements(static_cast<double*>(y) + at, numbers, n);
    case DType::f16: return write_elements(static_cast<F16*>(y) + at, numbers, n);
    default: return write_elements(static_cast<BF16*>(y) + at, numbers, n);
  }
}

template const float* fetch_row(const Operand&, const void*, int64_t, float*);
template const double* fetch_row(const Operand&, const void*, int64_t, double*);
template void convert_row(DType, void*, int64_t, const float*, int64_t);
template void convert_row(DType, void*, int64_t, const double*, int64_t);

}  // namespace sdx::SDX_ISA
