// QLinearAdd, and QLinearGlobalAveragePool of channels-last images: exact 8-bit inputs, one float
// computation per output, and requantization.
#include "kernels/quantize/kernels.h"
#include "simd/bytes.h"
#include "simd/dot.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA::int8 {
namespace {

constexpr int64_t kChunk = 16384;  // elements of an item

struct AddArgs {
  int64_t n;
  DType a, b;
  float low, high;
};

// Scale and zero point of a tensor.
struct Quantization {
  float scale, zero;
};

SDX_INLINE Quantization quantization_of(const Data& data, int slot, DType dtype) {
  const void* zero = data.in[slot + 1];
  const float z = zero == nullptr      ? 0.0f
                  : dtype == DType::u8 ? float(*static_cast<const uint8_t*>(zero))
                                       : float(*static_cast<const int8_t*>(zero));
  return {*input<float>(data, slot), z};
}

template <class Y>
constexpr float kLowest = Y(-1) < Y(0) ? -128.0f : 0.0f;

struct CodeBounds {
  float low, high;
};

// The bounds of the real output (a fused Relu or Clip) and of the type, as codes relative to the
// zero point: clamping to them before rounding also saturates.
template <class Y>
SDX_INLINE CodeBounds bounds_of(const Quantization& y, float low, float high) {
  const f32v least = splat(kLowest<Y>), most = splat(kLowest<Y> + 255);
  const float first = round_small(clamp(splat(low / y.scale + y.zero), least, most))[0];
  const float last = round_small(clamp(splat(high / y.scale + y.zero), least, most))[0];
  return {first - y.zero, last - y.zero};
}

// y = (a - za) * sa / sy + (b - zb) * sb / sy + zy, with the zero points folded into one constant.
template <class A, class B, class Y>
void add_chunk(const AddArgs& args, const Data& data, int64_t from, int64_t n) {
  const Quantization a = quantization_of(data, 1, args.a), b = quantization_of(data, 4, args.b);
  const Quantization y = quantization_of(data, 6, __is_same(Y, uint8_t) ? DType::u8 : DType::i8);
  const CodeBounds bounds = bounds_of<Y>(y, args.low, args.high);
  const f32v a_scale = splat(a.scale / y.scale), b_scale = splat(b.scale / y.scale);
  const f32v shift = -a.zero * a_scale - b.zero * b_scale;
  const i32v zero = splat(int32_t(y.zero));
  const A* left = input<A>(data, 0) + from;
  const B* right = input<B>(data, 3) + from;
  Y* to = output<Y>(data) + from;
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v sum = load_int_as_float(left + i, lanes) * a_scale +
                     (load_int_as_float(right + i, lanes) * b_scale + shift);
    store_i32(to + i, round_bits(clamp(sum, splat(bounds.low), splat(bounds.high))) + zero, lanes);
  });
}

template <class A, class B, class Y>
Status add_chunks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AddArgs*>(args);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t from = i * kChunk;
    add_chunk<A, B, Y>(a, data, from, a.n - from < kChunk ? a.n - from : kChunk);
  }
  return {};
}

template <class A, class B>
PhaseFn add_into(DType y) {
  return y == DType::u8 ? add_chunks<A, B, uint8_t> : add_chunks<A, B, int8_t>;
}
template <class A>
PhaseFn add_of(DType b, DType y) {
  return b == DType::u8 ? add_into<A, uint8_t>(y) : add_into<A, int8_t>(y);
}

struct MeanArgs {
  int64_t pixels, channels;
  DType x;
};

constexpr int64_t kChannels = 256;  // channels of an item: 1 KiB of accumulators

// Sums of n channels of unsigned bytes over all pixels, four of which are interleaved at a time.
SDX_INLINE void sum_pixels(const MeanArgs& a, const uint8_t* from, int64_t n, uint8_t flip,
                           int32_t* totals) {
  vloop<uint8_t>(n, [&](int64_t j, auto lanes) {
    i32v sums[4] = {};
    for (int64_t i = 0; i < a.pixels; i += 4) {
      u8v rows[4] = {};
      for (int64_t l = 0; l < 4 && i + l < a.pixels; ++l)
        rows[l] = load_bytes(from + (i + l) * a.channels + j, lanes) ^ splat(flip);
      i32v fours[4];
      interleave4(rows[0], rows[1], rows[2], rows[3], fours);
      for (int q = 0; q < 4; ++q) sums[q] = dot4(sums[q], fours[q], splat(int32_t(0x01010101)));
    }
    for (int64_t i = 0; i < SDX_VEC_BYTES && j + i < n; ++i)
      totals[j + i] = sums[i % 16 / 4][i / 16 * 4 + i % 4];
  });
}

// Sums are exact in int32 (up to 2^23 pixels); the zero point is subtracted once, n times.
template <class X, class Y>
void mean_channels(const MeanArgs& a, const Data& data, int64_t image, int64_t c, int64_t n) {
  const Quantization x = quantization_of(data, 1, a.x);
  const Quantization y = quantization_of(data, 3, __is_same(Y, uint8_t) ? DType::u8 : DType::i8);
  const CodeBounds bounds = bounds_of<Y>(y, -kInf, kInf);
  const float count = float(a.pixels);
  const f32v scale = splat(x.scale / (count * y.scale)), shift = splat(x.zero * count);
  constexpr uint8_t kFlip = X(-1) < X(0) ? 128 : 0;
  const i32v flipped = splat(int32_t(kFlip * a.pixels));
  int32_t totals[kChannels];
  const uint8_t* from = input<uint8_t>(data, 0) + image * a.pixels * a.channels + c;
  sum_pixels(a, from, n, kFlip, totals);
  Y* to = output<Y>(data) + image * a.channels + c;
  vloop(n, [&](int64_t j, auto lanes) {
    const f32v total = __builtin_convertvector(load(totals + j, lanes) - flipped, f32v);
    const f32v steps = (total - shift) * scale;
    const f32v clamped = clamp(steps, splat(bounds.low), splat(bounds.high));
    store_i32(to + j, round_bits(clamped) + splat(int32_t(y.zero)), lanes);
  });
}

template <class X, class Y>
Status mean_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const MeanArgs*>(args);
  const int64_t blocks = (a.channels + kChannels - 1) / kChannels;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t c = i % blocks * kChannels, left = a.channels - c;
    mean_channels<X, Y>(a, data, i / blocks, c, left < kChannels ? left : kChannels);
  }
  return {};
}

}  // namespace

// Operands: a, its scale and zero point; b, its scale and zero point; scale and zero point of y.
// floats: the bounds of the real output.
Status qadd(const Call& call, Plan& plan) {
  auto* args = plan.make<AddArgs>();
  const DType a = call.in[0].dtype, b = call.in[3].dtype, y = call.out[0].dtype;
  *args = {call.out[0].count(), a, b, float(call.floats[0]), float(call.floats[1])};
  plan.args = args;
  plan.add(a == DType::u8 ? add_of<uint8_t>(b, y) : add_of<int8_t>(b, y),
           (args->n + kChunk - 1) / kChunk, kChunk / 8);
  return {};
}

// Operands: x, its scale and zero point; scale and zero point of the mean.
Status qmean(const Call& call, Plan& plan) {
  auto* args = plan.make<MeanArgs>();
  const View& x = call.in[0];
  const DType y = call.out[0].dtype;
  *args = {x.count(1, x.rank - 1), x.dim(-1), x.dtype};
  plan.args = args;
  const int64_t blocks = (args->channels + kChannels - 1) / kChannels;
  const PhaseFn signed_run =
      y == DType::u8 ? mean_items<int8_t, uint8_t> : mean_items<int8_t, int8_t>;
  const PhaseFn unsigned_run =
      y == DType::u8 ? mean_items<uint8_t, uint8_t> : mean_items<uint8_t, int8_t>;
  plan.add(x.dtype == DType::u8 ? unsigned_run : signed_run, x.dims[0] * blocks,
           args->pixels * kChannels / 8);
  return {};
}

}  // namespace sdx::SDX_ISA::int8
