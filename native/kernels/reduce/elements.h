// Elements of any type as numbers of the few types that reductions compute in: code for a type of
// elements stays outside of the reductions, which are compiled once for a type of numbers.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "base/inline.h"

namespace sdx::SDX_ISA {

struct Elements {
  // n elements at a stride, as numbers in a row.
  void (*fetch)(const void* x, int64_t stride, int64_t n, void* numbers) = nullptr;
  // n results as elements at a stride; integers that do not fit become the nearest that does.
  void (*put)(void* y, int64_t stride, int64_t n, const void* results) = nullptr;
  int64_t bytes = 0;
  bool is_plain = false;  // elements are numbers as they are

  SDX_INLINE bool is_known() const { return fetch != nullptr; }
};

// For numbers of type C (float, double, int64_t, uint64_t) and results of type W. An unsigned
// number stands for the low bits of any integer, and its result for those that the element has.
template <class C, class W>
Elements elements_of(DType dtype);

// The numbers of n elements: where they lie, or in `buffer`.
template <class C>
SDX_INLINE const C* numbers(const Elements& e, const std::byte* x, int64_t stride, int64_t n,
                            C* buffer) {
  if (e.is_plain && stride == 1) return reinterpret_cast<const C*>(x);
  e.fetch(x, stride, n, buffer);
  return buffer;
}

// n results as elements from `at` on.
template <class C, class W>
SDX_INLINE void put(const Elements& e, void* y, int64_t at, int64_t stride, int64_t n,
                    const W* results) {
  C* to = static_cast<C*>(y) + at;
  if (!e.is_plain)
    e.put(static_cast<std::byte*>(y) + at * e.bytes, stride, n, results);
  else if (stride == 1)
    for (int64_t i = 0; i < n; ++i) to[i] = C(results[i]);
  else
    for (int64_t i = 0; i < n; ++i) to[i * stride] = C(results[i]);
}

}  // namespace sdx::SDX_ISA
