// Sums of two 8-bit tensors, and means over the pixels of 8-bit images with the channels last.
#include "kernels/qgemm/list.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA::q8 {
namespace {

constexpr int64_t kPart = 16384;  // elements of an item

struct AddArgs {
  int64_t n;
  DType a, b;
  float low, high;
};

// What a tensor is scaled by, and its zero point.
struct Steps {
  float scale, zero;
};

SDX_INLINE Steps steps_of(const Data& data, int slot, DType dtype) {
  const void* zero = data.in[slot + 1];
  const float z = zero == nullptr      ? 0.0f
                  : dtype == DType::u8 ? float(*static_cast<const uint8_t*>(zero))
                                       : float(*static_cast<const int8_t*>(zero));
  return {*input<float>(data, slot), z};
}

template <class Y>
constexpr float kLowest = Y(-1) < Y(0) ? -128.0f : 0.0f;

// Bounds of the output in steps from its zero point.
template <class Y>
SDX_INLINE Steps bounds_of(const Steps& y, float low, float high) {
  const f32v least = splat(kLowest<Y>), most = splat(kLowest<Y> + 255);
  const float first = round_small(clamp(splat(low / y.scale + y.zero), least, most))[0];
  const float last = round_small(clamp(splat(high / y.scale + y.zero), least, most))[0];
  return {first - y.zero, last - y.zero};
}

template <class A, class B, class Y>
void add_part(const AddArgs& args, const Data& data, int64_t from, int64_t n) {
  const Steps a = steps_of(data, 1, args.a), b = steps_of(data, 4, args.b);
  const Steps y = steps_of(data, 6, __is_same(Y, uint8_t) ? DType::u8 : DType::i8);
  const Steps bounds = bounds_of<Y>(y, args.low, args.high);
  const f32v a_scale = splat(a.scale / y.scale), b_scale = splat(b.scale / y.scale);
  const f32v shift = -a.zero * a_scale - b.zero * b_scale;
  const i32v zero = splat(int32_t(y.zero));
  const A* left = input<A>(data, 0) + from;
  const B* right = input<B>(data, 3) + from;
  Y* to = output<Y>(data) + from;
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v sum =
        load_whole(left + i, lanes) * a_scale + (load_whole(right + i, lanes) * b_scale + shift);
    store_i32(to + i, round_bits(clamp(sum, splat(bounds.scale), splat(bounds.zero))) + zero,
              lanes);
  });
}

template <class A, class B, class Y>
Status add_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AddArgs*>(args);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t from = i * kPart;
    add_part<A, B, Y>(a, data, from, a.n - from < kPart ? a.n - from : kPart);
  }
  return {};
}

template <class A, class B>
PhaseFn add_into(DType y) {
  return y == DType::u8 ? add_parts<A, B, uint8_t> : add_parts<A, B, int8_t>;
}
template <class A>
PhaseFn add_of(DType b, DType y) {
  return b == DType::u8 ? add_into<A, uint8_t>(y) : add_into<A, int8_t>(y);
}

struct MeanArgs {
  int64_t pixels, channels;
  DType x;
};

constexpr int64_t kChannels = 256;  // of an item

template <class X, class Y>
void mean_channels(const MeanArgs& a, const Data& data, int64_t image, int64_t c, int64_t n) {
  const Steps x = steps_of(data, 1, a.x);
  const Steps y = steps_of(data, 3, __is_same(Y, uint8_t) ? DType::u8 : DType::i8);
  const Steps bounds = bounds_of<Y>(y, -kInf, kInf);
  const float count = float(a.pixels);
  const f32v scale = splat(x.scale / (count * y.scale)), shift = splat(x.zero * count);
  int32_t sums[kChannels] = {};
  const X* from = input<X>(data, 0) + image * a.pixels * a.channels + c;
  for (int64_t i = 0; i < a.pixels; ++i, from += a.channels)
    vloop(n, [&](int64_t j, auto lanes) {
      store(sums + j, load(sums + j, lanes) + load_i32(from + j, lanes), lanes);
    });
  Y* to = output<Y>(data) + image * a.channels + c;
  vloop(n, [&](int64_t j, auto lanes) {
    const f32v steps = (__builtin_convertvector(load(sums + j, lanes), f32v) - shift) * scale;
    const f32v held = clamp(steps, splat(bounds.scale), splat(bounds.zero));
    store_i32(to + j, round_bits(held) + splat(int32_t(y.zero)), lanes);
  });
}

template <class X, class Y>
Status mean_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const MeanArgs*>(args);
  const int64_t parts = (a.channels + kChannels - 1) / kChannels;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t c = i % parts * kChannels, left = a.channels - c;
    mean_channels<X, Y>(a, data, i / parts, c, left < kChannels ? left : kChannels);
  }
  return {};
}

}  // namespace

// Operands: a, its scale and zero point, b, its scale, zero point; scale and zero point of the sum.
Status qadd(const Call& call, Plan& plan) {
  auto* args = plan.make<AddArgs>();
  const DType a = call.in[0].dtype, b = call.in[3].dtype, y = call.out[0].dtype;
  *args = {call.out[0].count(), a, b, float(call.floats[0]), float(call.floats[1])};
  plan.args = args;
  plan.add(a == DType::u8 ? add_of<uint8_t>(b, y) : add_of<int8_t>(b, y),
           (args->n + kPart - 1) / kPart, kPart / 8);
  return {};
}

// Operands: x, its scale and zero point, scale and zero point of the mean.
Status qmean(const Call& call, Plan& plan) {
  auto* args = plan.make<MeanArgs>();
  const View& x = call.in[0];
  const DType y = call.out[0].dtype;
  *args = {x.count(1, x.rank - 1), x.dim(-1), x.dtype};
  plan.args = args;
  const int64_t parts = (args->channels + kChannels - 1) / kChannels;
  const PhaseFn signed_run =
      y == DType::u8 ? mean_items<int8_t, uint8_t> : mean_items<int8_t, int8_t>;
  const PhaseFn plain_run =
      y == DType::u8 ? mean_items<uint8_t, uint8_t> : mean_items<uint8_t, int8_t>;
  plan.add(x.dtype == DType::u8 ? plain_run : signed_run, x.dims[0] * parts,
           args->pixels * kChannels / 8);
  return {};
}

}  // namespace sdx::SDX_ISA::q8
