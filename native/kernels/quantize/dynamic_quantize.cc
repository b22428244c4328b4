// DynamicQuantizeLinear to uint8 in two phases: the range of each chunk of x, extended to include
// 0; then scale = (max - min) / 255 of all ranges, and the codes.
#include "kernels/quantize/kernels.h"
#include "simd/quantized.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kChunkElements = 8192;  // of an item: 32 KiB, the size of L1

struct DynamicArgs {
  int64_t n, n_chunks;
};

struct Range {
  float low, high;
};

// Minimum and maximum without NaN handling, and separately a NaN if one occurred: cheaper than
// minimum and maximum that propagate NaN.
struct RangeVectors {
  f32v low, high, nan;
};

SDX_INLINE RangeVectors widened(const RangeVectors& e, f32v low, f32v high, f32v nan) {
  return {at_most(e.low, low), at_least(e.high, high), nan != nan ? nan : e.nan};
}

// Phase 1: the range of each chunk, extended to include 0. NaN propagates, as in the reference.
Status chunk_ranges(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const DynamicArgs*>(args);
  auto* ranges = reinterpret_cast<Range*>(data.scratch);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const float* x = input<float>(data, 0) + chunk * kChunkElements;
    const int64_t left = a.n - chunk * kChunkElements;
    const RangeVectors ends = accumulate(
        x, left < kChunkElements ? left : kChunkElements, RangeVectors{}, 0.0f,
        [](const RangeVectors& e, f32v v) { return widened(e, v, v, v); },
        [](const RangeVectors& e, const RangeVectors& f) {
          return widened(e, f.low, f.high, f.nan);
        });
    const float nan = reduce_max(ends.nan);
    ranges[chunk] = {-reduce_max(-ends.low), reduce_max(ends.high)};
    if (nan != nan) ranges[chunk] = {nan, nan};
  }
  return {};
}

struct Quantization {
  float scale, zero;
};

// Scale and zero point from the ranges of all chunks. Every item of phase 2 computes them itself,
// which is cheaper than a phase of its own.
Quantization quantization_of(const Range* ranges, int64_t n) {
  float low = 0, high = 0;
  for (int64_t i = 0; i < n; ++i) {
    low = ranges[i].low >= low || low != low ? low : ranges[i].low;
    high = ranges[i].high <= high || high != high ? high : ranges[i].high;
  }
  const float scale = high == low ? 1.0f : (high - low) / 255.0f;
  const f32v zero = round_small(clamp(splat(-low / scale), splat(0.0f), splat(255.0f)));
  return {scale, zero[0]};
}

void quantize_chunk(const float* x, int64_t n, const Quantization& s, uint8_t* y) {
  if (has_inverse(s.scale))
    return quantize_run(
        n, s.scale, s.zero,
        [&](int64_t i, auto lanes) {
          __builtin_prefetch(reinterpret_cast<const char*>(x + i) + kPrefetchAhead);
          return load(x + i, lanes);
        },
        y);
  const f32v scale = splat(s.scale), zero = splat(s.zero);
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v clamped = clamp(load(x + i, lanes) / scale, -zero, 255.0f - zero);
    store_i32(y + i, __builtin_convertvector(round_small(clamped) + zero, i32v), lanes);
  });
}

// From the last chunk to the first: the last that phase 1 read are still in the cache.
Status quantize_chunks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const DynamicArgs*>(args);
  const Quantization s = quantization_of(reinterpret_cast<const Range*>(data.scratch), a.n_chunks);
  for (int64_t chunk = end - 1; chunk >= begin; --chunk) {
    if (chunk == 0) {
      *output<float>(data, 1) = s.scale;
      *output<uint8_t>(data, 2) = uint8_t(s.zero);
    }
    const int64_t left = a.n - chunk * kChunkElements;
    quantize_chunk(input<float>(data, 0) + chunk * kChunkElements,
                   left < kChunkElements ? left : kChunkElements, s,
                   output<uint8_t>(data) + chunk * kChunkElements);
  }
  return {};
}

}  // namespace

Status dynamic_quantize(const Call& call, Plan& plan) {
  auto* args = plan.make<DynamicArgs>();
  args->n = call.in[0].count();
  args->n_chunks = args->n == 0 ? 1 : (args->n + kChunkElements - 1) / kChunkElements;
  plan.scratch_bytes = args->n_chunks * int64_t(sizeof(Range));
  plan.args = args;
  plan.add(chunk_ranges, args->n_chunks, kChunkElements / 16);
  plan.add(quantize_chunks, args->n_chunks, kChunkElements / 8);
  return {};
}

}  // namespace sdx::SDX_ISA
