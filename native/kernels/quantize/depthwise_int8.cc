// Depthwise convolutions of 8-bit channels-last images: every channel has its own window.
//
// Vectors hold channels. Four taps at a time are byte-interleaved (interleave4), so that each
// 32-bit lane holds the four taps of one channel, and one dot4 adds them. Weights are packed to
// match: blocks of 64 channels; in a block, groups of 4 taps; of a group, 4 vectors in the lane
// order of interleave4. The channel sums of the weights follow the blocks, for the zero point of x.
// A zero point of the weights is multiplied by the sum of the window: one more dot4, with ones.
//
// A group is 4 taps in order, or, for windows of three columns, one column: then neighbouring
// outputs of a line share columns, and a sliding window keeps their interleaved bytes in registers.
#include "kernels/quantize/direct_int8.h"
#include "kernels/quantize/kernels.h"
#include "simd/bytes.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA::int8 {
namespace {

constexpr int64_t kBlock = 64;  // channels: the bytes of the widest vector, whatever the ISA
constexpr int kMaxTaps = 128;   // the lowering sends larger windows to qconv

// The position of a channel in the four vectors of its block, as interleave4 orders them.
SDX_INLINE int64_t lane_position(int64_t c) {
  return c / kBlock * kBlock + c % 16 / 4 * 16 + c % kBlock / 16 * 4 + c % 4;
}
int64_t interleaved(int64_t c) { return lane_position(c); }

// The assignment of taps to groups of four.
struct Groups {
  int64_t lines, columns;

  SDX_INLINE bool are_columns() const { return columns == 3 && lines >= 2 && lines <= kGroup; }
  SDX_INLINE int64_t count() const {
    return are_columns() ? columns : (lines * columns + kGroup - 1) / kGroup;
  }
  // The position of a tap, kGroup positions per group.
  SDX_INLINE int64_t position(int64_t tap) const {
    return are_columns() ? tap % columns * kGroup + tap / columns : tap;
  }
  // Ones for the taps of a group, zeros for the positions that fill it.
  SDX_INLINE i32v ones(int64_t group) const {
    const int64_t left = are_columns() ? lines : lines * columns - group * kGroup;
    return splat(int32_t(0x01010101u >> (left < kGroup ? 8 * (kGroup - left) : 0)));
  }
};

struct DepthwiseArgs : DirectConv {
  Groups groups;
  int64_t n_groups;
};

struct PackArgs {
  int64_t channels;
  Groups groups;
  uint8_t flip;
};

// Packs weights [channels, taps]. Items are blocks of channels.
Status pack_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PackArgs*>(args);
  const int64_t n_groups = a.groups.count(), taps = a.groups.lines * a.groups.columns;
  const int64_t padded = (a.channels + kBlock - 1) / kBlock * kBlock;
  const int64_t block_bytes = n_groups * kGroup * kBlock;
  for (int64_t block = begin; block < end; ++block) {
    uint8_t* to = output<uint8_t>(data) + block * block_bytes;
    auto* accumulators =
        reinterpret_cast<int32_t*>(output<uint8_t>(data) + padded * n_groups * kGroup);
    memset(to, 0, size_t(block_bytes));
    for (int64_t i = 0; i < kBlock; ++i) {
      const int64_t c = block * kBlock + i;
      accumulators[c] = 0;
      for (int64_t tap = 0; c < a.channels && tap < taps; ++tap) {
        const uint8_t v = input<uint8_t>(data, 0)[c * taps + tap] ^ a.flip;
        const int64_t at = a.groups.position(tap);
        to[(at / kGroup * kBlock + lane_position(i)) * kGroup + at % kGroup] = v;
        accumulators[c] += int8_t(v);
      }
    }
  }
  return {};
}

// The pixels of an output's taps; those in padding, and those that fill groups, are `pad`.
SDX_INLINE void locate_taps(const DepthwiseArgs& a, const uint8_t* x, const uint8_t* pad,
                            const Pixel& pixel, const uint8_t** taps) {
  const Axis& wide = a.window.axis[kSpatial - 1];
  for (int64_t i = 0; i < a.n_groups * kGroup; ++i) taps[i] = pad;
  for (int64_t l = 0; l < a.groups.lines; ++l) {
    const uint8_t* line = locate_line(a, x, pixel, l);
    for (int64_t w = 0; line != nullptr && w < wide.taps; ++w) {
      const int64_t at = wide.input_index(pixel.at[2], w);
      if (at >= 0 && at < wide.in)
        taps[a.groups.position(l * wide.taps + w)] = line + at * a.channels;
    }
  }
}

// Accumulators of SDX_VEC_BYTES channels in the lane order of interleave4 and, where weights have a
// zero point, the sums of their windows.
template <bool has_sums>
struct Totals {
  i32v products[4] = {};
  i32v sums[has_sums ? 4 : 1] = {};

  SDX_INLINE void add(int q, i32v x, i32v w, i32v ones) {
    products[q] = dot4(products[q], x, w);
    if constexpr (has_sums) sums[q] = dot4(sums[q], x, ones);
  }
  // Vector q less the weights' zero points times the sums.
  SDX_INLINE i32v corrected(int q, const ColumnParams& columns, int64_t j) const {
    const i32v total = products[q] + load(columns.offset + j);
    if constexpr (has_sums) return total - load(columns.zero + j) * sums[q];
    return total;
  }
};

// Requantizes and writes accumulators. 8-bit outputs come back into channel order by packing.
template <bool has_sums, class T>
SDX_INLINE void requantize_channels(const Totals<has_sums>& totals, const ColumnParams& columns,
                                    int64_t at, const Output& out, T* to, auto lanes) {
  i32v total[4];
  f32v y[4];
  for (int q = 0; q < 4; ++q) {
    const int64_t j = at + q * 16;
    total[q] = totals.corrected(q, columns, j);
    y[q] =
        __builtin_convertvector(total[q], f32v) * load(columns.scale + j) + load(columns.shift + j);
    if constexpr (__is_same(T, float))
      total[q] = (i32v)vmin(vmax(y[q], splat(out.low)), splat(out.high));
  }
  if constexpr (sizeof(T) == 1) {
    const u8v bytes = saturate_to_bytes(y, Saturation<T>{out.low, out.high, out.zero});
    store_bytes(reinterpret_cast<uint8_t*>(to), bytes, lanes);
  } else {
    deinterleave4(total);
    int n = SDX_VEC_BYTES;
    if constexpr (__is_same(decltype(lanes), Part)) n = lanes.n;
    for (int i = 0; i < 4 && i * kLanes < n; ++i) {
      const int left = n - i * kLanes;
      left < kLanes ? store(to + i * kLanes, total[i], Part{left})
                    : store(to + i * kLanes, total[i]);
    }
  }
}

// The parameters and the weights of SDX_VEC_BYTES channels; a block holds 64 whatever the ISA.
SDX_INLINE int64_t param_position(int64_t c) { return c / kBlock * kBlock + c % kBlock / 16 * 4; }
SDX_INLINE const uint8_t* weights_of(const DepthwiseArgs& a, const uint8_t* w, int64_t c) {
  return w + c / kBlock * a.n_groups * kGroup * kBlock + c % kBlock / 16 * 4 * kGroup;
}

// What all outputs share: weights, a pixel of zero points, and channel parameters.
struct SharedInputs {
  const uint8_t *w, *pad;
  ColumnParams columns;
  Output out;
};

// SDX_VEC_BYTES channels of one output from the pixels of its taps.
template <bool has_sums, class T>
SDX_INLINE void run_channels(const DepthwiseArgs& a, const SharedInputs& g,
                             const uint8_t* const* taps, int64_t c, T* to, auto lanes) {
  const uint8_t* weights = weights_of(a, g.w, c);
  const u8v flip = splat(a.product.flip);
  Totals<has_sums> totals;
  for (int64_t i = 0; i < a.n_groups; ++i, weights += kGroup * kBlock) {
    u8v x[4];
    for (int l = 0; l < 4; ++l) x[l] = load_bytes(taps[4 * i + l] + c, lanes) ^ flip;
    i32v inputs[4];
    interleave4(x[0], x[1], x[2], x[3], inputs);
    for (int q = 0; q < 4; ++q) {
      i32v part;
      memcpy(&part, weights + q * 64, sizeof part);
      totals.add(q, inputs[q], part, a.groups.ones(i));
    }
  }
  requantize_channels(totals, g.columns, param_position(c), g.out, to + c, lanes);
}

// The lines of a three-column window and the distance of their pixels; a line in padding is one
// pixel of zero points with distance 0.
struct Lines {
  const uint8_t* at[kGroup];
  int64_t pixel_stride[kGroup];
};

// Loads and interleaves one column of a window: SDX_VEC_BYTES channels of up to four pixels.
SDX_INLINE void read_column(const Lines& lines, int64_t at, int64_t c, u8v flip, i32v* vectors,
                            auto lanes) {
  u8v x[kGroup];
  for (int l = 0; l < kGroup; ++l)
    x[l] = load_bytes(lines.at[l] + at * lines.pixel_stride[l] + c, lanes) ^ flip;
  interleave4(x[0], x[1], x[2], x[3], vectors);
}

// One line of outputs with three-column windows for SDX_VEC_BYTES channels from the c-th on: a
// sliding window of three interleaved columns, of which `step` (the stride) are new per output.
template <bool has_sums, int step, class T>
void slide_window(const DepthwiseArgs& a, const SharedInputs& shared, const Lines& given, int64_t c,
                  T* to, auto lanes) {
  // Copies of the arguments: byte stores to `to` may alias anything but locals.
  const Axis wide = a.window.axis[kSpatial - 1];
  const SharedInputs g = shared;
  const Lines inside = given, nowhere{{g.pad, g.pad, g.pad, g.pad}, {}};
  const int64_t pitch = a.pitch;
  const u8v flip = splat(a.product.flip);
  const i32v ones = a.groups.ones(0);
  i32v weights[3][4], columns[3][4], outside[4];
  for (int i = 0; i < 3; ++i)
    for (int q = 0; q < 4; ++q)
      memcpy(&weights[i][q], weights_of(a, g.w, c) + i * kGroup * kBlock + q * 64, SDX_VEC_BYTES);
  read_column(nowhere, 0, c, flip, outside, lanes);
  const auto column = [&](int64_t at, i32v* vectors) {
    if (at >= 0 && at < wide.in) return read_column(inside, at, c, flip, vectors, lanes);
    for (int q = 0; q < 4; ++q) vectors[q] = outside[q];
  };
  for (int i = step; i < 3; ++i) column(wide.input_index(0, i - step), columns[i]);
  for (int64_t o = 0; o < wide.out; ++o, to += pitch) {
    const int64_t at = wide.input_index(o, 0);
    for (int i = 0; i + step < 3; ++i)
      for (int q = 0; q < 4; ++q) columns[i][q] = columns[i + step][q];
    for (int i = 3 - step; i < 3; ++i) column(at + i, columns[i]);
    Totals<has_sums> totals;
    for (int i = 0; i < 3; ++i)
      for (int q = 0; q < 4; ++q) totals.add(q, columns[i][q], weights[i][q], ones);
    requantize_channels(totals, g.columns, param_position(c), g.out, to + c, lanes);
  }
}

template <bool has_sums, class T>
void slide_line(const DepthwiseArgs& a, const SharedInputs& g, const uint8_t* x, const Pixel& pixel,
                T* to) {
  Lines lines;
  for (int64_t l = 0; l < kGroup; ++l) {
    const uint8_t* at = l < a.groups.lines ? locate_line(a, x, pixel, l) : nullptr;
    lines.at[l] = at == nullptr ? g.pad : at;
    lines.pixel_stride[l] = at == nullptr ? 0 : a.channels;
  }
  vloop<uint8_t>(a.channels, [&](int64_t c, auto lanes) {
    switch (a.window.axis[kSpatial - 1].stride) {
      case 1: return slide_window<has_sums, 1>(a, g, lines, c, to, lanes);
      case 2: return slide_window<has_sums, 2>(a, g, lines, c, to, lanes);
      default: return slide_window<has_sums, 3>(a, g, lines, c, to, lanes);
    }
  });
}

// Outputs [first, last) of a line, whose windows along it are inside the image.
struct InsideRange {
  int64_t first, last;
};
InsideRange inside_range(const Axis& axis) {
  const int64_t reach = axis.begin + (axis.taps - 1) * axis.dilation;  // last tap of output 0
  const int64_t first = axis.begin >= 0 ? 0 : (-axis.begin + axis.stride - 1) / axis.stride;
  const int64_t remaining = axis.in - reach;
  const int64_t last = remaining <= 0 ? 0 : (remaining - 1) / axis.stride + 1;
  return {first, last < axis.out ? last : axis.out};
}

// A line of outputs by tap pointers, which advance together while windows stay inside.
template <bool has_sums, class T>
void each_output(const DepthwiseArgs& a, const SharedInputs& g, const uint8_t* x, Pixel pixel,
                 T* to) {
  const Axis& wide = a.window.axis[kSpatial - 1];
  const InsideRange inside = inside_range(wide);
  const uint8_t* taps[kMaxTaps];
  for (int64_t& at = pixel.at[kSpatial - 1]; at < wide.out; ++at, to += a.pitch) {
    if (at > inside.first && at < inside.last) {
      for (int64_t i = 0; i < a.n_groups * kGroup; ++i)
        if (taps[i] != g.pad) taps[i] += wide.stride * a.channels;
    } else {
      locate_taps(a, x, g.pad, pixel, taps);
    }
    vloop<uint8_t>(a.channels, [&](int64_t c, auto lanes) {
      run_channels<has_sums>(a, g, taps, c, to, lanes);
    });
  }
}

// Item: one line of output pixels.
template <bool has_sums, class T>
Status depthwise_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = static_cast<const DepthwiseArgs&>(*static_cast<const DirectConv*>(args));
  std::byte* memory = column_memory(a, data);
  auto* pad = reinterpret_cast<uint8_t*>(data.local);
  memset(pad, padding(data), size_t(a.channels));
  const SharedInputs shared{input<uint8_t>(data, kW), pad, columns_of(a, memory),
                            *reinterpret_cast<const Output*>(memory)};
  const Axis& wide = a.window.axis[kSpatial - 1];
  const bool slides = a.groups.are_columns() && wide.dilation == 1;
  for (int64_t line = begin; line < end; ++line) {
    const Pixel pixel = pixel_of(a.window, line * wide.out);
    const uint8_t* x = input<uint8_t>(data, kX) + pixel.image * a.window.ins() * a.channels;
    T* to = output<T>(data) + line * wide.out * a.pitch;
    slides ? slide_line<has_sums>(a, shared, x, pixel, to)
           : each_output<has_sums>(a, shared, x, pixel, to);
  }
  return {};
}

template <bool has_sums>
PhaseFn depthwise_into(DType out) {
  switch (out) {
    case DType::i32: return depthwise_lines<has_sums, int32_t>;
    case DType::f32: return depthwise_lines<has_sums, float>;
    case DType::u8: return depthwise_lines<has_sums, uint8_t>;
    default: return depthwise_lines<has_sums, int8_t>;
  }
}

}  // namespace

// ints: channels, lines and columns of the window.
Status qdepthwise_pack(const Call& call, Plan& plan) {
  auto* args = plan.make<PackArgs>();
  const Groups groups{call.ints[1], call.ints[2]};
  *args = {call.ints[0], groups, uint8_t(call.in[0].dtype == DType::u8 ? 128 : 0)};
  plan.args = args;
  plan.add(pack_blocks, (args->channels + kBlock - 1) / kBlock, groups.count() * kGroup * kBlock);
  return {};
}

// ints: type of the weights, then the window.
Status qdepthwise(const Call& call, Plan& plan) {
  auto* args = plan.make<DepthwiseArgs>();
  read_direct(*args, call);
  const Axis* axis = args->window.axis;
  args->groups = {axis[0].taps * axis[1].taps, axis[2].taps};
  args->n_groups = args->groups.count();
  args->n_params = (args->channels + kBlock - 1) / kBlock * kBlock;
  args->weight_bytes = args->n_params * args->n_groups * kGroup;
  args->position = interleaved;
  plan.args = static_cast<DirectConv*>(args);
  plan.local_bytes = args->n_params;
  if (Status status = plan_columns(*args, call, plan); !status.ok()) return status;
  const bool has_sums = args->product.has_row_sums;
  const int64_t width = axis[2].out, lines = args->window.batch * axis[0].out * axis[1].out;
  plan.add(
      has_sums ? depthwise_into<true>(args->product.out) : depthwise_into<false>(args->product.out),
      width == 0 ? 0 : lines, width * args->n_groups * args->channels / 16);
  return {};
}

}  // namespace sdx::SDX_ISA::int8
