// Tensors whose element type does not matter: only the size of an element does. Moving data is
// compiled once per element size (1, 2, 4, 8 or 16 bytes), not once per type.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

using Bytes16 = unsigned __int128;

// T at any address: views may start in the middle of a vector, and bytes of one type are read as
// another, so both the alignment and the strict-aliasing assumption are switched off.
template <class T>
struct UnalignedOf {
  typedef T type __attribute__((aligned(1), may_alias));
};
template <class T>
using Unaligned = typename UnalignedOf<T>::type;

// Calls f<T>() with the unsigned type of this many bytes.
template <class F>
SDX_INLINE auto visit_element_size(int64_t size, F&& f) {
  switch (size) {
    case 1: return f.template operator()<uint8_t>();
    case 2: return f.template operator()<uint16_t>();
    case 4: return f.template operator()<uint32_t>();
    case 8: return f.template operator()<uint64_t>();
    default: return f.template operator()<Bytes16>();
  }
}

SDX_INLINE bool is_given(const Call& call, int operand) {
  return operand < call.n_in && call.in[operand].is_given();
}

// Refuses an output of more than 2^47 bytes, the user address space of x86-64: its dims come from
// data, and products of them would overflow. In double, which cannot overflow here.
SDX_INLINE Status check_addressable(const View& out) {
  double bytes = double(size_of(out.dtype));
  for (int i = 0; i < out.rank; ++i) bytes *= double(out.dims[i]);
  if (bytes > double(int64_t(1) << 47))
    return Status::fail("an output of %g bytes is too large", bytes);
  return {};
}

}  // namespace sdx::SDX_ISA
