// Convolutions of 8-bit channels-last images in groups of few channels, which would leave most of a
// panel of gemm_int8.h empty: a vector holds the outputs of several groups.
//
// A vector's lane is an output channel, and reads four input channels of its group at a time: the
// bytes of neighbouring groups are loaded at once and permuted to the lanes of their outputs.
// Groups of 1, 2, 3 or 6 channels are joined until they have whole quads of channels, with weights
// of zero for the channels of others. Weights are packed in blocks of 16 outputs: for each tap and
// four channels, 64 bytes; then ones for the channels of each output's own group. Zero points of
// the weights need the sums of windows: a vector whose lanes read one group takes one that was
// computed for the whole group, others multiply by the ones. Images are copied with their padding,
// so that every window is inside.
#include "kernels/quantize/direct_int8.h"
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/padded_int8.h"
#include "kernels/quantize/requantize.h"
#include "kernels/quantize/row_sums_int8.h"

namespace sdx::SDX_ISA::int8 {
namespace {

constexpr int64_t kBlock = 16;  // outputs, whatever the ISA

// Groups as a model has them, and joined ones. A quad is four input channels, the operands of a
// dot4. A step is a joined group, or a block of whole ones if they are narrow.
struct Groups {
  int64_t n, channels, out_channels;  // channels per group
  int64_t taps;

  SDX_INLINE int64_t n_joined() const { return channels % 4 == 0 ? 1 : channels % 2 == 0 ? 2 : 4; }
  SDX_INLINE int64_t channel_quads() const { return channels * n_joined() / kGroup; }
  SDX_INLINE int64_t joined_out_channels() const { return out_channels * n_joined(); }
  SDX_INLINE bool are_narrow() const { return joined_out_channels() <= kBlock; }
  // Outputs of a block of whole groups, or of a group.
  SDX_INLINE int64_t per_step() const {
    return are_narrow() ? kBlock / joined_out_channels() * joined_out_channels()
                        : joined_out_channels();
  }
  SDX_INLINE int64_t n_steps() const { return (n * out_channels + per_step() - 1) / per_step(); }
  SDX_INLINE int64_t blocks_per_step() const { return (per_step() + kBlock - 1) / kBlock; }
  SDX_INLINE int64_t block_bytes() const { return (taps + 1) * channel_quads() * kGroup * kBlock; }
  SDX_INLINE int64_t weight_bytes() const { return n_steps() * blocks_per_step() * block_bytes(); }
};

struct PackArgs {
  Groups groups;
  uint8_t flip;
};

// Packs one output: lane `lane` of the block at `to`. Returns the sum of its weights.
int32_t pack_output(const PackArgs& a, const uint8_t* from, int64_t channel, int64_t lane,
                    uint8_t* to) {
  const Groups& g = a.groups;
  const int64_t own = channel / g.out_channels % g.n_joined() * g.channels;
  int32_t sum = 0;
  for (int64_t c = 0; c < g.channels; ++c) {
    const int64_t quad = (own + c) / kGroup, byte = (own + c) % kGroup;
    const auto at = [&](int64_t tap) -> uint8_t& {
      return to[((tap * g.channel_quads() + quad) * kBlock + lane) * kGroup + byte];
    };
    for (int64_t tap = 0; tap < g.taps; ++tap) {
      const uint8_t v = from[(channel * g.channels + c) * g.taps + tap] ^ a.flip;
      at(tap) = v;
      sum += int8_t(v);
    }
    at(g.taps) = 1;
  }
  return sum;
}

// Packs weights [out_channels, channels, taps]. Items are steps.
Status pack_steps(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PackArgs*>(args);
  const Groups& g = a.groups;
  auto* sums = reinterpret_cast<int32_t*>(output<uint8_t>(data) + g.weight_bytes());
  const int64_t bytes = g.blocks_per_step() * g.block_bytes();
  for (int64_t step = begin; step < end; ++step) {
    uint8_t* to = output<uint8_t>(data) + step * bytes;
    memset(to, 0, size_t(bytes));
    for (int64_t i = 0; i < g.per_step(); ++i) {
      const int64_t channel = step * g.per_step() + i;
      if (channel >= g.n * g.out_channels) break;
      uint8_t* block = to + i / kBlock * g.block_bytes();
      sums[channel] = pack_output(a, input<uint8_t>(data, 0), channel, i % kBlock, block);
    }
  }
  return {};
}

struct GroupedArgs : DirectConv {
  Groups groups;
  bool is_padded;
  int64_t images_at;  // scratch offset of padded images
  int64_t line_bytes, image_bytes;
};

// Where the lanes of a vector read: `quads` further, each four bytes. One if all read the same.
struct Lanes {
  i32v quads;
  int64_t n;  // quads that are read
};

template <bool is_same>
SDX_INLINE i32v load_lanes(const uint8_t* from, const Lanes& lanes) {
  if constexpr (is_same) return splat4(from);
#if defined(__AVX512F__)
  const auto mask = __mmask16((1u << lanes.n) - 1);
  return (i32v)_mm512_maskz_permutexvar_epi32(__mmask16(-1), (__m512i)lanes.quads,
                                              _mm512_maskz_loadu_epi32(mask, from));
#else
  i32v v;
  for (int i = 0; i < kLanes; ++i) {
    int32_t quad;
    memcpy(&quad, from + int64_t(lanes.quads[i]) * kGroup, sizeof quad);
    v[i] = quad;
  }
  return v;
#endif
}

// V vectors of outputs of one line that read the same lanes.
template <class T>
struct Strip {
  const GroupedArgs* args;
  const uint8_t* x;  // the first window's first tap
  const uint8_t* weights[2];
  const int32_t* window_sums;  // of the group that all lanes read, if they do
  Lanes lanes;
  Target<T> target;
};

// Subtracts the zero points of the weights times the sums of the windows.
template <int R, int V>
SDX_INLINE void subtract_zero_points(i32v (&total)[R][V], const i32v (&sums)[R],
                                     const ColumnParams& columns) {
  for (int v = 0; v < V; ++v) {
    const u32v zero = (u32v)load(columns.zero + v * kLanes);
    for (int r = 0; r < R; ++r) total[r][v] = (i32v)((u32v)total[r][v] - zero * (u32v)sums[r]);
  }
}

// R neighbouring pixels from `pixel` on.
template <int R, int V, bool is_same, bool has_sums, class T>
void run_tile(const Strip<T>& strip, int64_t pixel) {
  const Strip<T> s = strip;  // a copy: byte stores cannot alias it
  const GroupedArgs& a = *s.args;
  const Axis high = a.window.axis[1], wide = a.window.axis[2];
  const int64_t step = wide.stride * a.channels, quads = a.groups.channel_quads();
  const int64_t unit = kBlock * kGroup, ones_at = a.groups.taps * quads * unit;
  const i32v flip = splat(int32_t(a.product.flip * 0x01010101u));
  const uint8_t *weights = s.weights[0], *second = s.weights[V - 1];
  constexpr bool has_dots = has_sums && !is_same;
  i32v total[R][V], sums[R] = {};
  if constexpr (has_sums && is_same)
    for (int r = 0; r < R; ++r) sums[r] = splat(s.window_sums[pixel + r]);
  for (int v = 0; v < V; ++v)
    for (int r = 0; r < R; ++r) total[r][v] = load(s.target.columns.offset + v * kLanes);
  for (int64_t line = 0; line < high.taps; ++line)
    for (int64_t tap = 0; tap < wide.taps; ++tap) {
      const uint8_t* at = s.x + pixel * step + line * high.dilation * a.line_bytes +
                          tap * wide.dilation * a.channels;
      for (int64_t f = 0; f < quads; ++f, at += kGroup, weights += unit, second += unit) {
        i32v w[V], ones;
        memcpy(&w[0], weights, sizeof w[0]);
        memcpy(&w[V - 1], second, sizeof w[0]);
        if constexpr (has_dots) memcpy(&ones, s.weights[0] + ones_at + f * unit, sizeof ones);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const i32v x = load_lanes<is_same>(at + r * step, s.lanes) ^ flip;
          if constexpr (has_dots) sums[r] = dot4(sums[r], x, ones);
          for (int v = 0; v < V; ++v) total[r][v] = dot4(total[r][v], x, w[v]);
        }
      }
    }
  if constexpr (has_sums) subtract_zero_points(total, sums, s.target.columns);
  if (s.target.n >= V * kLanes)
    requantize_tile<true>(total, s.target, pixel, 0);
  else
    requantize_tile<false>(total, s.target, pixel, 0);
}

template <int V, bool is_same, bool has_sums, class T>
void run_strip(const Strip<T>& s, int64_t n) {
  int64_t i = 0;
  if constexpr (SDX_VEC_BYTES == 64) {
    if (n % 7 == 0 && n % 8 != 0)  // the lines of ImageNet's smaller images
      for (; i < n; i += 7) run_tile<7, V, is_same, has_sums>(s, i);
    for (; i + 8 <= n; i += 8) run_tile<8, V, is_same, has_sums>(s, i);
  }
  for (; i + 4 <= n; i += 4) run_tile<4, V, is_same, has_sums>(s, i);
  if (i + 2 <= n) run_tile<2, V, is_same, has_sums>(s, i), i += 2;
  if (i < n) run_tile<1, V, is_same, has_sums>(s, i);
}

// The lanes of outputs [first, first + n) of a block of narrow groups.
SDX_INLINE Lanes lanes_of(const Groups& g, int64_t first, int64_t n) {
  Lanes lanes{{}, 1};
  for (int64_t i = 0; i < kLanes && i < n; ++i) {
    const int64_t quad = ((first + i) / g.joined_out_channels() - first / g.joined_out_channels()) *
                         g.channel_quads();
    lanes.quads[i] = int32_t(quad);
    lanes.n = quad + 1;
  }
  return lanes;
}

// Sums of the windows of a line over the channels of one group, of which x is the first. Sums of
// columns of the windows follow them in memory.
void sum_windows(const GroupedArgs& a, const uint8_t* x, int32_t* to) {
  const Axis &high = a.window.axis[1], &wide = a.window.axis[2];
  const Rows pixels{x, a.channels, a.groups.channel_quads(), int32_t(a.product.flip * 0x01010101u),
                    Runs{high.taps, high.dilation * a.line_bytes}};
  int32_t* columns = to + wide.out;
  sum_rows(pixels, a.groups.channels, reach_of(wide), columns);
  for (int64_t i = 0; i < wide.out; ++i, columns += wide.stride) {
    to[i] = columns[0];
    for (int64_t tap = 1; tap < wide.taps; ++tap) to[i] += columns[tap * wide.dilation];
  }
}

// A step's outputs for one line, one or two vectors at a time. Lanes that read the same quads still
// have sums of their own where groups are joined. `sums` is memory for sum_windows.
template <bool has_sums, class T>
void run_step(const GroupedArgs& a, Strip<T> s, const uint8_t* packed, const ColumnParams& columns,
              int64_t step, int32_t* sums, T* to) {
  const Groups& g = a.groups;
  const int64_t low = step * g.per_step(), left = a.out_channels - low;
  const int64_t n = left < g.per_step() ? left : g.per_step(), width = a.window.axis[2].out;
  const bool has_pairs = g.n_joined() == 1, has_own_sums = has_sums && !has_pairs;
  int64_t summed = -1;  // the group that the sums belong to
  s.window_sums = sums;
  const uint8_t *x = s.x, *blocks = packed + step * g.blocks_per_step() * g.block_bytes();
  const auto weights_at = [&](int64_t i) {
    return blocks + i / kBlock * g.block_bytes() + i % kBlock * kGroup;
  };
  for (int64_t i = 0; i < n;) {
    const int64_t j = low + i;
    s.target.columns = {columns.scale + j, columns.shift + j, columns.offset + j, columns.zero + j};
    s.target.to = to + j;
    s.target.n = n - i;
    const int64_t group = j / g.joined_out_channels();
    s.x = x + group * g.channel_quads() * kGroup;
    s.lanes = lanes_of(g, i, n - i);
    s.weights[0] = weights_at(i);
    const bool is_same = s.lanes.n == 1 && !has_own_sums;
    if (has_sums && is_same && summed != group) {
      sum_windows(a, s.x, sums);
      summed = group;
    }
    i += kLanes;
    const int64_t last = i + kLanes < n ? i + kLanes : n;  // of a pair, whose second may be partial
    if (!is_same) {
      run_strip<1, false, has_sums>(s, width);
    } else if (has_pairs && i < n && group == (low + last - 1) / g.joined_out_channels()) {
      s.weights[1] = weights_at(i);
      run_strip<2, true, has_sums>(s, width);
      i += kLanes;
    } else {
      s.target.n = s.target.n < kLanes ? s.target.n : kLanes;
      run_strip<1, true, has_sums>(s, width);
    }
  }
}

Status pad_images(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = static_cast<const GroupedArgs&>(*static_cast<const DirectConv*>(args));
  auto* to = reinterpret_cast<uint8_t*>(data.scratch + a.images_at);
  for (int64_t i = begin; i < end; ++i)
    copy_padded_line(a.window, a.channels, data, i, to + i * a.line_bytes);
  return {};
}

// Item: one line of output pixels.
template <bool has_sums, class T>
Status grouped_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = static_cast<const GroupedArgs&>(*static_cast<const DirectConv*>(args));
  const Axis &high = a.window.axis[1], &wide = a.window.axis[2];
  std::byte* memory = column_memory(a, data);
  const ColumnParams columns = columns_of(a, memory);
  const auto* padded = reinterpret_cast<const uint8_t*>(data.scratch + a.images_at);
  const uint8_t* images = a.is_padded ? padded : input<uint8_t>(data, kX);
  const Output out = *reinterpret_cast<Output*>(memory);
  Strip<T> s{&a, nullptr, {}, nullptr, {}, {{}, out, nullptr, a.pitch, 0}};
  const int64_t skipped =
      a.is_padded ? 0 : high.begin * a.line_bytes + wide.begin * a.channels;  // not padding here
  for (int64_t item = begin; item < end; ++item) {
    s.x = images + item / high.out * a.image_bytes + skipped +
          item % high.out * high.stride * a.line_bytes;
    for (int64_t step = 0; step < a.groups.n_steps(); ++step)
      run_step<has_sums>(a, s, input<uint8_t>(data, kW), columns, step,
                         reinterpret_cast<int32_t*>(data.local),
                         output<T>(data) + item * wide.out * a.pitch);
  }
  return {};
}

template <bool has_sums>
PhaseFn grouped_into(DType out) {
  switch (out) {
    case DType::i32: return grouped_lines<has_sums, int32_t>;
    case DType::f32: return grouped_lines<has_sums, float>;
    case DType::u8: return grouped_lines<has_sums, uint8_t>;
    default: return grouped_lines<has_sums, int8_t>;
  }
}

}  // namespace

// ints: groups, channels and output channels of each, taps.
Status qgrouped_pack(const Call& call, Plan& plan) {
  auto* args = plan.make<PackArgs>();
  *args = {{call.ints[0], call.ints[1], call.ints[2], call.ints[3]},
           uint8_t(call.in[0].dtype == DType::u8 ? 128 : 0)};
  plan.args = args;
  const Groups& g = args->groups;
  plan.add(pack_steps, g.n_steps(), g.blocks_per_step() * g.block_bytes());
  return {};
}

// ints: type of the weights, the window, groups.
Status qgrouped(const Call& call, Plan& plan) {
  auto* args = plan.make<GroupedArgs>();
  read_direct(*args, call);
  const Window& w = args->window;
  const Axis &high = w.axis[1], &wide = w.axis[2];
  const int64_t n = call.ints[1 + 4 * (call.in[kX].rank - 2)];
  args->groups = {n, args->channels / n, args->out_channels / n, w.taps()};
  args->product.depth = w.taps() * args->groups.channels;
  args->n_params = (args->out_channels + 2 * kBlock) / kBlock * kBlock;  // whole vectors are read
  args->weight_bytes = args->groups.weight_bytes();
  plan.args = static_cast<DirectConv*>(args);
  if (Status status = plan_columns(*args, call, plan); !status.ok()) return status;
  args->is_padded = !stays_inside(high) || !stays_inside(wide);
  args->images_at = (plan.scratch_bytes + 63) / 64 * 64;
  const int64_t height = args->is_padded ? reach_of(high) : high.in;
  args->line_bytes = (args->is_padded ? reach_of(wide) : wide.in) * args->channels;
  args->image_bytes = height * args->line_bytes;
  const bool is_empty = high.out == 0 || wide.out == 0;
  if (args->is_padded && !is_empty) {
    plan.scratch_bytes = args->images_at + w.batch * args->image_bytes;
    plan.add(pad_images, w.batch * height, args->line_bytes / 32);
  }
  const bool has_sums = args->product.has_row_sums;
  if (has_sums && !is_empty)
    plan.local_bytes = (wide.out + reach_of(wide)) * int64_t(sizeof(int32_t));
  const DType out = args->product.out;
  plan.add(has_sums ? grouped_into<true>(out) : grouped_into<false>(out),
           is_empty ? 0 : w.batch * high.out,
           wide.out * args->groups.weight_bytes() / (kBlock * kGroup));
  return {};
}

}  // namespace sdx::SDX_ISA::int8
