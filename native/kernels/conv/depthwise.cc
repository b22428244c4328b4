// Depthwise convolutions, and others whose groups have few channels: vectors hold neighbouring
// output channels, whatever group they belong to, and each input channel of a group is one more
// tap. With one channel per group no gather is needed at all.
//
// Two ways to read the image: in place, where the pixels of a window fall into different cache
// sets, or from a ring buffer of lines in local memory, each copied once on the way down.
#include "kernels/conv/epilogue.h"
#include "kernels/conv/kernels.h"
#include "kernels/matmul/tile.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA {
namespace {

// Outputs at a time: 7 accumulators, 7 weights and a pixel fill 16 registers.
constexpr int kOuts = 7;

struct DepthwiseArgs;
struct Line;
struct OutputTile;
// Computes one line of outputs from the ring of staged lines.
using LineFn = void (*)(const DepthwiseArgs& a, const Line& line);
// Computes one vector of channels of a tile.
using VectorFn = void (*)(const DepthwiseArgs& a, const OutputTile& tile, const Data& data,
                          int64_t out_channel);

// A line of outputs. `staged` is the ring buffer; `slot` holds the line that the first tap reads.
struct Line {
  const float* staged;
  int64_t slot;
  const float* w;
  f32v bias;
  int64_t outs, width;  // outputs, and channels (lanes) that exist
  float* to;
  const float *start, *end;  // initial values and addends, or null
};

struct DepthwiseArgs {
  Window window;
  int64_t channels, out_channels;  // of input and output
  int64_t group_in, group_out;     // per group
  int64_t bands, chunks;           // tiles along lines and columns
  int64_t ring;                    // lines in the ring for each plane of taps
  int64_t pixels, line;            // pixels and floats of a staged line
  LineFn sum_line;
  VectorFn sum_in_place;  // null: lines are staged
  Epilogue epilogue;
};

// Lines [top, bottom) and columns [left, right) of a panel of channels.
struct OutputTile {
  int64_t image, deep, top, bottom, left, right, panel;
};

// Stores kOuts outputs from `at` on; those before `next` are stored already (the last group
// overlaps the one before). The slow path copies the accumulators, since activate() takes their
// address and they themselves must stay in registers.
SDX_INLINE void store_outs(const DepthwiseArgs& a, const Line& line, int64_t at, int64_t next,
                           const f32v (&acc)[kOuts]) {
  const int64_t stride = a.epilogue.out_row_stride, left = line.outs - at;
  float* to = line.to + at * stride;
  const f32v low = splat(a.epilogue.relu ? 0.0f : -kInf), high = splat(a.epilogue.high);
  if (left >= kOuts && line.width == kLanes && !a.epilogue.is_swish && line.start == nullptr &&
      line.end == nullptr) {
#pragma GCC unroll 8
    for (int t = 0; t < kOuts; ++t) store(to + t * stride, at_most(at_least(acc[t], low), high));
    return;
  }
  f32v outs[kOuts];
#pragma GCC unroll 8
  for (int t = 0; t < kOuts; ++t) outs[t] = acc[t];
  const int64_t first = next - at, n = left < kOuts ? left : kOuts;
  const Part lanes{int(line.width)};
  if (line.start != nullptr)
    for (int64_t t = first; t < n; ++t)
      outs[t] += load(line.start + (at + t) * a.out_channels, lanes);
  activate(a.epilogue, outs, kOuts);
  if (line.end != nullptr)
    for (int64_t t = first; t < n; ++t)
      outs[t] += load(line.end + (at + t) * a.out_channels, lanes);
  if (line.width == kLanes) {
    for (int64_t t = first; t < n; ++t) store(to + t * stride, outs[t]);
  } else {
    for (int64_t t = first; t < n; ++t) store(to + t * stride, outs[t], lanes);
  }
}

// Pixels of a line that kOuts outputs read.
template <int K, int S>
constexpr int kReach = (kOuts - 1) * S + K;

// Accumulates kOuts outputs over one line of K taps of stride S, both constants: each pixel is
// loaded once for all outputs that read it. pixel(j) is the address of the j-th of them.
template <int K, int S, class Pixel>
SDX_INLINE void add_pixels(Pixel&& pixel, const float* w, int64_t w_stride, f32v (&acc)[kOuts]) {
  f32v weights[K];
#pragma GCC unroll 8
  for (int k = 0; k < K; ++k) weights[k] = load(w + k * w_stride);
#pragma GCC unroll 32
  for (int j = 0; j < kReach<K, S>; ++j) {
    const f32v in = pinned(load(pixel(j)));
#pragma GCC unroll 8
    for (int t = 0; t < kOuts; ++t)
      if (j - t * S >= 0 && j - t * S < K) acc[t] += in * weights[j - t * S];
  }
}

// The same for staged pixels; K = 0 stands for any kernel width, stride and dilation.
template <int K, int S>
SDX_INLINE void add_taps(const Axis& axis, const float* x, const float* w, int64_t w_stride,
                         f32v (&acc)[kOuts]) {
  if constexpr (K > 0) {
    add_pixels<K, S>([&](int j) { return x + j * kLanes; }, w, w_stride, acc);
  } else {
    for (int64_t k = 0; k < axis.taps; ++k, x += axis.dilation * kLanes, w += w_stride) {
      const f32v weight = load(w);
#pragma GCC unroll 8
      for (int t = 0; t < kOuts; ++t) acc[t] += load(x + t * axis.stride * kLanes) * weight;
    }
  }
}

// One line of outputs, kOuts at a time; the last group is moved back to end with the line.
template <int K, int S>
void sum_line(const DepthwiseArgs& a, const Line& line) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t w_stride = a.group_in * kPanel;
  for (int64_t next = 0; next < line.outs; next += kOuts) {
    const bool is_short = next + kOuts > line.outs && line.outs >= kOuts;
    const int64_t at = is_short ? line.outs - kOuts : next;
    f32v acc[kOuts];
    for (f32v& s : acc) s = line.bias;
    const float* weights = line.w;
    for (int64_t z = 0; z < deep->taps; ++z) {
      for (int64_t y = 0, s = line.slot; y < high->taps; ++y, weights += wide->taps * w_stride) {
        const float* x = line.staged + (z * a.ring + s) * a.line + at * wide->stride * kLanes;
        for (int64_t c = 0; c < a.group_in; ++c)
          add_taps<K, S>(*wide, x + c * a.pixels * kLanes, weights + c * kPanel, w_stride, acc);
        s += high->dilation;
        if (s >= a.ring) s -= a.ring;
      }
    }
    store_outs(a, line, at, next, acc);
  }
}

// Input channels that a vector of outputs reads: lane j those from first + from[j] on.
struct InputLanes {
  int64_t first, n;  // first channel, and channels up to the last
  i32v from;
};

InputLanes input_lanes(const DepthwiseArgs& a, int64_t out_channel, int64_t width) {
  InputLanes source{out_channel / a.group_out * a.group_in, 0, i32v{}};
  for (int64_t j = 0; j < width; ++j)
    source.from[j] = int32_t((out_channel + j) / a.group_out * a.group_in - source.first);
  source.n = source.from[width - 1] + a.group_in;
  return source;
}

// Stages n pixels: for each input channel of a group a vector with that channel of every lane's
// group.
SDX_INLINE void stage_pixels(const DepthwiseArgs& a, const InputLanes& source, const float* x,
                             int64_t n, int64_t width, float* to) {
  x += source.first;
  const int64_t stride = a.pixels * kLanes;
  if (a.group_in == 1 && a.group_out == 1 && width == kLanes) {
    const int64_t below = a.window.axis[2].in * a.channels;  // prefetch the next line
    for (int64_t i = 0; i < n; ++i, x += a.channels) {
      __builtin_prefetch(x + below);
      store(to + i * kLanes, load(x));
    }
  } else if (source.n <= kLanes) {
    for (int64_t i = 0; i < n; ++i, x += a.channels) {
      const f32v all = source.n == kLanes ? load(x) : load(x, Part{int(source.n)});
      for (int64_t c = 0; c < a.group_in; ++c)
        store(to + c * stride + i * kLanes, permute(all, source.from + int32_t(c)));
    }
  } else {
    for (int64_t i = 0; i < n; ++i, x += a.channels)
      for (int64_t c = 0; c < a.group_in; ++c)
        for (int64_t j = 0; j < kLanes; ++j)
          to[c * stride + i * kLanes + j] = j < width ? x[source.from[j] + c] : 0;
  }
}

// One input line from pixel `left` on, zeros in the padding; `x` is null for a line of padding.
void stage_line(const DepthwiseArgs& a, const InputLanes& source, const float* x, int64_t left,
                int64_t width, float* to) {
  const int64_t in = a.window.axis[2].in;
  int64_t low = left < 0 ? -left : 0, high = in - left;
  low = x == nullptr || low > a.pixels ? a.pixels : low;
  high = high < low ? low : high > a.pixels ? a.pixels : high;
  for (int64_t c = 0; c < a.group_in; ++c) {
    float* row = to + c * a.pixels * kLanes;
    for (int64_t i = 0; i < low * kLanes; ++i) row[i] = 0;
    for (int64_t i = high * kLanes; i < a.pixels * kLanes; ++i) row[i] = 0;
  }
  if (low < high)
    stage_pixels(a, source, x + (left + low) * a.channels, high - low, width, to + low * kLanes);
}

// Input line `y` of every plane that the taps of one output plane read, into a slot of the ring.
void stage_lines(const DepthwiseArgs& a, const OutputTile& tile, const InputLanes& source,
                 const float* x, int64_t y, int64_t width, float* to) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  for (int64_t k = 0; k < deep->taps; ++k, to += a.ring * a.line) {
    const int64_t z = deep->input_index(tile.deep, k);
    const bool is_inside = z >= 0 && z < deep->in && y >= 0 && y < high->in;
    const int64_t number = (tile.image * deep->in + z) * high->in + y;
    const float* line = is_inside ? x + number * wide->in * a.channels : nullptr;
    stage_line(a, source, line, wide->input_index(tile.left, 0), width, to);
  }
}

// Index of the output pixel with which a tile's line begins.
SDX_INLINE int64_t row_of(const DepthwiseArgs& a, const OutputTile& tile, int64_t line) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  return ((tile.image * deep->out + tile.deep) * high->out + line) * wide->out + tile.left;
}

// Output line `o` of a vector of channels, without its inputs.
Line line_of(const DepthwiseArgs& a, const OutputTile& tile, const Data& data, int64_t out_channel,
             int64_t o) {
  const int64_t left = a.out_channels - out_channel, width = left < kLanes ? left : kLanes;
  const int64_t row = row_of(a, tile, o), depth = a.window.taps() * a.group_in;
  Line line{};
  line.w = input<float>(data, 1) + out_channel / kPanel * depth * kPanel + out_channel % kPanel;
  if (const float* bias = a.epilogue.bias(data))
    line.bias =
        width == kLanes ? load(bias + out_channel) : load(bias + out_channel, Part{int(width)});
  line.outs = tile.right - tile.left, line.width = width;
  line.to = a.epilogue.out_at(data, row, out_channel);
  line.start = a.epilogue.initial(data, row, out_channel),
  line.end = a.epilogue.residual(data, row, out_channel);
  return line;
}

// One vector of channels of a tile; the ring holds the lines under the window.
void sum_from_ring(const DepthwiseArgs& a, const OutputTile& tile, const Data& data,
                   int64_t out_channel) {
  const Axis* high = a.window.axis + 1;
  float* staged = reinterpret_cast<float*>(data.local);
  const int64_t left = a.out_channels - out_channel, width = left < kLanes ? left : kLanes;
  const InputLanes source = input_lanes(a, out_channel, width);
  const int64_t origin = high->input_index(tile.top, 0);
  int64_t next = origin;  // the first line that is not there yet
  for (int64_t o = tile.top; o < tile.bottom; ++o) {
    const int64_t first = high->input_index(o, 0), last = high->input_index(o, high->taps - 1);
    for (next = next < first ? first : next; next <= last; ++next)
      stage_lines(a, tile, source, input<float>(data, 0), next, width,
                  staged + (next - origin) % a.ring * a.line);
    Line line = line_of(a, tile, data, out_channel, o);
    line.staged = staged, line.slot = (first - origin) % a.ring;
    a.sum_line(a, line);
  }
}

alignas(SDX_VEC_BYTES) constexpr float kZeroPixel[kLanes] = {};

// Accumulates kOuts outputs from K lines of the image in place, from pixel `pixel_index` on; pixels
// in the padding are read from kZeroPixel.
template <int K, int S>
SDX_INLINE void add_lines(const DepthwiseArgs& a, const float* image, int64_t y,
                          int64_t pixel_index, const float* w, f32v (&acc)[kOuts]) {
  const Axis *high = a.window.axis + 1, *wide = high + 1;
  const bool is_inside = pixel_index >= 0 && pixel_index + kReach<K, S> <= wide->in;
  for (int k = 0; k < K; ++k, ++y, w += K * kPanel) {
    const bool is_line = uint64_t(y) < uint64_t(high->in);  // others are padding
    const float* x = image + ((is_line ? y : 0) * wide->in + pixel_index) * a.channels;
    if (is_inside && is_line) {
      add_pixels<K, S>([&](int j) { return x + j * a.channels; }, w, kPanel, acc);
    } else {
      const auto pixel = [&](int j) {
        const bool is_pixel = is_line && uint64_t(pixel_index + j) < uint64_t(wide->in);
        return is_pixel ? x + j * a.channels : kZeroPixel;
      };
      add_pixels<K, S>(pixel, w, kPanel, acc);
    }
  }
}

// One vector of channels of a tile, with pixels read in place.
template <int K, int S>
void sum_in_place(const DepthwiseArgs& a, const OutputTile& tile, const Data& data,
                  int64_t out_channel) {
  const Axis *high = a.window.axis + 1, *wide = high + 1;
  const float* image =
      input<float>(data, 0) + tile.image * a.window.ins() * a.channels + out_channel;
  for (int64_t o = tile.top; o < tile.bottom; ++o) {
    const Line line = line_of(a, tile, data, out_channel, o);
    const int64_t y = high->input_index(o, 0);
    for (int64_t next = 0; next < line.outs; next += kOuts) {
      const int64_t at = next + kOuts > line.outs ? line.outs - kOuts : next;
      f32v acc[kOuts];
      for (f32v& s : acc) s = line.bias;
      add_lines<K, S>(a, image, y, wide->input_index(tile.left + at, 0), line.w, acc);
      store_outs(a, line, at, next, acc);
    }
  }
}

OutputTile output_tile(const DepthwiseArgs& a, int64_t item) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t panels = panels_of(a.out_channels);
  OutputTile p;
  p.panel = item % panels, item /= panels;
  const int64_t chunk = item % a.chunks, band = item / a.chunks % a.bands;
  item /= a.chunks * a.bands;
  p.left = part_begin(wide->out, a.chunks, chunk);
  p.right = part_begin(wide->out, a.chunks, chunk + 1);
  p.top = part_begin(high->out, a.bands, band);
  p.bottom = part_begin(high->out, a.bands, band + 1);
  p.deep = item % deep->out, p.image = item / deep->out;
  return p;
}

Status compute_tiles(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const DepthwiseArgs*>(args);
  for (int64_t i = begin; i < end; ++i) {
    const OutputTile tile = output_tile(a, i);
    const int64_t low = tile.panel * kPanel;
    const int64_t high = low + kPanel < a.out_channels ? low + kPanel : a.out_channels;
    for (int64_t out_channel = low; out_channel < high; out_channel += kLanes) {
      const bool is_in_place = a.sum_in_place != nullptr && out_channel + kLanes <= a.out_channels;
      (is_in_place ? a.sum_in_place : sum_from_ring)(a, tile, data, out_channel);
    }
  }
  return {};
}

// Dispatch to the instantiation for a kernel width and stride.
LineFn line_fn(const Axis& wide) {
  const bool is_dense = wide.dilation == 1 && wide.stride <= 2;
  switch (is_dense ? wide.taps * 2 + wide.stride : 0) {
    case 3 * 2 + 1: return sum_line<3, 1>;
    case 3 * 2 + 2: return sum_line<3, 2>;
    case 5 * 2 + 1: return sum_line<5, 1>;
    case 5 * 2 + 2: return sum_line<5, 2>;
    case 7 * 2 + 1: return sum_line<7, 1>;
    default: return sum_line<0, 0>;
  }
}

// Reading in place needs channels whose pixels do not all map to one cache set (multiples of 512
// floats do), a dense square kernel, and tiles of at least kOuts outputs. Null otherwise.
VectorFn in_place_fn(const DepthwiseArgs& a) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  const bool is_flat = deep->in == 1 && deep->out == 1 && deep->taps == 1 && deep->begin == 0;
  const bool is_depthwise = a.group_in == 1 && a.group_out == 1 && a.channels % 512 != 0;
  const bool is_square = high->taps == wide->taps && high->dilation == 1 && wide->dilation == 1;
  const int64_t narrowest = wide->out / (a.chunks > 0 ? a.chunks : 1);
  if (!is_flat || !is_depthwise || !is_square || narrowest < kOuts || wide->stride > 2)
    return nullptr;
  switch (wide->taps * 2 + wide->stride) {
    case 3 * 2 + 1: return sum_in_place<3, 1>;
    case 3 * 2 + 2: return sum_in_place<3, 2>;
    case 5 * 2 + 1: return sum_in_place<5, 1>;
    case 5 * 2 + 2: return sum_in_place<5, 2>;
    case 7 * 2 + 1: return sum_in_place<7, 1>;
    default: return nullptr;
  }
}

// Enough items to balance over threads, of as many lines as possible: neighbouring tiles read the
// lines at their border twice.
void cut(DepthwiseArgs& a) {
  constexpr int64_t kWidest = 128, kFewest = 6, kEnough = 16;
  const Axis *high = a.window.axis + 1, *wide = high + 1;
  a.chunks = (wide->out + kWidest - 1) / kWidest;
  const int64_t others =
      a.window.batch * a.window.axis[0].out * a.chunks * panels_of(a.out_channels);
  const int64_t most = (high->out + kFewest - 1) / kFewest;
  const int64_t min_bands = others > 0 ? (kEnough + others - 1) / others : 1;
  a.bands = min_bands < most ? min_bands : most;
  a.ring = (high->taps - 1) * high->dilation + 1;
  const int64_t part = a.chunks > 0 ? (wide->out + a.chunks - 1) / a.chunks : 0;
  const int64_t outs = part < kOuts ? kOuts : part;
  a.pixels = (outs - 1) * wide->stride + (wide->taps - 1) * wide->dilation + 1;
  a.line = a.pixels * a.group_in * kLanes;
}

}  // namespace

// ints: the window, group, epilogue. Inputs: x, weights packed as if there were one group, operands
// of the epilogue.
Status conv_depthwise_f32(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  const int at = 4 * (x.rank - 2);
  const int64_t group = call.ints[at];
  auto* args = plan.make<DepthwiseArgs>();
  args->window = read_window(x, y, call.ints);
  args->channels = x.dim(-1), args->out_channels = y.dim(-1);
  args->group_in = args->channels / group, args->group_out = args->out_channels / group;
  args->sum_line = line_fn(args->window.axis[2]);
  cut(*args);
  args->sum_in_place = in_place_fn(*args);
  plan.args = args;
  args->epilogue = read_epilogue(call, at + 1, plan);
  plan.local_bytes = args->window.axis[0].taps * args->ring * args->line * int64_t(sizeof(float));
  const int64_t panels = panels_of(args->out_channels);
  const int64_t items =
      args->window.batch * args->window.axis[0].out * args->bands * args->chunks * panels;
  const int64_t sums = args->window.batch * args->window.outs() * panels * kPanel;
  const int64_t work = sums * args->window.taps() * args->group_in / kLanes;
  plan.add(compute_tiles, items, items > 0 ? work / items : 0);
  add_program<DepthwiseArgs>(args->epilogue, plan);
  return {};
}

}  // namespace sdx::SDX_ISA
