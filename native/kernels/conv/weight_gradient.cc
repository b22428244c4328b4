// The gradient of a convolution by its weights, as an implicit GEMM over channels-first images:
//   dw[o, (c, t)] = sum over pixels p of dy[o, p] * im2col(x)[(c, t), p]
// Rows of A are the rows (c, t) of im2col, which in channels-first images are runs of contiguous
// pixels; they are made block by block. B is dy, packed once into panels of 32 output channels.
#include "kernels/conv/kernels.h"
#include "kernels/conv/pack.h"
#include "kernels/plane_window.h"

namespace sdx::SDX_ISA {
namespace {

struct WeightGradientArgs {
  Window window;
  int64_t group, channels, out_channels;  // the channels of one group
  Split split;                            // of one group

  SDX_INLINE int64_t rows() const { return channels * window.taps(); }
  SDX_INLINE int64_t pixels() const { return window.batch * window.outs(); }
};

// Items: one image of one panel of one group of dy, as [pixel][32].
Status pack_gradient(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WeightGradientArgs*>(args);
  const int64_t panels = panels_of(a.out_channels), outs = a.window.outs();
  WeightTile tile;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t image = item % a.window.batch, panel = item / a.window.batch % panels;
    const int64_t group = item / a.window.batch / panels, first = panel * kPanel;
    const int64_t left = a.out_channels - first, width = left < kPanel ? left : kPanel;
    const int64_t map = (image * a.group + group) * a.out_channels + first;
    const float* dy = input<float>(data, 1) + map * outs;
    float* to = reinterpret_cast<float*>(data.scratch) +
                ((group * panels + panel) * a.pixels() + image * outs) * kPanel;
    for (int64_t p = 0; p < outs; p += WeightTile::kMost) {
      const int64_t n = outs - p < WeightTile::kMost ? outs - p : WeightTile::kMost;
      tile.load_out_channels(dy + p, outs, width, n);
      tile.transpose(n, to + p * kPanel);
    }
  }
  return {};
}

// Outputs [first, last) of a line of one tap along the last axis: `line` is the image's line, or
// null in the padding.
SDX_INLINE void fill_line(const Axis& wide, const float* line, int64_t tap, int64_t first,
                          int64_t last, float* to) {
  // The outputs whose input o * stride + shift is inside of the line.
  const int64_t shift = wide.begin + tap * wide.dilation, s = wide.stride;
  int64_t low = shift >= 0 ? 0 : (-shift + s - 1) / s;
  int64_t high = wide.in - shift <= 0 ? 0 : (wide.in - shift - 1) / s + 1;
  low = low < first ? first : low > last ? last : low;
  high = line == nullptr || high < low ? low : high > last ? last : high;
  for (int64_t o = first; o < low; ++o) *to++ = 0;
  if (s == 1 && high > low) {
    memcpy(to, line + low + shift, size_t(high - low) * sizeof(float));
    to += high - low;
  } else {
    for (int64_t o = low; o < high; ++o) *to++ = line[o * s + shift];
  }
  for (int64_t o = high; o < last; ++o) *to++ = 0;
}

// Pixels [first, first + n) of row (channel, tap) of im2col.
void fill_row(const WeightGradientArgs& a, const float* x, int64_t channel, int64_t tap,
              int64_t first, int64_t n, float* to) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t along = tap % wide->taps, down = tap / wide->taps % high->taps;
  const int64_t inward = tap / wide->taps / high->taps, in_channels = a.group * a.channels;
  Pixel p = pixel_of(a.window, first);
  while (n > 0) {
    const int64_t left = wide->out - p.at[2], count = n < left ? n : left;
    const int64_t z = deep->input_index(p.at[0], inward), y = high->input_index(p.at[1], down);
    const bool is_inside = uint64_t(z) < uint64_t(deep->in) && uint64_t(y) < uint64_t(high->in);
    const int64_t plane = (p.image * in_channels + channel) * deep->in;
    const float* line = is_inside ? x + ((plane + z) * high->in + y) * wide->in : nullptr;
    fill_line(*wide, line, along, p.at[2], p.at[2] + count, to);
    to += count, n -= count;
    p.at[2] += count - 1;
    advance(a.window, p);
  }
}

// Item: a block of rows (c, t) and of panels of one group.
void gradient_block(const WeightGradientArgs& a, const Data& data, int64_t group, int64_t item) {
  const int64_t block = item % a.split.row_blocks, columns = item / a.split.row_blocks;
  const int64_t first = a.split.row(block), m = a.split.row(block + 1) - first;
  const int64_t taps = a.window.taps();
  const float* packed = reinterpret_cast<const float*>(data.scratch);
  const Columns dy{packed + group * packed_floats(a.pixels(), a.out_channels), a.out_channels,
                   a.split.panel(columns), a.split.panel(columns + 1)};
  float* tile = reinterpret_cast<float*>(data.local + kBlockBytes);
  const int64_t ldc = (dy.last - dy.first) * kPanel;
  gemm_block(data.local, m, a.pixels(), dy, {tile, ldc}, TileEpilogue{},
             [&](float* to, int64_t row, int64_t rows, int64_t pixel, int64_t pixels) {
               for (int64_t i = 0; i < rows; ++i) {
                 const int64_t r = first + row + i;
                 fill_row(a, input<float>(data, 0), group * a.channels + r / taps, r % taps, pixel,
                          pixels, to + i * kStride);
               }
             });
  const int64_t out_channel = dy.first * kPanel, left = a.out_channels - out_channel;
  for (int64_t o = 0; o < (left < ldc ? left : ldc); ++o) {
    float* to = output<float>(data) + (group * a.out_channels + out_channel + o) * a.rows() + first;
    for (int64_t i = 0; i < m; ++i) to[i] = tile[i * ldc + o];
  }
}

Status gradient_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WeightGradientArgs*>(args);
  const int64_t count = a.split.count();
  for (int64_t i = begin; i < end; ++i) gradient_block(a, data, i / count, i % count);
  return {};
}

}  // namespace

// ints: the window, group. Inputs: x [N, C, *spatial], dy [N, O, *spatial]; output: dw.
Status conv_weight_gradient_f32(const Call& call, Plan& plan) {
  const View &x = call.in[0], &dy = call.in[1];
  auto* a = plan.make<WeightGradientArgs>();
  a->window = read_plane_window(x, dy, call.ints);
  a->group = call.ints[4 * (x.rank - 2)];
  a->channels = x.dims[1] / a->group, a->out_channels = dy.dims[1] / a->group;
  a->split = split_matmul(a->rows(), a->out_channels, a->pixels());
  plan.args = a;
  if (a->split.count() == 0) return {};
  const int64_t panels = panels_of(a->out_channels);
  plan.scratch_bytes =
      a->group * packed_floats(a->pixels(), a->out_channels) * int64_t(sizeof(float));
  const int64_t most_rows = (a->rows() + a->split.row_blocks - 1) / a->split.row_blocks;
  const int64_t most_panels =
      (a->split.panels + a->split.column_blocks - 1) / a->split.column_blocks;
  plan.local_bytes = kBlockBytes + most_rows * most_panels * kPanel * int64_t(sizeof(float));
  plan.add(pack_gradient, a->group * panels * a->window.batch, a->window.outs() * kPanel / 4);
  plan.add(gradient_blocks, a->group * a->split.count(), a->split.work);
  return {};
}

}  // namespace sdx::SDX_ISA
