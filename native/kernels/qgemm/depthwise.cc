// Convolutions of 8-bit numbers whose channels stay apart, channels last.
//
// Weights come in blocks of 64 channels; in each, taps come in groups of 4. Of a group, 4 vectors
// hold the weights as interleave4 holds the inputs. Behind the blocks lie the sums of the channels.
#include "kernels/pitch.h"
#include "kernels/qgemm/list.h"
#include "kernels/qgemm/product.h"
#include "kernels/window.h"
#include "simd/bytes.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA::q8 {
namespace {

constexpr int64_t kBlock = 64;
constexpr int kMaxTaps = 128;

// Where a channel of a block lies in its four vectors.
SDX_INLINE int64_t place_of(int64_t c) {
  return c / kBlock * kBlock + c % 16 / 4 * 16 + c % kBlock / 16 * 4 + c % 4;
}
int64_t interleaved(int64_t c) { return place_of(c); }

struct DepthwiseArgs {
  Product product;  // for its operands
  Window window;
  int64_t channels, padded, n_groups;
  int64_t pitch;  // elements between outputs
  int64_t n_taps;
};

SDX_INLINE int64_t blocks_bytes(const DepthwiseArgs& a) { return a.padded * a.n_groups * kGroup; }

struct PackArgs {
  int64_t channels, taps;
  uint8_t flip;
};

Status pack_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PackArgs*>(args);
  const int64_t n_groups = (a.taps + kGroup - 1) / kGroup;
  const int64_t padded = (a.channels + kBlock - 1) / kBlock * kBlock;
  const int64_t block_bytes = n_groups * kGroup * kBlock;
  for (int64_t block = begin; block < end; ++block) {
    uint8_t* to = output<uint8_t>(data) + block * block_bytes;
    auto* sums = reinterpret_cast<int32_t*>(output<uint8_t>(data) + padded * n_groups * kGroup);
    memset(to, 0, size_t(block_bytes));
    for (int64_t i = 0; i < kBlock; ++i) {
      const int64_t c = block * kBlock + i;
      sums[c] = 0;
      for (int64_t tap = 0; c < a.channels && tap < a.taps; ++tap) {
        const uint8_t v = input<uint8_t>(data, 0)[c * a.taps + tap] ^ a.flip;
        to[(tap / kGroup * kBlock + place_of(i)) * kGroup + tap % kGroup] = v;
        sums[c] += int8_t(v);
      }
    }
  }
  return {};
}

SDX_INLINE Columns columns_of(const DepthwiseArgs& a, const Data& data) {
  auto* at = reinterpret_cast<float*>(data.scratch) + 16;
  auto* whole = reinterpret_cast<int32_t*>(at + 2 * a.padded);
  return {at, at + a.padded, whole, whole + a.padded};
}

Status make_channels(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const DepthwiseArgs*>(args);
  make_output(a.product, data, *reinterpret_cast<Output*>(data.scratch));
  const auto* sums = reinterpret_cast<const int32_t*>(input<uint8_t>(data, kW) + blocks_bytes(a));
  make_columns(a.product, data, {sums, a.channels, 0, interleaved}, columns_of(a, data));
  return {};
}

// Where the taps of an output lie; those outside read a line of zero points.
SDX_INLINE void find_taps(const DepthwiseArgs& a, const uint8_t* x, const uint8_t* pad,
                          const Pixel& pixel, const uint8_t** taps) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  for (int64_t z = 0; z < deep->taps; ++z)
    for (int64_t h = 0; h < high->taps; ++h) {
      const int64_t depth = deep->place(pixel.at[0], z), height = high->place(pixel.at[1], h);
      const bool is_in = depth >= 0 && depth < deep->in && height >= 0 && height < high->in;
      const uint8_t* line = x + (depth * high->in + height) * wide->in * a.channels;
      for (int64_t w = 0; w < wide->taps; ++w) {
        const int64_t at = wide->place(pixel.at[2], w);
        *taps++ = is_in && at >= 0 && at < wide->in ? line + at * a.channels : pad;
      }
    }
  const int64_t rest = a.n_groups * kGroup - a.window.taps();
  for (int64_t i = 0; i < rest; ++i) *taps++ = pad;
}

template <class T>
SDX_INLINE void finish_channels(i32v* sums, const Columns& columns, int64_t at, const Output& out,
                                T* to, auto lanes) {
  const int n = [&] {
    if constexpr (__is_same(decltype(lanes), Part)) return lanes.n;
    return SDX_VEC_BYTES;
  }();
  for (int q = 0; q < 4; ++q) {
    const int64_t j = at + q * 16;
    sums[q] += load(columns.offset + j);
    if constexpr (__is_same(T, int32_t)) continue;
    const f32v y = __builtin_convertvector(sums[q], f32v) * load(columns.scale + j);
    const f32v moved = y + load(columns.shift + j);
    if constexpr (__is_same(T, float))
      sums[q] = (i32v)vmin(vmax(moved, splat(out.low)), splat(out.high));
    else
      sums[q] =
          round_bits(clamp(moved, splat(out.low), splat(out.high))) + splat(int32_t(out.zero));
  }
  if constexpr (sizeof(T) == 1) {
    store_bytes(reinterpret_cast<uint8_t*>(to), gather_low(sums), lanes);
  } else {
    for (int i = 0; i < n; ++i)
      memcpy(to + i, reinterpret_cast<int32_t*>(sums + i % 16 / 4) + i / 16 * 4 + i % 4, 4);
  }
}

// SDX_VEC_BYTES channels of one output.
template <class T>
SDX_INLINE void some_channels(const DepthwiseArgs& a, const uint8_t* const* taps, const uint8_t* w,
                              int64_t c, const Columns& columns, const Output& out, T* to,
                              auto lanes) {
  const int64_t block = c / kBlock, within = c % kBlock / 16 * 4;
  const uint8_t* weights = w + block * a.n_groups * kGroup * kBlock + within * kGroup;
  const u8v flip = splat(a.product.flip);
  i32v sums[4] = {};
  for (int64_t g = 0; g < a.n_groups; ++g, weights += kGroup * kBlock) {
    u8v x[4];
    for (int i = 0; i < 4; ++i) x[i] = load_bytes(taps[4 * g + i] + c, lanes) ^ flip;
    i32v inputs[4];
    interleave4(x[0], x[1], x[2], x[3], inputs);
    for (int q = 0; q < 4; ++q) {
      i32v part;
      memcpy(&part, weights + q * 64, sizeof part);
      sums[q] = dot4(sums[q], inputs[q], part);
    }
  }
  finish_channels(sums, columns, block * kBlock + within, out, to + c, lanes);
}

// Outputs [first, last) of a line, all of whose taps along it lie inside.
struct Inside {
  int64_t first, last;
};
Inside inside_of(const Axis& axis) {
  const int64_t reach = axis.begin + (axis.taps - 1) * axis.spacing;  // from output 0's place
  const int64_t first = axis.begin >= 0 ? 0 : (-axis.begin + axis.step - 1) / axis.step;
  const int64_t room = axis.in - reach;
  const int64_t last = room <= 0 ? 0 : (room - 1) / axis.step + 1;
  return {first, last < axis.out ? last : axis.out};
}

// Item: one line of outputs.
template <class T>
Status depthwise_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const DepthwiseArgs*>(args);
  const Columns columns = columns_of(a, data);
  const Output out = *reinterpret_cast<const Output*>(data.scratch);
  const Axis& wide = a.window.axis[kSpatial - 1];
  const Inside inside = inside_of(wide);
  auto* pad = reinterpret_cast<uint8_t*>(data.local);
  memset(pad, data.in[kXZero] == nullptr ? 0 : *input<uint8_t>(data, kXZero), size_t(a.channels));
  const uint8_t* taps[kMaxTaps];
  for (int64_t line = begin; line < end; ++line) {
    Pixel pixel = pixel_of(a.window, line * wide.out);
    const uint8_t* x = input<uint8_t>(data, kX) + pixel.image * a.window.ins() * a.channels;
    T* to = output<T>(data) + line * wide.out * a.pitch;
    int64_t& at = pixel.at[kSpatial - 1];
    for (; at < wide.out; ++at, to += a.pitch) {
      if (at > inside.first && at < inside.last) {
        for (int64_t i = 0; i < a.n_taps; ++i)
          if (taps[i] != pad) taps[i] += wide.step * a.channels;
      } else {
        find_taps(a, x, pad, pixel, taps);
      }
      vloop<uint8_t>(a.channels, [&](int64_t c, auto lanes) {
        some_channels(a, taps, input<uint8_t>(data, kW), c, columns, out, to, lanes);
      });
    }
  }
  return {};
}

PhaseFn depthwise_into(DType out) {
  switch (out) {
    case DType::i32: return depthwise_lines<int32_t>;
    case DType::f32: return depthwise_lines<float>;
    case DType::u8: return depthwise_lines<uint8_t>;
    default: return depthwise_lines<int8_t>;
  }
}

}  // namespace

// ints: channels, taps.
Status qdepthwise_pack(const Call& call, Plan& plan) {
  auto* args = plan.make<PackArgs>();
  *args = {call.ints[0], call.ints[1], uint8_t(call.in[0].dtype == DType::u8 ? 128 : 0)};
  plan.args = args;
  plan.add(pack_blocks, (args->channels + kBlock - 1) / kBlock, args->taps * kBlock);
  return {};
}

// ints: the window. Weights are signed and have no zero point.
Status qdepthwise(const Call& call, Plan& plan) {
  auto* args = plan.make<DepthwiseArgs>();
  const View& x = call.in[kX];
  args->window = read_window(x, call.out[0], call.ints);
  args->channels = x.dim(-1);
  args->pitch = row_pitch(call.out[0]);
  args->padded = (args->channels + kBlock - 1) / kBlock * kBlock;
  args->n_groups = (args->window.taps() + kGroup - 1) / kGroup;
  args->n_taps = args->window.taps();
  Product& p = args->product;
  p.w = DType::i8;
  p.shape = {args->window.taps(), args->channels};
  read_operands(p, call);
  plan.args = args;
  plan.scratch_bytes = 64 + args->padded * 16;
  plan.local_bytes = args->padded;
  const Axis* axis = args->window.axis;
  const int64_t outs = axis[2].out, lines = args->window.batch * axis[0].out * axis[1].out;
  plan.add(make_channels, 1, args->channels);
  plan.add(depthwise_into(p.out), outs == 0 ? 0 : lines,
           outs * args->n_groups * args->channels / 16);
  return {};
}

}  // namespace sdx::SDX_ISA::q8
