// QuantizeLinear: saturate(round_half_even(x / scale) + zero_point).
#include "kernels/quantize/codes.h"
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/scale_layout.h"
#include "simd/quantized.h"

namespace sdx::SDX_ISA {
namespace {

// n elements with one scale.
template <class X, class Code>
SDX_INLINE void quantize_elements(const X* x, int64_t n, float scale, f32v zero,
                                  typename Code::Stored* y) {
  const auto load_at = [&](int64_t i, auto lanes) {
    __builtin_prefetch(reinterpret_cast<const char*>(x + i) + kPrefetchAhead);
    return load_float(x + i, lanes);
  };
  if constexpr (Code::kIsWhole)
    if (has_inverse(scale)) return quantize_run(n, scale, zero[0], load_at, y);
  vloop(n, [&](int64_t i, auto lanes) {
    store_i32(y + i, Code::encode(load_at(i, lanes) / splat(scale), zero), lanes);
  });
}

// One chunk of a row: with one scale for all elements, one per block, or one per element.
template <class X, class Code>
void quantize_chunk(const ScaleLayout& r, const Data& data, const RowChunk& p) {
  using Q = typename Code::Stored;
  const X* x = input<X>(data, 0) + p.begin;
  Q* y = output<Q>(data) + p.begin;
  const Q* zeros = r.has_zero ? input<Q>(data, 2) + p.scale : nullptr;
  float scales[kChunk];
  if (!has_scale_per_element(r.kind)) {
    const int64_t n = run_length(r, p);
    read_scales(data.in[1], r.scale, p.scale, (p.n + n - 1) / n, scales);
    for (int64_t i = 0; i * n < p.n; ++i)
      quantize_elements<X, Code>(x + i * n, p.n - i * n < n ? p.n - i * n : n, scales[i],
                                 zeros ? Code::decode(splat(int32_t(zeros[i]))) : f32v{},
                                 y + i * n);
    return;
  }
  read_scales(data.in[1], r.scale, p.scale, p.n, scales);
  vloop(p.n, [&](int64_t i, auto lanes) {
    const f32v zero = zeros ? load_codes<Code>(zeros + i, lanes) : f32v{};
    const f32v values = load_float(x + i, lanes), scale = load(scales + i, lanes, 1.0f);
    store_i32(y + i, Code::encode(values / scale, zero), lanes);
  });
}

template <class X, class Code>
Status quantize_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const ScaleLayout& r = *static_cast<const ScaleLayout*>(args);
  for (int64_t item = begin; item < end; ++item)
    quantize_chunk<X, Code>(r, data, chunk_of(r, item));
  return {};
}

template <class X>
PhaseFn quantize_to(DType y) {
  return by_code(y, []<class Code>() -> PhaseFn {
    if constexpr (sizeof(typename Code::Stored) > 2)  // int32 is only dequantized
      return nullptr;
    else
      return quantize_items<X, Code>;
  });
}

}  // namespace

Status quantize(const Call& call, Plan& plan) {
  const ScaleLayout* r = scale_layout(call, plan);
  const PhaseFn run = r->x == DType::f32   ? quantize_to<float>(r->y)
                      : r->x == DType::f16 ? quantize_to<F16>(r->y)
                                           : quantize_to<BF16>(r->y);
  plan.add(run, r->n_rows * r->n_chunks, (r->n < r->chunk ? r->n : r->chunk) / 8);
  return {};
}

}  // namespace sdx::SDX_ISA
