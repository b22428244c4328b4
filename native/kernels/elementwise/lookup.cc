// Dispatch from (op, type) to the loop of an instruction.
#include "kernels/elementwise/instruction.h"

namespace sdx::SDX_ISA {
namespace {

// Selects by a bool; only the size of the elements matters.
template <class T>
bool where(const LoopArgs& s) {
  const uint8_t* c = static_cast<const uint8_t*>(s.in[0]);
  const T* a = static_cast<const T*>(s.in[1]);
  const T* b = static_cast<const T*>(s.in[2]);
  T* out = static_cast<T*>(s.out);
  const int64_t sc = s.stride[0], sa = s.stride[1], sb = s.stride[2];
  vloop<T>(s.n, [&](int64_t i, auto k) {
    const auto mask = mask_of<T>(load_bools<T>(c + i * sc, k));
    store(out + i, mask ? load(a + i * sa, k) : load(b + i * sb, k), k);
  });
  return true;
}

LoopFn find_where(DType type) {
  switch (size_of(type)) {
    case 1: return where<uint8_t>;
    case 2: return where<uint16_t>;
    case 4: return where<uint32_t>;
    default: return where<uint64_t>;
  }
}

}  // namespace

// Vectorized loops come first; scalar.cc is the fallback for rare functions.
LoopFn find_loop(ChainOp op, DType type, DType to) {
  if (op == ChainOp::where) return find_where(type);
  if (op == ChainOp::cast || op == ChainOp::round_odd) return find_cast_loop(op, type, to);
  if (op == ChainOp::quantize) return find_quantize_loop(op, to);
  if (op == ChainOp::dequantize) return find_quantize_loop(op, type);
  if (type != DType::f32 && type != DType::f64)
    return size_of(type) < 4 ? find_narrow_loop(op, type) : find_wide_loop(op, type);
  LoopFn run = find_arithmetic_loop(op, type);
  if (run == nullptr) run = type == DType::f32 ? find_math_loop(op) : find_double_math_loop(op);
  return run != nullptr ? run : find_scalar_loop(op, type);
}

}  // namespace sdx::SDX_ISA
