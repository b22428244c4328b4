// QLinearGlobalAveragePool: exact sums of 8-bit channels, one float computation per mean, and
// requantization.
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/row_sums_int8.h"
#include "kernels/quantize/tensor_quantization.h"
#include "simd/bytes.h"

namespace sdx::SDX_ISA::int8 {
namespace {

struct MeanArgs {
  int64_t pixels, channels;  // of a channels-first image that is one of all channels of all images
  DType x, y;
  uint8_t flip;  // XOR mask that makes bytes unsigned
};

constexpr int64_t kChannels = 256;  // channels of an item: 1 KiB of accumulators

constexpr int64_t kPixels = 8;  // that are added before their sums go to memory

// Sums of n channels of unsigned bytes over all pixels of a channels-last image, four of which are
// interleaved at a time; whole vectors of `totals` are written. The image is read in its order.
SDX_INLINE void sum_pixels(const MeanArgs& a, const uint8_t* from, int64_t n, int32_t* totals) {
  memset(totals, 0, kChannels * sizeof(int32_t));
  for (int64_t first = 0; first < a.pixels; first += kPixels) {
    const int64_t last = first + kPixels < a.pixels ? first + kPixels : a.pixels;
    vloop<uint8_t>(n, [&](int64_t j, auto lanes) {
      i32v sums[4];
      for (int q = 0; q < 4; ++q) sums[q] = load(totals + j + q * kLanes);
      for (int64_t i = first; i < last; i += 4) {
        const uint8_t* at = from + i * a.channels + j;
        const auto row = [&](int64_t l) {
          return i + l < last ? load_bytes(at + l * a.channels, lanes) ^ splat(a.flip) : u8v{};
        };
        i32v fours[4];
        interleave4(row(0), row(1), row(2), row(3), fours);
        for (int q = 0; q < 4; ++q) sums[q] = dot4(sums[q], fours[q], splat(int32_t(0x01010101)));
      }
      for (int q = 0; q < 4; ++q) store(totals + j + q * kLanes, sums[q]);
    });
  }
  for (int64_t j = 0; j < n; j += 4 * kLanes) {
    i32v sums[4];
    for (int q = 0; q < 4; ++q) sums[q] = load(totals + j + q * kLanes);
    deinterleave4(sums);
    for (int q = 0; q < 4; ++q) store(totals + j + q * kLanes, sums[q]);
  }
}

// Means of n channels from their sums, which are exact in int32 (up to 2^23 pixels); the zero point
// is subtracted once, for all pixels.
SDX_INLINE void write_means(const MeanArgs& a, const Data& data, const int32_t* totals, int64_t n,
                            uint8_t* to) {
  const Quantization x = quantization_of(data, 1, a.x), y = quantization_of(data, 3, a.y);
  const CodeBounds bounds = bounds_of(a.y, y, -kInf, kInf);
  const float count = float(a.pixels);
  const f32v scale = splat(x.scale / (count * y.scale)), shift = splat(x.zero * count);
  const i32v flipped = splat(int32_t(a.flip * a.pixels));
  vloop(n, [&](int64_t j, auto lanes) {
    const f32v total = __builtin_convertvector(load(totals + j, lanes) - flipped, f32v);
    const f32v clamped = clamp((total - shift) * scale, splat(bounds.low), splat(bounds.high));
    store_i32(to + j, round_bits(clamped) + splat(int32_t(y.zero)), lanes);
  });
}

template <bool is_last>
Status mean_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const MeanArgs*>(args);
  const int64_t blocks = (a.channels + kChannels - 1) / kChannels;
  int32_t totals[kChannels];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t image = i / blocks, c = i % blocks * kChannels, left = a.channels - c;
    const int64_t n = left < kChannels ? left : kChannels;
    const uint8_t* from = input<uint8_t>(data, 0) + image * a.pixels * a.channels;
    if constexpr (is_last)
      sum_pixels(a, from + c, n, totals);
    else
      sum_rows({from + c * a.pixels, a.pixels, 0, a.flip}, a.pixels, n, totals);
    write_means(a, data, totals, n, output<uint8_t>(data) + image * a.channels + c);
  }
  return {};
}

}  // namespace

// Operands: x, its scale and zero point; scale and zero point of the mean. ints: whether channels
// are last.
Status qmean(const Call& call, Plan& plan) {
  auto* args = plan.make<MeanArgs>();
  const View& x = call.in[0];
  const bool is_last = call.ints[0] != 0;
  args->x = x.dtype, args->y = call.out[0].dtype;
  args->flip = x.dtype == DType::i8 ? 128 : 0;
  args->pixels = is_last ? x.count(1, x.rank - 1) : x.count(2, x.rank);
  args->channels = is_last ? x.dim(-1) : x.count(0, 2);
  plan.args = args;
  const int64_t images = is_last ? x.dims[0] : 1;
  const int64_t blocks = (args->channels + kChannels - 1) / kChannels;
  plan.add(is_last ? mean_items<true> : mean_items<false>, images * blocks,
           args->pixels * kChannels / 32);
  return {};
}

}  // namespace sdx::SDX_ISA::int8
