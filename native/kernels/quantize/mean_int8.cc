// QLinearGlobalAveragePool: exact sums of 8-bit channels, one float computation per mean, and
// requantization. Images with their channels last are read in the order of their memory, in parts
// whose sums a second phase adds up.
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/row_sums_int8.h"
#include "kernels/quantize/tensor_quantization.h"
#include "simd/bytes.h"

namespace sdx::SDX_ISA::int8 {
namespace {

struct MeanArgs {
  int64_t pixels, channels;  // of a channels-first image that is one of all channels of all images
  DType x, y;
  uint8_t flip;                // XOR mask that makes bytes unsigned
  int64_t parts, part_pixels;  // of a channels-last image
  int64_t width;               // of the sums of a part: channels in whole vectors
};

constexpr int64_t kChannels = 256;  // channels of an item: 1 KiB of accumulators

// Channels-last images.
constexpr int64_t kWideChannels = 4096;  // channels of an item: 16 KiB of accumulators
constexpr int64_t kPixels = 8;           // that are added before their sums go to memory
constexpr int64_t kPartBytes = 1 << 17, kMaxParts = 16;

// Adds `rows` pixels of a vector of channels, at most four, to their sums in the order of
// interleave4.
SDX_INLINE void add_pixels(const MeanArgs& a, const uint8_t* at, int64_t rows, auto lanes,
                           i32v (&sums)[4]) {
  const auto row = [&](int64_t l) {
    return l < rows ? load_bytes(at + l * a.channels, lanes) ^ splat(a.flip) : u8v{};
  };
  i32v fours[4];
  interleave4(row(0), row(1), row(2), row(3), fours);
  for (int q = 0; q < 4; ++q) sums[q] = dot4(sums[q], fours[q], splat(int32_t(0x01010101)));
}

// Sums of n channels of unsigned bytes over some pixels, in the order of interleave4; whole vectors
// of `totals` are written.
SDX_INLINE void sum_pixels(const MeanArgs& a, const uint8_t* from, int64_t pixels, int64_t n,
                           int32_t* totals) {
  memset(totals, 0, size_t((n + SDX_VEC_BYTES - 1) / SDX_VEC_BYTES * SDX_VEC_BYTES) * 4);
  for (int64_t first = 0; first < pixels; first += kPixels) {
    const int64_t rows = pixels - first < kPixels ? pixels - first : kPixels;
    vloop<uint8_t>(n, [&](int64_t j, auto lanes) {
      const uint8_t* at = from + first * a.channels + j;
      i32v sums[4];
      for (int q = 0; q < 4; ++q) sums[q] = load(totals + j + q * kLanes);
      if (rows == kPixels) {
        add_pixels(a, at, 4, lanes, sums);
        add_pixels(a, at + 4 * a.channels, 4, lanes, sums);
      } else {
        for (int64_t i = 0; i < rows; i += 4)
          add_pixels(a, at + i * a.channels, rows - i, lanes, sums);
      }
      for (int q = 0; q < 4; ++q) store(totals + j + q * kLanes, sums[q]);
    });
  }
}

// Adds up n sums of all parts of an image, and brings them into the order of the channels.
SDX_INLINE void add_parts(const MeanArgs& a, const int32_t* from, int64_t n, int32_t* totals) {
  for (int64_t j = 0; j < n; j += 4 * kLanes) {
    i32v sums[4] = {};
    for (int64_t part = 0; part < a.parts; ++part)
      for (int q = 0; q < 4; ++q) sums[q] += load(from + part * a.width + j + q * kLanes);
    deinterleave4(sums);
    for (int q = 0; q < 4; ++q) store(totals + j + q * kLanes, sums[q]);
  }
}

// First phase of channels-last images, which are read in their order. Item: some channels of a part
// of an image.
Status sum_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const MeanArgs*>(args);
  const int64_t blocks = (a.channels + kWideChannels - 1) / kWideChannels;
  auto* sums = reinterpret_cast<int32_t*>(data.scratch);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t part = i / blocks, c = i % blocks * kWideChannels, left = a.channels - c;
    const int64_t first = part % a.parts * a.part_pixels, rest = a.pixels - first;
    const uint8_t* image = input<uint8_t>(data, 0) + part / a.parts * a.pixels * a.channels;
    sum_pixels(a, image + first * a.channels + c, rest < a.part_pixels ? rest : a.part_pixels,
               left < kWideChannels ? left : kWideChannels, sums + part * a.width + c);
  }
  return {};
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
    if constexpr (is_last) {
      const auto* sums = reinterpret_cast<const int32_t*>(data.scratch);
      add_parts(a, sums + image * a.parts * a.width + c, n, totals);
    } else {
      const uint8_t* from = input<uint8_t>(data, 0) + c * a.pixels;
      sum_rows({from, a.pixels, 0, a.flip, {}}, a.pixels, n, totals);
    }
    write_means(a, data, totals, n, output<uint8_t>(data) + image * a.channels + c);
  }
  return {};
}

// Adds the phase of channels-last images; parts are whole blocks of pixels.
void plan_sums(MeanArgs& a, int64_t images, Plan& plan) {
  const int64_t parts = a.pixels * a.channels / kPartBytes;
  a.parts = parts < 1 ? 1 : parts < kMaxParts ? parts : kMaxParts;
  const int64_t each = (a.pixels + a.parts - 1) / a.parts;
  a.part_pixels = each < 1 ? 1 : (each + kPixels - 1) / kPixels * kPixels;
  a.parts = a.pixels < 1 ? 1 : (a.pixels + a.part_pixels - 1) / a.part_pixels;
  a.width = (a.channels + SDX_VEC_BYTES - 1) / SDX_VEC_BYTES * SDX_VEC_BYTES;
  plan.scratch_bytes = images * a.parts * a.width * int64_t(sizeof(int32_t));
  const int64_t blocks = (a.channels + kWideChannels - 1) / kWideChannels;
  const int64_t channels = a.channels < kWideChannels ? a.channels : kWideChannels;
  plan.add(sum_items, images * a.parts * blocks, a.part_pixels * channels / 64);
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
  if (is_last) plan_sums(*args, images, plan);
  const int64_t blocks = (args->channels + kChannels - 1) / kChannels;
  plan.add(is_last ? mean_items<true> : mean_items<false>, images * blocks,
           (is_last ? args->parts : args->pixels) * kChannels / 32);
  return {};
}

}  // namespace sdx::SDX_ISA::int8
