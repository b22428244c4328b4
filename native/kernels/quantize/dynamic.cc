// DynamicQuantizeLinear: the range of x, widened to hold 0, in 255 steps.
#include "kernels/quantize/list.h"
#include "simd/fold.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kPart = 8192;  // elements of an item

struct DynamicArgs {
  int64_t n, n_parts;
};

struct Range {
  float low, high;
};

struct Ends {
  f32v low, high;
};

// The ends of each part's range, 0 within; NaN stays, as in the reference.
Status find_ranges(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const DynamicArgs*>(args);
  auto* ranges = reinterpret_cast<Range*>(data.scratch);
  for (int64_t part = begin; part < end; ++part) {
    const float* x = input<float>(data, 0) + part * kPart;
    const int64_t left = a.n - part * kPart;
    const Ends ends = run(
        x, left < kPart ? left : kPart, Ends{}, 0.0f,
        [](const Ends& e, f32v v) { return Ends{vmin(e.low, v), vmax(e.high, v)}; },
        [](const Ends& e, const Ends& f) { return Ends{vmin(e.low, f.low), vmax(e.high, f.high)}; });
    ranges[part] = {-reduce_max(-ends.low), reduce_max(ends.high)};
  }
  return {};
}

struct Steps {
  float scale, zero;
};

Steps steps_of(const Range* ranges, int64_t n) {
  float low = 0, high = 0;
  for (int64_t i = 0; i < n; ++i) {
    low = ranges[i].low >= low || low != low ? low : ranges[i].low;
    high = ranges[i].high <= high || high != high ? high : ranges[i].high;
  }
  const float scale = high == low ? 1.0f : (high - low) / 255.0f;
  const f32v zero = round_small(clamp(splat(-low / scale), splat(0.0f), splat(255.0f)));
  return {scale, zero[0]};
}

// x / scale, by a reciprocal and one correction where that gives the same float: the rest of the
// first quotient is exact, and neither it nor the quotient leaves the normal numbers that matter.
template <bool has_inverse>
SDX_INLINE f32v quotient(f32v x, f32v scale, f32v inverse) {
  if constexpr (!has_inverse) return x / scale;
  const f32v near = x * inverse;
  return near + (x - near * scale) * inverse;
}

#if defined(__FMA__)
constexpr bool kHasExactRest = true;
#else
constexpr bool kHasExactRest = false;
#endif

template <bool has_inverse>
void quantize_part(const float* x, int64_t n, const Steps& s, uint8_t* y) {
  const f32v scale = splat(s.scale), inverse = splat(1.0f / s.scale), zero = splat(s.zero);
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v steps = quotient<has_inverse>(load(x + i, lanes), scale, inverse);
    const f32v held = clamp(steps, -zero, 255.0f - zero);
    store_i32(y + i, __builtin_convertvector(round_small(held) + zero, i32v), lanes);
  });
}

Status quantize_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const DynamicArgs*>(args);
  const Steps s = steps_of(reinterpret_cast<const Range*>(data.scratch), a.n_parts);
  const bool has_inverse = kHasExactRest && s.scale > 0x1p-60f && s.scale < 0x1p60f;
  for (int64_t part = begin; part < end; ++part) {
    if (part == 0) {
      *output<float>(data, 1) = s.scale;
      *output<uint8_t>(data, 2) = uint8_t(s.zero);
    }
    const float* x = input<float>(data, 0) + part * kPart;
    uint8_t* y = output<uint8_t>(data) + part * kPart;
    const int64_t left = a.n - part * kPart, n = left < kPart ? left : kPart;
    has_inverse ? quantize_part<true>(x, n, s, y) : quantize_part<false>(x, n, s, y);
  }
  return {};
}

}  // namespace

Status dynamic_quantize(const Call& call, Plan& plan) {
  auto* args = plan.make<DynamicArgs>();
  args->n = call.in[0].count();
  args->n_parts = args->n == 0 ? 1 : (args->n + kPart - 1) / kPart;
  plan.scratch_bytes = args->n_parts * int64_t(sizeof(Range));
  plan.args = args;
  plan.add(find_ranges, args->n_parts, kPart / 16);
  plan.add(quantize_parts, args->n_parts, kPart / 4);
  return {};
}

}  // namespace sdx::SDX_ISA
