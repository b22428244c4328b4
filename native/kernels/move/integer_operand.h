// Small integer operands (indices, sizes, axes) that kernels read when a step runs.
#pragma once

#include "kernels/move/untyped.h"

namespace sdx::SDX_ISA {

// An operand of int32 or int64 elements, read as int64.
struct Integers {
  const void* at = nullptr;
  bool is_narrow = false;

  SDX_INLINE Integers() = default;
  SDX_INLINE Integers(const void* data, DType dtype) : at(data), is_narrow(dtype == DType::i32) {}
  SDX_INLINE int64_t operator[](int64_t i) const {
    return is_narrow ? static_cast<const Unaligned<int32_t>*>(at)[i]
                     : static_cast<const Unaligned<int64_t>*>(at)[i];
  }
};

SDX_INLINE Integers integers(const Call& call, const Data& data, int operand) {
  return {data.in[operand], call.in[operand].dtype};
}

}  // namespace sdx::SDX_ISA
