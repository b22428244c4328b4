// One instruction of a chain as a loop over a tile.
#pragma once

#include "base/dtype.h"
#include "simd/truth.h"

namespace sdx::SDX_ISA {

enum class ChainOp : int {
#define OP(name) name,
#include "kernels/chain/ops.inc"
#undef OP
  count
};

struct StepArgs {
  void* out;
  const void* in[3];
  int64_t stride[3];  // 1: an element for each of the output; 0: a vector of copies of one element
  int64_t n;
  const double* p;
};

// False for a division of integers by zero.
using StepFn = bool (*)(const StepArgs&);

struct StepRow {
  ChainOp op;
  StepFn run;
};

// The loop for an instruction; null where there is none. One function for each file of loops.
StepFn find_step(ChainOp op, DType type, DType to);
StepFn find_arithmetic_step(ChainOp op, DType type);  // of f32 and f64
StepFn find_math_step(ChainOp op);                    // of f32
StepFn find_scalar_step(ChainOp op, DType type);      // of f32 and f64
StepFn find_narrow_step(ChainOp op, DType type);      // of integers up to 16 bits, and bool
StepFn find_wide_step(ChainOp op, DType type);        // of integers from 32 bits on
StepFn find_cast(ChainOp op, DType type, DType to);
StepFn find_quantize(ChainOp op, DType steps);  // scale and zero point are single
StepFn find_int_cast(DType type, DType to);

template <class T, auto f>
bool map1(const StepArgs& s) {
  T* out = static_cast<T*>(s.out);
  const T* a = static_cast<const T*>(s.in[0]);
  const int64_t sa = s.stride[0];
  vloop<T>(s.n, [&](int64_t i, auto k) { store(out + i, f(load(a + i * sa, k)), k); });
  return true;
}

// With parameters.
template <class T, auto f>
bool map1p(const StepArgs& s) {
  T* out = static_cast<T*>(s.out);
  const T* a = static_cast<const T*>(s.in[0]);
  const int64_t sa = s.stride[0];
  const T p = T(s.p[0]), q = T(s.p[1]);
  vloop<T>(s.n, [&](int64_t i, auto k) { store(out + i, f(load(a + i * sa, k), p, q), k); });
  return true;
}

template <class T, auto f>
bool map2(const StepArgs& s) {
  T* out = static_cast<T*>(s.out);
  const T* a = static_cast<const T*>(s.in[0]);
  const T* b = static_cast<const T*>(s.in[1]);
  const int64_t sa = s.stride[0], sb = s.stride[1];
  vloop<T>(s.n, [&](int64_t i, auto k) {
    store(out + i, f(load(a + i * sa, k), load(b + i * sb, k)), k);
  });
  return true;
}

// A truth value for each pair.
template <class T, auto f>
bool compare(const StepArgs& s) {
  uint8_t* out = static_cast<uint8_t*>(s.out);
  const T* a = static_cast<const T*>(s.in[0]);
  const T* b = static_cast<const T*>(s.in[1]);
  const int64_t sa = s.stride[0], sb = s.stride[1];
  vloop<T>(s.n, [&](int64_t i, auto k) {
    const auto mask = f(load(a + i * sa, k), load(b + i * sb, k));
    store(out + i, truths_of<T>(mask), k);
  });
  return true;
}

// A truth value for each element.
template <class T, auto f>
bool test(const StepArgs& s) {
  uint8_t* out = static_cast<uint8_t*>(s.out);
  const T* a = static_cast<const T*>(s.in[0]);
  const int64_t sa = s.stride[0];
  const T p = T(s.p[0]), q = T(s.p[1]);
  vloop<T>(s.n, [&](int64_t i, auto k) {
    const auto mask = f(load(a + i * sa, k), p, q);
    store(out + i, truths_of<T>(mask), k);
  });
  return true;
}

template <int n>
SDX_INLINE StepFn find_in(const StepRow (&rows)[n], ChainOp op) {
  for (const StepRow& row : rows)
    if (row.op == op) return row.run;
  return nullptr;
}

}  // namespace sdx::SDX_ISA
