// DequantizeLinear: (x - zero_point) * scale.
#include "kernels/quantize/codes.h"
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/scale_layout.h"

namespace sdx::SDX_ISA {
namespace {

// One chunk of a row: with one scale for all elements, one per block, or one per element.
template <class Code, class Y>
void dequantize_chunk(const ScaleLayout& r, const Data& data, const RowChunk& p) {
  using Q = typename Code::Stored;
  const Q* x = input<Q>(data, 0) + p.begin;
  Y* y = output<Y>(data) + p.begin;
  const Q* zeros = r.has_zero ? input<Q>(data, 2) + p.scale : nullptr;
  float scales[kChunk];
  if (!has_scale_per_element(r.kind)) {
    const int64_t n = run_length(r, p);
    read_scales(data.in[1], r.scale, p.scale, (p.n + n - 1) / n, scales);
    for (int64_t i = 0; i * n < p.n; ++i) {
      const f32v zero = zeros ? Code::decode(splat(int32_t(zeros[i]))) : f32v{};
      vloop(p.n - i * n < n ? p.n - i * n : n, [&](int64_t j, auto lanes) {
        const f32v code = load_codes<Code>(x + i * n + j, lanes);
        store_float(y + i * n + j, (code - zero) * scales[i], lanes);
      });
    }
    return;
  }
  read_scales(data.in[1], r.scale, p.scale, p.n, scales);
  vloop(p.n, [&](int64_t i, auto lanes) {
    const f32v zero = zeros ? load_codes<Code>(zeros + i, lanes) : f32v{};
    store_float(y + i, (load_codes<Code>(x + i, lanes) - zero) * load(scales + i, lanes), lanes);
  });
}

template <class Code, class Y>
Status dequantize_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const ScaleLayout& r = *static_cast<const ScaleLayout*>(args);
  for (int64_t item = begin; item < end; ++item)
    dequantize_chunk<Code, Y>(r, data, chunk_of(r, item));
  return {};
}

template <class Y>
PhaseFn dequantize_from(DType x) {
  return by_code(x, []<class Code>() -> PhaseFn { return dequantize_items<Code, Y>; });
}

}  // namespace

Status dequantize(const Call& call, Plan& plan) {
  const ScaleLayout* r = scale_layout(call, plan);
  const PhaseFn run = r->y == DType::f32   ? dequantize_from<float>(r->x)
                      : r->y == DType::f16 ? dequantize_from<F16>(r->x)
                                           : dequantize_from<BF16>(r->x);
  plan.add(run, r->n_rows * r->n_chunks, (r->n < r->chunk ? r->n : r->chunk) / 8);
  return {};
}

}  // namespace sdx::SDX_ISA
