// Conversion of elements of any type into the few types that reductions compute in. It is called
// through function pointers, so that reductions are compiled once per arithmetic type and not once
// per element type.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "base/inline.h"

namespace sdx::SDX_ISA {

struct Elements {
  // Converts n elements at a stride into contiguous numbers.
  void (*fetch)(const void* x, int64_t stride, int64_t n, void* numbers) = nullptr;
  // Converts n results into elements at a stride; integers saturate.
  void (*put)(void* y, int64_t stride, int64_t n, const void* results) = nullptr;
  int64_t bytes = 0;
  bool is_plain = false;  // elements have the arithmetic type: no conversion

  SDX_INLINE bool is_known() const { return fetch != nullptr; }
};

// For arithmetic type C (float, double, int32_t, int64_t, uint64_t) and results of type W. uint64_t
// stands for the low bits of any integer, of which a result keeps as many as the element type has.
template <class C, class W>
Elements elements_of(DType dtype);

// n elements as numbers: in place, or converted into `buffer`.
template <class C>
SDX_INLINE const C* numbers(const Elements& e, const std::byte* x, int64_t stride, int64_t n,
                            C* buffer) {
  if (e.is_plain && stride == 1) return reinterpret_cast<const C*>(x);
  e.fetch(x, stride, n, buffer);
  return buffer;
}

// Stores n results as elements from `at` on.
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
