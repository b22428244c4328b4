// Rows of operands of any element type and strides, broadcast to the shape of the first operand.
#pragma once

#include "kernels/axes.h"
#include "kernels/elements.h"

namespace sdx::SDX_ISA {

// A tensor as rows over the axes from some axis on, broadcast (by strides of 0) to another's shape.
struct Operand {
  int number = -1;  // -1: not given
  DType dtype = DType::none;
  Axes outer, inner;
  SDX_INLINE bool is_given() const { return number >= 0; }
};

// Operand `number` of a call as rows over the axes from `axis` on, in the shape of the first
// operand.
Operand operand(const Call& call, int number, int axis);

// The conversions, out of line: a row of another type or with gaps into `buffer`, and numbers into
// elements of another type from `at` on.
template <class C>
const C* fetch_row(const Operand& o, const void* x, int64_t at, C* buffer);
template <class C>
void convert_row(DType dtype, void* y, int64_t at, const C* numbers, int64_t n);

// A row as contiguous numbers of type C: the operand's own memory if it has that form already.
template <class C>
SDX_INLINE const C* row_of(const Operand& o, const Data& data, int64_t row, C* buffer) {
  const int64_t at = offsets_of(o.outer, o.outer.n, row).in;
  const bool is_plain = o.dtype == kDType<C> && o.inner.n < 2 && o.inner.last_stride() == 1;
  if (is_plain) return input<C>(data, o.number) + at;
  return fetch_row(o, data.in[o.number], at, buffer);
}

// Where to compute a row of results: in the output itself, or in `buffer` if put_row must convert.
template <class C>
SDX_INLINE C* place_row(DType dtype, void* y, int64_t at, C* buffer) {
  return dtype == kDType<C> ? static_cast<C*>(y) + at : buffer;
}
template <class C>
SDX_INLINE void put_row(DType dtype, void* y, int64_t at, const C* numbers, int64_t n) {
  if (dtype != kDType<C>) convert_row(dtype, y, at, numbers, n);
}

}  // namespace sdx::SDX_ISA
