// Direct convolution with few output channels (up to twelve), for which panels of 32 would be
// mostly padding: vectors hold neighbouring outputs of a line instead, and weights are broadcast
// scalars.
//
// Neighbouring outputs must read neighbouring floats. Element c of tap k of output o is (o * stride
// + k * dilation) * channels + c floats after the first, so a line is deinterleaved into stride *
// channels streams: in each, what outputs o, o + 1, ... multiply by the same weight is contiguous.
// Deinterleaved lines are cached and reused by the output lines below.
#include "kernels/conv/epilogue.h"
#include "kernels/conv/kernels.h"
#include "kernels/matmul/pack.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA {
namespace {

struct FewChannelsArgs {
  Window window;
  int64_t channels, out_channels;
  int64_t streams, length;  // streams of a line, and floats of a stream
  int64_t depth;            // elements of a window in one line
  int64_t halo;             // elements of a stream that windows read past the last output's
  int64_t band, bands;      // output lines of a tile, and tiles along the lines
  int64_t span;             // image lines that those read, in one plane
  int64_t chunks;           // tiles along a line
  const int64_t* at;        // offset in the streams of each element of a window's line
  Epilogue epilogue;
  int64_t flags_at, acc_at, chain_at;  // offsets in local memory

  SDX_INLINE int64_t line_floats() const { return streams * length; }
};

// Outputs [left, right) of lines [top, bottom) of one plane.
struct OutputTile {
  int64_t image, deep, top, bottom, left, right;
};

OutputTile output_tile(const FewChannelsArgs& a, int64_t item) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t chunk = item % a.chunks, band = item / a.chunks % a.bands;
  const int64_t plane = item / a.chunks / a.bands;
  return {plane / deep->out,
          plane % deep->out,
          part_begin(high->out, a.bands, band),
          part_begin(high->out, a.bands, band + 1),
          part_begin(wide->out, a.chunks, chunk),
          part_begin(wide->out, a.chunks, chunk + 1)};
}

// Elements [low, high) of each of P streams, `length` floats apart.
template <int P>
void deinterleave(const float* x, int64_t low, int64_t high, float* to, int64_t length) {
  for (int64_t q = low; q < high; ++q)
    for (int r = 0; r < P; ++r) to[r * length + q] = x[q * P + r];
}

// One image line, from float `from` on, as streams of n elements; `x` is null for a line of
// padding.
void deinterleave_line(const FewChannelsArgs& a, const float* x, int64_t from, int64_t n,
                       float* to) {
  const int64_t size = a.window.axis[2].in * a.channels, p = a.streams;
  const auto within = [&](int64_t q) { return q < 0 ? 0 : q > n ? n : q; };
  // Elements [low, high) are inside the line for every stream: no bounds check.
  int64_t low = within(from < 0 ? (-from + p - 1) / p : 0), high = low;
  if (x != nullptr && size - from >= p) high = within((size - from) / p);
  if (high < low) high = low;
  for (int64_t r = 0; r < p; ++r) {
    const auto single = [&](int64_t q) {
      const int64_t i = from + q * p + r;
      to[r * a.length + q] = x != nullptr && i >= 0 && i < size ? x[i] : 0;
    };
    for (int64_t q = 0; q < low; ++q) single(q);
    for (int64_t q = high; q < n; ++q) single(q);
  }
  if (low == high) return;
  const float* first = x + from;
  switch (p) {
    case 1: memcpy(to + low, first + low, size_t(high - low) * sizeof(float)); break;
    case 2: return deinterleave<2>(first, low, high, to, a.length);
    case 3: return deinterleave<3>(first, low, high, to, a.length);
    default: copy_matrix(first + low * p, 1, p, p, high - low, to + low, a.length);
  }
}

// Deinterleaved lines of a tile, each filled when the first output reads it.
struct LineCache {
  const FewChannelsArgs& a;
  const OutputTile& tile;
  const float* image;
  float* lines;
  char* is_cached;

  SDX_INLINE const float* line(int64_t out, int64_t z_tap, int64_t y_tap) const {
    const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
    const int64_t z = deep->input_index(tile.deep, z_tap), y = high->input_index(out, y_tap);
    const int64_t slot = z_tap * a.span + y - high->input_index(tile.top, 0);
    float* to = lines + slot * a.line_floats();
    if (is_cached[slot] != 0) return to;
    is_cached[slot] = 1;
    const bool is_inside = z >= 0 && z < deep->in && y >= 0 && y < high->in;
    const int64_t number = (tile.image * deep->in + z) * high->in + y;
    deinterleave_line(a, is_inside ? image + number * wide->in * a.channels : nullptr,
                      wide->input_index(tile.left, 0) * a.channels, tile.right - tile.left + a.halo,
                      to);
    return to;
  }
};

// n outputs of a line from `o` on, and their destination.
struct Run {
  int64_t out, row, o, n;
  Target to;
};

// Adds bias and initial values, applies the bounds, and transposes [channel][output] to the
// output's [output][channel].
void store_outputs(const FewChannelsArgs& a, const Data& data, const Run& run, float* outs,
                   int64_t stride) {
  const float *bias = a.epilogue.bias(data), *start = a.epilogue.initial(data, run.row + run.o, 0);
  const f32v low = splat(a.epilogue.relu ? 0.0f : -kInf), high = splat(a.epilogue.high);
  for (int64_t m = 0; m < a.out_channels; ++m) {
    float* row = outs + m * stride;
    const f32v more = splat(bias == nullptr ? 0.0f : bias[m]);
    if (start != nullptr)
      for (int64_t i = 0; i < run.n; ++i) row[i] += start[i * a.out_channels + m];
    for (int64_t i = 0; i < run.n; i += kLanes)
      store(row + i, at_most(at_least(load(row + i) + more, low), high));
  }
  float* y = run.to.c + run.o * run.to.ldc;
  if (a.out_channels == 1 && run.to.ldc == 1) {
    memcpy(y, outs, size_t(run.n) * sizeof(float));
  } else {
    copy_matrix(outs, 1, stride, run.n, a.out_channels, y, run.to.ldc);
  }
}

// Accumulators of M output channels by V vectors of outputs. The layer may have fewer channels: the
// packed weights of the others are zero.
template <int M, int V>
SDX_INLINE void accumulate_outputs(const LineCache& cache, const Data& data, const Run& run) {
  const FewChannelsArgs& a = cache.a;
  f32v acc[M][V] = {};
  const float* w = input<float>(data, 1);
  for (int64_t z = 0; z < a.window.axis[0].taps; ++z)
    for (int64_t y = 0; y < a.window.axis[1].taps; ++y) {
      const float* line = cache.line(run.out, z, y) + run.o;
      for (int64_t d = 0; d < a.depth; ++d, w += kPanel) {
        f32v in[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) in[v] = pinned(load(line + a.at[d] + v * kLanes));
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) acc[m][v] += in[v] * w[m];
      }
    }
  float outs[M * V * kLanes];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(outs + (m * V + v) * kLanes, acc[m][v]);
  store_outputs(a, data, run, outs, V * kLanes);
}

// One line of outputs: V vectors at a time, then single vectors.
template <int M, int V>
void compute_line(const LineCache& cache, const Data& data, Run run, int64_t n) {
  constexpr int64_t kBlock = V * kLanes;
  for (; run.o < n; run.o += run.n) {
    const int64_t left = n - run.o;
    run.n = left < kBlock ? left : kBlock;
    if (left > kBlock - kLanes) {
      accumulate_outputs<M, V>(cache, data, run);
      continue;
    }
    run.n = left < kLanes ? left : kLanes;
    accumulate_outputs<M, 1>(cache, data, run);
  }
}

constexpr int kAccumulators =
    SDX_VEC_BYTES == 64 ? 24 : 12;  // vectors of them that stay in registers

template <int M>
Status compute_tiles(const void* args, const Data& data, int64_t begin, int64_t end) {
  constexpr int V = kAccumulators / M < 1 ? 1 : kAccumulators / M > 8 ? 8 : kAccumulators / M;
  const auto& a = *static_cast<const FewChannelsArgs*>(args);
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  auto* is_cached = reinterpret_cast<char*>(data.local + a.flags_at);
  for (int64_t item = begin; item < end; ++item) {
    const OutputTile p = output_tile(a, item);
    const LineCache cache{a, p, input<float>(data, 0), reinterpret_cast<float*>(data.local),
                          is_cached};
    memset(is_cached, 0, size_t(deep->taps * a.span));
    const int64_t n = p.right - p.left;
    for (int64_t o = p.top; o < p.bottom; ++o) {
      const int64_t line = (p.image * deep->out + p.deep) * high->out + o;
      const int64_t row = line * wide->out + p.left;
      Target to{a.epilogue.out_at(data, row, 0), a.epilogue.out_row_stride};
      if (a.epilogue.residual_operand >=
          0)  // the addend may share the output's bytes: buffer the results
        to = {reinterpret_cast<float*>(data.local + a.acc_at), a.out_channels};
      compute_line<M, V>(cache, data, {o, row, 0, 0, to}, n);
      run_epilogue(a.epilogue, data, {row, n, 0, a.out_channels}, to, data.local + a.chain_at);
    }
  }
  return {};
}

// Channel counts that accumulate_outputs is instantiated for.
constexpr int64_t padded(int64_t out_channels) {
  return out_channels <= 4 ? out_channels : out_channels <= 6 ? 6 : out_channels <= 8 ? 8 : 12;
}

PhaseFn tile_phase(int64_t out_channels) {
  switch (padded(out_channels)) {
    case 1: return compute_tiles<1>;
    case 2: return compute_tiles<2>;
    case 3: return compute_tiles<3>;
    case 4: return compute_tiles<4>;
    case 6: return compute_tiles<6>;
    case 8: return compute_tiles<8>;
    default: return compute_tiles<12>;
  }
}

constexpr int64_t kCacheFloats = 64 * 1024;  // deinterleaved floats of a tile: 256 KB of L2

// Chooses tiles: lines as wide as their deinterleaved input stays in L2, and as many lines together
// as fit next to it. False without memory for the table.
bool cut(FewChannelsArgs& a, Plan& plan) {
  constexpr int64_t kWidest = 1024, kNarrowest = 64, kEnough = 8;
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  a.streams = wide->stride * a.channels;
  a.depth = wide->taps * a.channels;
  a.halo = ((wide->taps - 1) * wide->dilation * a.channels + a.channels - 1) / a.streams;
  const int64_t lines = (high->taps - 1) * high->dilation + 1;
  int64_t most = kCacheFloats / (deep->taps * lines * a.streams) - a.halo;
  most = most > kWidest ? kWidest : most < kNarrowest ? kNarrowest : most;
  a.chunks = (wide->out + most - 1) / most;
  const int64_t outs = wide->out < most ? wide->out : most;
  a.length = (outs + kLanes - 1) / kLanes * kLanes + a.halo;
  const int64_t max_lines = kCacheFloats / (deep->taps * a.line_floats());
  a.band = max_lines > lines ? (max_lines - lines) / high->stride + 1 : 1;
  const int64_t others = a.window.batch * deep->out * a.chunks;
  const int64_t min_bands = others > 0 && others < kEnough ? (kEnough + others - 1) / others : 1;
  const int64_t least = (high->out + a.band - 1) / a.band;
  a.bands = min_bands > least ? min_bands : least;
  a.bands = a.bands > high->out ? high->out : a.bands;
  a.band = a.bands > 0 ? (high->out + a.bands - 1) / a.bands : 0;
  a.span = (a.band - 1) * high->stride + lines;
  auto* at = plan.table<int64_t>(size_t(a.depth));
  if (at == nullptr) return false;
  for (int64_t d = 0; d < a.depth; ++d) {
    const int64_t place = d / a.channels * wide->dilation * a.channels + d % a.channels;
    at[d] = place % a.streams * a.length + place / a.streams;
  }
  a.at = at;
  return true;
}

// Cost model: whether vectors of outputs save more than deinterleaving costs, and the cache is not
// too large. A panel row counts 1/8 more than its FMAs, since implicit GEMM gathers it first.
bool is_worth_it(const FewChannelsArgs& a) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t lines = high->taps * a.band < a.span ? high->taps * a.band : a.span;
  if (deep->taps * a.span * a.line_floats() > 4 * kCacheFloats) return false;
  const auto vectors = [](int64_t n) { return (n + kLanes - 1) / kLanes; };
  const int64_t depth = deep->taps * high->taps * a.depth;
  const int64_t copies = deep->taps * lines * a.streams * wide->out;
  const int64_t channel_vectors = a.band * depth * padded(a.out_channels) * vectors(wide->out);
  const int64_t panel_vectors = a.band * depth * vectors(a.out_channels) * wide->out;
  return channel_vectors + copies <= panel_vectors + panel_vectors / 8;
}

}  // namespace

// ints: the window, group, epilogue. Inputs: x, packed weights, operands of the epilogue.
Status conv_few_channels_f32(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  auto* a = plan.make<FewChannelsArgs>();
  a->window = read_window(x, y, call.ints);
  a->channels = x.dim(-1), a->out_channels = y.dim(-1);
  if (!cut(*a, plan)) return no_table();
  if (!is_worth_it(*a)) return conv_f32(call, plan);
  plan.args = a;
  a->epilogue = read_epilogue(call, 4 * (x.rank - 2) + 1, plan);
  const auto halo = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const int64_t lines = a->window.axis[0].taps * a->span, floats = lines * a->line_floats();
  a->flags_at = halo(floats * int64_t(sizeof(float)));
  a->acc_at = halo(a->flags_at + lines);
  a->chain_at = a->acc_at;
  if (a->epilogue.residual_operand >= 0)
    a->chain_at = halo(a->acc_at + a->out_channels * a->length * int64_t(sizeof(float)));
  plan.local_bytes = a->chain_at + chain_local_bytes(a->epilogue.chain);
  const int64_t taps = a->window.axis[0].taps * a->window.axis[1].taps;
  plan.add(tile_phase(a->out_channels),
           a->window.batch * a->window.axis[0].out * a->bands * a->chunks,
           floats / 2 + a->length * a->band * taps * a->depth * a->out_channels / kLanes);
  return {};
}

}  // namespace sdx::SDX_ISA
