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

// Operand `slot` of a call as rows of the axes from `axis` on, in the shape of the first operand.
Operand operand(const Call& call, int slot, int axis);

// Rows of another type or with gaps, as numbers in `buffer`; and numbers as elements of another
// type, from `at` on.
template <class C>
const C* fetch_row(const Operand& o, const void* x, int64_t at, C* buffer);
template <class C>
void convert_row(DType dtype, void* y, int64_t at, const C* numbers, int64_t n);

template <class C>
SDX_INLINE const C* row_of(const Operand& o, const Data& data, int64_t row, C* buffer) {
  const int64_t at = place_of(o.outer, o.outer.n, row).in;
  const bool is_plain = o.dtype == kDType<C> && o.inner.n < 2 && o.inner.last_step() == 1;
  if (is_plain) return input<C>(data, o.slot) + at;
  return fetch_row(o, data.in[o.slot], at, buffer);
}

// Where n results are computed that go to `y` at `at`: there itself, or in `buffer`.
template <class C>
SDX_INLINE C* place_row(DType dtype, void* y, int64_t at, C* buffer) {
  return dtype == kDType<C> ? static_cast<C*>(y) + at : buffer;
}
template <class C>
SDX_INLINE void put_row(DType dtype, void* y, int64_t at, const C* numbers, int64_t n) {
  if (dtype != kDType<C>) convert_row(dtype, y, at, numbers, n);
}

}  // namespace sdx::SDX_ISA
