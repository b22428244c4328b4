// The loops of elementwise instructions: each runs one instruction over a tile.
#pragma once

#include "base/dtype.h"
#include "simd/masks.h"

namespace sdx::SDX_ISA {

// Numbered as in ops.inc; the numbers are written by providers/cpu/elementwise.py.
enum class ChainOp : int {
#define OP(name) name,
#include "kernels/elementwise/ops.inc"
#undef OP
  count
};

struct LoopArgs {
  void* out;
  const void* in[3];
  int64_t stride[3];  // 1: contiguous; 0: a vector of copies of one element
  int64_t n;
  const double* p;
};

// False for an integer division by zero.
using LoopFn = bool (*)(const LoopArgs&);

struct Loop {
  ChainOp op;
  LoopFn run;
};

// The loop of an instruction; null if there is none. Each file of loops has one lookup function.
LoopFn find_loop(ChainOp op, DType type, DType to);
LoopFn find_arithmetic_loop(ChainOp op, DType type);  // of f32 and f64
LoopFn find_math_loop(ChainOp op);                    // of f32
LoopFn find_double_math_loop(ChainOp op);             // of f64
LoopFn find_scalar_loop(ChainOp op, DType type);      // of f32 and f64
LoopFn find_narrow_loop(ChainOp op, DType type);      // of integers up to 16 bits, and bool
LoopFn find_wide_loop(ChainOp op, DType type);        // of integers from 32 bits on
LoopFn find_cast_loop(ChainOp op, DType type, DType to);
LoopFn find_quantize_loop(ChainOp op, DType quantized);  // scale and zero point are scalars
LoopFn find_int_cast_loop(DType type, DType to);

// Loops over a tile. A stride of 0 keeps reading the same vector of copies, so one loop serves
// tensors and scalars.
template <class T, auto f>
bool map1(const LoopArgs& s) {
  T* out = static_cast<T*>(s.out);
  const T* a = static_cast<const T*>(s.in[0]);
  const int64_t sa = s.stride[0];
  vloop<T>(s.n, [&](int64_t i, auto k) { store(out + i, f(load(a + i * sa, k)), k); });
  return true;
}

// With parameters.
template <class T, auto f>
bool map1p(const LoopArgs& s) {
  T* out = static_cast<T*>(s.out);
  const T* a = static_cast<const T*>(s.in[0]);
  const int64_t sa = s.stride[0];
  const T p = T(s.p[0]), q = T(s.p[1]);
  vloop<T>(s.n, [&](int64_t i, auto k) { store(out + i, f(load(a + i * sa, k), p, q), k); });
  return true;
}

template <class T, auto f>
bool map2(const LoopArgs& s) {
  T* out = static_cast<T*>(s.out);
  const T* a = static_cast<const T*>(s.in[0]);
  const T* b = static_cast<const T*>(s.in[1]);
  const int64_t sa = s.stride[0], sb = s.stride[1];
  vloop<T>(s.n, [&](int64_t i, auto k) {
    store(out + i, f(load(a + i * sa, k), load(b + i * sb, k)), k);
  });
  return true;
}

// A bool for each pair of elements.
template <class T, auto f>
bool compare(const LoopArgs& s) {
  uint8_t* out = static_cast<uint8_t*>(s.out);
  const T* a = static_cast<const T*>(s.in[0]);
  const T* b = static_cast<const T*>(s.in[1]);
  const int64_t sa = s.stride[0], sb = s.stride[1];
  vloop<T>(s.n, [&](int64_t i, auto k) {
    const auto mask = f(load(a + i * sa, k), load(b + i * sb, k));
    store(out + i, bools_of<T>(mask), k);
  });
  return true;
}

// A bool for each element.
template <class T, auto f>
bool test(const LoopArgs& s) {
  uint8_t* out = static_cast<uint8_t*>(s.out);
  const T* a = static_cast<const T*>(s.in[0]);
  const int64_t sa = s.stride[0];
  const T p = T(s.p[0]), q = T(s.p[1]);
  vloop<T>(s.n, [&](int64_t i, auto k) {
    const auto mask = f(load(a + i * sa, k), p, q);
    store(out + i, bools_of<T>(mask), k);
  });
  return true;
}

template <int n>
SDX_INLINE LoopFn find_in(const Loop (&loops)[n], ChainOp op) {
  for (const Loop& loop : loops)
    if (loop.op == op) return loop.run;
  return nullptr;
}

}  // namespace sdx::SDX_ISA
