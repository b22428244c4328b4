// The two orders of min and max reductions, for ReduceMax/ReduceMin and ArgMax/ArgMin. kWorst is
// the identity; `better` propagates NaN, `is_better` is the plain comparison.
#pragma once

#include <limits>
#include <type_traits>

#include "simd/vec.h"

namespace sdx::SDX_ISA {

struct Largest {
  template <class C>
  static constexpr C kWorst = std::is_floating_point_v<C> ? -std::numeric_limits<C>::infinity()
                                                          : std::numeric_limits<C>::lowest();
  template <class V>
  static SDX_INLINE V better(V a, V b) {
    return vmax(a, b);
  }
  template <class C>
  static SDX_INLINE auto is_better(C a, C b) {
    return a > b;
  }
};

struct Smallest {
  template <class C>
  static constexpr C kWorst = std::is_floating_point_v<C> ? std::numeric_limits<C>::infinity()
                                                          : std::numeric_limits<C>::max();
  template <class V>
  static SDX_INLINE V better(V a, V b) {
    return vmin(a, b);
  }
  template <class C>
  static SDX_INLINE auto is_better(C a, C b) {
    return a < b;
  }
};

}  // namespace sdx::SDX_ISA
