// QuantizeLinear to integers of 8 or 16 bits and DequantizeLinear as chain instructions. They round
// as kernels/quantize does.
#include "kernels/elementwise/instruction.h"
#include "simd/quantized.h"

namespace sdx::SDX_ISA {
namespace {

// round(x / scale) saturated to the type, plus the zero point. The bounds are shifted by the zero
// point instead of the value, so that rounding happens where floats represent all integers.
template <class Q>
bool quantize(const LoopArgs& s) {
  const float* x = static_cast<const float*>(s.in[0]);
  const float scale = *static_cast<const float*>(s.in[1]);
  const float zero = s.p[0] != 0 ? *static_cast<const float*>(s.in[2]) : 0.0f;
  Q* out = static_cast<Q*>(s.out);
  const int64_t x_stride = s.stride[0];
  const auto load_at = [&](int64_t i, auto lanes) { return load(x + i * x_stride, lanes); };
  if (has_inverse(scale)) {
    quantize_run(s.n, scale, zero, load_at, out);
    return true;
  }
  const f32v low = splat(kLowestCode<Q> - zero), high = splat(kHighestCode<Q> - zero);
  vloop(s.n, [&](int64_t i, auto lanes) {
    const f32v clamped = clamp(load_at(i, lanes) / splat(scale), low, high);
    store_i32(out + i, round_bits(clamped) + splat(int32_t(zero)), lanes);
  });
  return true;
}

template <class Q>
bool dequantize(const LoopArgs& s) {
  const f32v scale = splat(*static_cast<const float*>(s.in[0]));
  const f32v zero = s.p[0] != 0 ? splat(*static_cast<const float*>(s.in[1])) : f32v{};
  const Q* q = static_cast<const Q*>(s.in[2]);
  float* out = static_cast<float*>(s.out);
  const int64_t x_stride = s.stride[2];
  vloop(s.n, [&](int64_t i, auto lanes) {
    store(out + i, (load_int_as_float(q + i * x_stride, lanes) - zero) * scale, lanes);
  });
  return true;
}

}  // namespace

LoopFn find_quantize_loop(ChainOp op, DType quantized) {
  const bool is_to = op == ChainOp::quantize;
  switch (quantized) {
    case DType::u8: return is_to ? quantize<uint8_t> : dequantize<uint8_t>;
    case DType::i8: return is_to ? quantize<int8_t> : dequantize<int8_t>;
    case DType::u16: return is_to ? quantize<uint16_t> : dequantize<uint16_t>;
    case DType::i16: return is_to ? quantize<int16_t> : dequantize<int16_t>;
    default: return nullptr;
  }
}

}  // namespace sdx::SDX_ISA
