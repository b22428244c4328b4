// The conversions of elements.h for every pair of element and arithmetic type that reductions use.
#include "kernels/reduce/elements.h"

#include <limits>

#include "kernels/elements.h"

namespace sdx::SDX_ISA {
namespace {

template <class C, class T>
void fetch_numbers(const void* x, int64_t stride, int64_t n, void* numbers) {
  C* to = static_cast<C*>(numbers);
  const C* result = read_elements<C>(static_cast<const T*>(x), stride, n, to);
  if (result != to) memcpy(to, result, size_t(n) * sizeof(C));
}

// Saturates to T; a bool is whether x is positive.
template <class T>
SDX_INLINE T saturated(int64_t x) {
  if constexpr (std::is_same_v<T, Bool>) {
    return {uint8_t(x > 0)};
  } else if constexpr (sizeof(T) < sizeof(int64_t)) {
    constexpr int64_t low = std::numeric_limits<T>::lowest(), high = std::numeric_limits<T>::max();
    return T(x < low ? low : x > high ? high : x);
  } else {
    return T(x);
  }
}

template <class W, class T>
void put_results(void* y, int64_t stride, int64_t n, const void* results) {
  const W* from = static_cast<const W*>(results);
  for (int64_t i = 0; i < n; ++i) {
    T& to = static_cast<T*>(y)[i * stride];
    if constexpr (std::is_same_v<W, int64_t>)
      to = saturated<T>(from[i]);
    else
      to = element<T>(from[i]);
  }
}

// Element types by arithmetic type.
template <class C>
using TypesOf = std::conditional_t<
    std::is_same_v<C, float>, Types<float, F16, BF16>,
    std::conditional_t<
        std::is_same_v<C, double>,
        Types<float, double, F16, BF16, int32_t, int64_t, uint32_t, uint64_t>,
        std::conditional_t<
            std::is_same_v<C, int64_t>,
            Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, Bool>,
            std::conditional_t<std::is_same_v<C, int32_t>, Types<int32_t>,
                               Types<int32_t, uint32_t, int64_t, uint64_t>>>>>;

}  // namespace

template <class C, class W>
Elements elements_of(DType dtype) {
  Elements result;
  (void)visit(dtype, TypesOf<C>{}, [&]<class T>() {
    result = {fetch_numbers<C, T>, put_results<W, T>, int64_t(sizeof(T)), kReadsInPlace<T, C>};
    return Status{};
  });
  return result;
}

template Elements elements_of<float, float>(DType dtype);
template Elements elements_of<float, double>(DType dtype);
template Elements elements_of<double, double>(DType dtype);
template Elements elements_of<int32_t, int32_t>(DType dtype);
template Elements elements_of<int64_t, int64_t>(DType dtype);
template Elements elements_of<uint64_t, uint64_t>(DType dtype);

}  // namespace sdx::SDX_ISA
