// Loops element by element through the C library: those that are rare in f32 or f64.
#include "kernels/elementwise/instruction.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA {
namespace {

template <class T, auto f>
bool each1(const LoopArgs& s) {
  const T* a = static_cast<const T*>(s.in[0]);
  T* out = static_cast<T*>(s.out);
  const T p = T(s.p[0]), q = T(s.p[1]);
  for (int64_t i = 0; i < s.n; ++i) out[i] = T(f(a[i * s.stride[0]], p, q));
  return true;
}

template <class T, auto f>
bool each2(const LoopArgs& s) {
  const T* a = static_cast<const T*>(s.in[0]);
  const T* b = static_cast<const T*>(s.in[1]);
  T* out = static_cast<T*>(s.out);
  for (int64_t i = 0; i < s.n; ++i) out[i] = T(f(a[i * s.stride[0]], b[i * s.stride[1]]));
  return true;
}

// Mod with fmod = 0: the remainder has the sign of the divisor; NaN for a divisor of 0.
SDX_INLINE double floor_mod(double a, double b) {
  const double rest = __builtin_fmod(a, b);
  if (rest == 0) return __builtin_copysign(0.0, b);
  return (b < 0) != (rest < 0) ? rest + b : rest;  // NaN stays NaN
}

SDX_INLINE double softplus(double x) {
  return (x > 0 ? x : x * 0) + __builtin_log1p(__builtin_exp(-__builtin_fabs(x)));
}
SDX_INLINE double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x; }

// The C library, for exponents without a special case.
template <class T>
SDX_INLINE T power(T a, T b) {
  if constexpr (sizeof(T) == 4) return __builtin_powf(a, b);
  return T(__builtin_pow(a, b));
}

// Pow with a scalar exponent of +-0.5 is a square root, much cheaper than pow; -inf and -0
// follow pow's rules.
template <class T>
bool pow(const LoopArgs& s) {
  const T* a = static_cast<const T*>(s.in[0]);
  const T* b = static_cast<const T*>(s.in[1]);
  T* out = static_cast<T*>(s.out);
  const bool is_root = s.stride[1] == 0 && (b[0] == T(0.5) || b[0] == T(-0.5));
  if (!is_root) return each2<T, [](T x, T y) { return power(x, y); }>(s);
  const bool is_inverse = b[0] < 0;
  for (int64_t i = 0; i < s.n; ++i) {
    const T x = a[i * s.stride[0]];
    const T root = x == -T(__builtin_inf()) ? -x : T(__builtin_sqrt(double(x))) + T(0);
    out[i] = is_inverse ? 1 / root : root;
  }
  return true;
}

template <class T>
struct Rare {
  static constexpr Loop kLoops[] = {
      {ChainOp::fmod, each2<T, [](T a, T b) { return __builtin_fmod(a, b); }>},
      {ChainOp::mod, each2<T, [](T a, T b) { return floor_mod(a, b); }>},
      {ChainOp::pow, pow<T>},
  };
};

using D = double;
constexpr Loop kDouble[] = {
    {ChainOp::sinh, each1<D, [](D x, D, D) { return __builtin_sinh(x); }>},
    {ChainOp::cosh, each1<D, [](D x, D, D) { return __builtin_cosh(x); }>},
    {ChainOp::asinh, each1<D, [](D x, D, D) { return __builtin_asinh(x); }>},
    {ChainOp::acosh, each1<D, [](D x, D, D) { return __builtin_acosh(x); }>},
    {ChainOp::atanh, each1<D, [](D x, D, D) { return __builtin_atanh(x); }>},
    {ChainOp::ceil, each1<D, [](D x, D, D) { return __builtin_ceil(x); }>},
    {ChainOp::floor, each1<D, [](D x, D, D) { return __builtin_floor(x); }>},
    {ChainOp::sign, each1<D, [](D x, D, D) { return sign(x); }>},
    {ChainOp::sqrt, each1<D, [](D x, D, D) { return __builtin_sqrt(x); }>},
    {ChainOp::tan, each1<D, [](D x, D, D) { return __builtin_tan(x); }>},
    {ChainOp::asin, each1<D, [](D x, D, D) { return __builtin_asin(x); }>},
    {ChainOp::acos, each1<D, [](D x, D, D) { return __builtin_acos(x); }>},
    {ChainOp::atan, each1<D, [](D x, D, D) { return __builtin_atan(x); }>},
    {ChainOp::erf, each1<D, [](D x, D, D) { return __builtin_erf(x); }>},
    {ChainOp::softplus, each1<D, [](D x, D, D) { return softplus(x); }>},
    {ChainOp::mish, each1<D, [](D x, D, D) { return x * __builtin_tanh(softplus(x)); }>},
    {ChainOp::gelu,
     each1<D, [](D x, D, D) { return 0.5 * x * (1 + __builtin_erf(x * 0.7071067811865476)); }>},
};

}  // namespace

LoopFn find_scalar_loop(ChainOp op, DType type) {
  if (type == DType::f32) return find_in(Rare<float>::kLoops, op);
  const LoopFn found = find_in(kDouble, op);
  return found != nullptr ? found : find_in(Rare<double>::kLoops, op);
}

}  // namespace sdx::SDX_ISA
