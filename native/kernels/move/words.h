// Elements by their size, and small integer operands that are read when a step runs.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

using Word16 = unsigned __int128;

// For words at any address, which may be of any type.
template <class T>
struct LooseOf {
  typedef T type __attribute__((aligned(1), may_alias));
};
template <class T>
using Loose = typename LooseOf<T>::type;

// Calls f<T>() with the unsigned type of this many bytes.
template <class F>
SDX_INLINE auto visit_word(int64_t size, F&& f) {
  switch (size) {
    case 1: return f.template operator()<uint8_t>();
    case 2: return f.template operator()<uint16_t>();
    case 4: return f.template operator()<uint32_t>();
    case 8: return f.template operator()<uint64_t>();
    default: return f.template operator()<Word16>();
  }
}

// Integers of 4 or 8 bytes that index or size something.
struct Integers {
  const void* at = nullptr;
  bool is_narrow = false;

  SDX_INLINE Integers() = default;
  SDX_INLINE Integers(const void* data, DType dtype) : at(data), is_narrow(dtype == DType::i32) {}
  SDX_INLINE int64_t operator[](int64_t i) const {
    return is_narrow ? static_cast<const Loose<int32_t>*>(at)[i]
                     : static_cast<const Loose<int64_t>*>(at)[i];
  }
};

SDX_INLINE Integers integers(const Call& call, const Data& data, int slot) {
  return {data.in[slot], call.in[slot].dtype};
}

SDX_INLINE bool is_given(const Call& call, int slot) {
  return slot < call.n_in && call.in[slot].is_given();
}

// Whether dims that data gave can be addressed at all.
SDX_INLINE Status addressable(const View& out) {
  double bytes = double(size_of(out.dtype));
  for (int i = 0; i < out.rank; ++i) bytes *= double(out.dims[i]);
  if (bytes > double(int64_t(1) << 47)) return Status::fail("the output has %g bytes", bytes);
  return {};
}

}  // namespace sdx::SDX_ISA
