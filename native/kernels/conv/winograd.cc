// Winograd convolution of 3 x 3 and 5 x 5 kernels with stride 1 (winograd.h): input patches are
// transformed, multiplied by transformed weights with one GEMM per point (36), and transformed
// back. Chosen by _is_winograd of providers/cpu/conv.py.
//
// Dilated kernels: outputs with the same residue modulo the dilation are an image of their own,
// with a dense kernel.
//
// Weights are transformed at run time, not when packed: transformed they take four times the
// memory, and reading that from memory takes longer than the transform. Small weights (up to 5 MB
// transformed) are transformed by a phase of their own, larger ones panel by panel for each block
// of tiles.
#include "kernels/conv/winograd.h"

#include "kernels/conv/epilogue.h"
#include "kernels/conv/kernels.h"
#include "kernels/conv/winograd_patch.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA {
namespace {

struct WinogradArgs {
  Axis high, wide;
  int64_t channels, out_channels;
  int64_t tile;                           // outputs of a tile along each axis: 4 or 2
  int64_t tiles_high, tiles_wide, tiles;  // tiles of an image, and of all images
  int64_t blocks, max_block_tiles;        // blocks of tiles, and the most tiles in one
  int64_t column_blocks;
  int64_t depth;           // channels of a GEMM pass
  int64_t points_per_row;  // points in a row of the A block; 1 if rows take several passes
  int64_t width;           // floats between points of a row
  int64_t patch_floats;    // size of a block's transformed patches
  bool has_patch_phase;  // patches are transformed by a phase of their own, shared by column blocks
  bool has_weight_phase;         // so are weights; else by each block of tiles
  int64_t weights_at;            // offset of transformed weights in scratch memory, in floats
  int64_t weight_buffer_floats;  // local memory for transformed weights
  Epilogue epilogue;
  bool is_active;  // the epilogue has bounds or an activation

  SDX_INLINE int64_t dilation_residues() const { return high.dilation * wide.dilation; }
  SDX_INLINE int64_t taps() const { return high.taps * wide.taps; }
};

// First output of a tile.
struct Tile {
  int64_t image, top, left;
};

// Tiles are numbered image by image; with dilation each residue class counts as an image.
Tile tile_of(const WinogradArgs& a, int64_t number) {
  const int64_t in_line = number % a.tiles_wide, line = number / a.tiles_wide % a.tiles_high;
  const int64_t image = number / a.tiles_wide / a.tiles_high, residues = a.dilation_residues();
  return {image / residues, line * a.tile * a.high.dilation + image % residues / a.wide.dilation,
          in_line * a.tile * a.wide.dilation + image % residues % a.wide.dilation};
}

constexpr int64_t kMaxTiles = 64;  // tiles of a block, the rows of its GEMMs

// Offset of channel c of a point among the transformed patches of a block of n tiles, for tile 0.
// The layout is that of the A block of the micro-kernel (kStride), so patches are multiplied in
// place.
SDX_INLINE int64_t patch_at(const WinogradArgs& a, int64_t n, int64_t point, int64_t c) {
  if (a.depth < a.channels) {
    const int64_t passes = a.channels / a.depth;
    return (point * passes + c / a.depth) * n * kStride + c % a.depth;
  }
  return point / a.points_per_row * n * kStride + point % a.points_per_row * a.width + c;
}

// Output transform A^T m along one axis, to T outputs.
template <int T>
SDX_INLINE void transform_back(const f32v (&m)[kPatch], f32v (&to)[T]) {
  constexpr float a = float(kA), b = float(kB), a3 = float(kA / 2), b3 = float(kB * 2);
  const f32v sum_a = m[1] + m[2], sum_b = m[3] + m[4];
  const f32v less_a = m[1] - m[2], less_b = m[3] - m[4];
  to[0] = m[0] + sum_a + sum_b;
  to[1] = a * less_a + b * less_b;
  if constexpr (T == 4) {
    to[2] = 0.5f * sum_a + 2.0f * sum_b;
    to[3] = a3 * less_a + b3 * less_b + m[5];
  } else {
    to[1] += m[5];
  }
}

// All channels of tile `number`, into row `row` of the patches of a block of n tiles.
void transform_tile(const WinogradArgs& a, const float* x, int64_t number, float* patches,
                    int64_t n, int64_t row) {
  const Tile tile = tile_of(a, number);
  int64_t at[kPoints], to_at[kPoints];
  bool is_inside = true;
  for (int64_t i = 0; i < kPoints; ++i) {
    const int64_t y = tile.top + a.high.begin + i / kPatch * a.high.dilation;
    const int64_t z = tile.left + a.wide.begin + i % kPatch * a.wide.dilation;
    const bool is_pixel = y >= 0 && y < a.high.in && z >= 0 && z < a.wide.in;
    at[i] = is_pixel ? ((tile.image * a.high.in + y) * a.wide.in + z) * a.channels : -1;
    is_inside = is_inside && is_pixel;
    to_at[i] = patch_at(a, n, i, 0);
  }
  float* to = patches + row * kStride;
  const int64_t passes = a.channels / a.depth;
  for (int64_t pass = 0; pass < passes; ++pass, x += a.depth, to += n * kStride)
    vloop(a.depth, [&](int64_t c, auto lanes) {
      if (is_inside) {
        transform_patch<true>(x + c, at, lanes, to + c, to_at);
      } else {
        transform_patch<false>(x + c, at, lanes, to + c, to_at);
      }
    });
}

// Addends of a vector of output channels: one for all outputs, and, if not null, one per output.
struct Added {
  f32v bias;
  const float *start, *end;  // before and after the activation
};

// A^T m A for one vector of output channels, with the epilogue. Accumulators of the points are
// `stride` floats apart; outputs past the image border are dropped.
template <int T, class Lanes>
SDX_INLINE void finish_tile(const WinogradArgs& a, const Tile& tile, const float* acc,
                            int64_t stride, const Added& added, float* y, Lanes lanes) {
  f32v half[T][kPatch];
#pragma GCC unroll 6
  for (int j = 0; j < kPatch; ++j) {
    f32v column[kPatch], line[T];
#pragma GCC unroll 6
    for (int i = 0; i < kPatch; ++i) column[i] = load(acc + (i * kPatch + j) * stride);
    transform_back<T>(column, line);
#pragma GCC unroll 4
    for (int i = 0; i < T; ++i) half[i][j] = line[i];
  }
  const int64_t down = a.high.dilation, across = a.wide.dilation, to_next = down * a.wide.out;
  const int64_t lines = (a.high.out - tile.top + down - 1) / down;
  const int64_t outs = (a.wide.out - tile.left + across - 1) / across;
#pragma GCC unroll 4
  for (int i = 0; i < T; ++i) {
    if (i >= lines) break;
    f32v line[T];
    transform_back<T>(half[i], line);
#pragma GCC unroll 4
    for (int j = 0; j < T; ++j) line[j] += added.bias;
    const auto add = [&](const float* from) {
#pragma GCC unroll 4
      for (int j = 0; j < T; ++j)
        if (j < outs) line[j] += load(from + (i * to_next + j * across) * a.out_channels, lanes);
    };
    if (added.start != nullptr) add(added.start);
    if (a.is_active) activate(a.epilogue, line, T);
    if (added.end != nullptr) add(added.end);
#pragma GCC unroll 4
    for (int j = 0; j < T; ++j)
      if (j < outs)
        store(y + (i * to_next + j * across) * a.epilogue.out_row_stride, line[j], lanes);
  }
}

// Outputs of one panel of channels for tiles [first, first + n).
template <int T>
void finish_tiles(const WinogradArgs& a, const Data& data, int64_t first, int64_t n, int64_t panel,
                  const float* acc) {
  const int64_t out_channel = panel * kPanel, left = a.out_channels - out_channel,
                width = left < kPanel ? left : kPanel;
  const float* bias = a.epilogue.bias(data);
  for (int64_t t = 0; t < n; ++t, acc += kPanel) {
    const Tile tile = tile_of(a, first + t);
    const int64_t pixel = (tile.image * a.high.out + tile.top) * a.wide.out + tile.left;
    float* y = a.epilogue.out_at(data, pixel, out_channel);
    const float *start = a.epilogue.initial(data, pixel, out_channel),
                *last = a.epilogue.residual(data, pixel, out_channel);
    vloop(width, [&](int64_t j, auto lanes) {
      const Added added{bias == nullptr ? f32v{} : load(bias + out_channel + j, lanes),
                        start == nullptr ? nullptr : start + j,
                        last == nullptr ? nullptr : last + j};
      finish_tile<T>(a, tile, acc + j, n * kPanel, added, y + j, lanes);
    });
  }
}

// The epilogue's program over the outputs of tiles [first, first + n), line by line. With dilation
// the lines are not contiguous, and the program is a phase of its own.
void finish_block(const WinogradArgs& a, const Data& data, int64_t first, int64_t n,
                  int64_t out_channel, int64_t width, std::byte* local) {
  if (a.epilogue.chain == nullptr || a.dilation_residues() > 1) return;
  for (int64_t end; n > 0; n -= end - first, first = end) {
    const int64_t line_end = (first / a.tiles_wide + 1) * a.tiles_wide;
    end = line_end < first + n ? line_end : first + n;
    const Tile tile = tile_of(a, first);
    const int64_t left = a.wide.out - tile.left, outs = (end - first) * a.tile;
    for (int64_t i = tile.top; i < tile.top + a.tile && i < a.high.out; ++i)
      run_program(a.epilogue, data, (tile.image * a.high.out + i) * a.wide.out + tile.left,
                  left < outs ? left : outs, out_channel, width, local);
  }
}

// Items: tiles, into the patches that all threads share.
Status transform_tiles(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WinogradArgs*>(args);
  float* patches = reinterpret_cast<float*>(data.scratch);
  for (int64_t block = 0; block < a.blocks; ++block, patches += a.patch_floats) {
    const int64_t first = part_begin(a.tiles, a.blocks, block);
    const int64_t last = part_begin(a.tiles, a.blocks, block + 1);
    for (int64_t t = begin < first ? first : begin; t < end && t < last; ++t)
      transform_tile(a, input<float>(data, 0), t, patches, last - first, t - first);
  }
  return {};
}

// Floats between the transformed weights of two points: an odd number of cache lines, so that the
// 36 stores of a transform do not fall into one set of the cache.
SDX_INLINE int64_t point_stride(int64_t floats) { return (floats + 15) / 16 * 16 + 16; }
SDX_INLINE int64_t point_weights(const WinogradArgs& a) {
  return point_stride(packed_floats(a.channels, a.out_channels));
}
constexpr int64_t kPassChannels = 128;  // their weights of all points take 576 KB of L2
constexpr int64_t kPassWeights = kPassChannels * kPanel;

void transform_panel(const WinogradArgs& a, const float* panel, int64_t n, float* to,
                     int64_t stride) {
  (a.tile == 4 ? transform_weights<3> : transform_weights<5>)(panel, a.channels, n, to, stride);
}

// Items: panels of weights.
Status transform_panels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WinogradArgs*>(args);
  const int64_t size = a.channels * kPanel;
  float* to = reinterpret_cast<float*>(data.scratch) + a.weights_at;
  for (int64_t i = begin; i < end; ++i)
    transform_panel(a, input<float>(data, 1) + i * a.taps() * size, a.channels, to + i * size,
                    point_weights(a));
  return {};
}

// The GEMMs of all points for one panel and n patches.
void multiply_panel(const WinogradArgs& a, const Data& data, const float* patches, int64_t n,
                    int64_t panel, float* acc) {
  const float* w = reinterpret_cast<const float*>(data.scratch) + a.weights_at;
  for (int64_t p = 0; p < kPoints; ++p)
    gemm_passes(n, a.channels, 0, a.channels / a.depth, patches + patch_at(a, n, p, 0),
                {w + p * point_weights(a), a.out_channels, panel, panel + 1},
                {acc + p * n * kPanel, kPanel}, TileEpilogue{});
}

// The same with weights that are transformed here, a pass of channels at a time, into
// `weight_buffer`.
void multiply_new_panel(const WinogradArgs& a, const Data& data, const float* patches, int64_t n,
                        int64_t panel, float* acc, float* weight_buffer) {
  const float* w = input<float>(data, 1) + panel * a.taps() * a.channels * kPanel;
  const int64_t stride = point_stride(kPassWeights);
  for (int64_t c = 0, n_channels; c < a.channels; c += n_channels) {
    const int64_t left = a.depth - c % a.depth;  // of a pass
    n_channels = left < kPassChannels ? left : kPassChannels;
    transform_panel(a, w + c * kPanel, n_channels, weight_buffer, stride);
    for (int64_t p = 0; p < kPoints; ++p)
      gemm_pass(n, n_channels, patches + patch_at(a, n, p, c), weight_buffer + p * stride, kPanel,
                {acc + p * n * kPanel, kPanel}, c > 0);
  }
}

// One item: a block of tiles times a block of panels.
void winograd_block(const WinogradArgs& a, const Data& data, int64_t block, int64_t columns) {
  const int64_t first = part_begin(a.tiles, a.blocks, block);
  const int64_t n = part_begin(a.tiles, a.blocks, block + 1) - first;
  const int64_t panels = panels_of(a.out_channels),
                low = part_begin(panels, a.column_blocks, columns);
  const int64_t high = part_begin(panels, a.column_blocks, columns + 1);
  float* acc = reinterpret_cast<float*>(data.local);
  float* weight_buffer = acc + kPoints * a.max_block_tiles * kPanel;
  float* own = weight_buffer + a.weight_buffer_floats;
  float* patches = own;
  if (a.has_patch_phase) {
    patches = reinterpret_cast<float*>(data.scratch) + block * a.patch_floats;
  } else {
    for (int64_t t = 0; t < n; ++t)
      transform_tile(a, input<float>(data, 0), first + t, patches, n, t);
  }
  for (int64_t panel = low; panel < high; ++panel) {
    if (a.has_weight_phase)
      multiply_panel(a, data, patches, n, panel, acc);
    else
      multiply_new_panel(a, data, patches, n, panel, acc, weight_buffer);
    (a.tile == 4 ? finish_tiles<4> : finish_tiles<2>)(a, data, first, n, panel, acc);
  }
  const int64_t out_channel = low * kPanel,
                end = high * kPanel < a.out_channels ? high * kPanel : a.out_channels;
  float* rest = a.has_patch_phase ? own : own + a.patch_floats;
  finish_block(a, data, first, n, out_channel, end - out_channel,
               reinterpret_cast<std::byte*>(rest));
}

Status winograd_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WinogradArgs*>(args);
  for (int64_t i = begin; i < end; ++i) winograd_block(a, data, i % a.blocks, i / a.blocks);
  return {};
}

// Chooses the blocks of tiles: patches that fit into L2, or, where items transform weights, enough
// tiles to amortize that. Images with few tiles are cut by columns too, and then share patches.
void cut(WinogradArgs& a) {
  constexpr int64_t kPatchBytes = 384 * 1024, kSmallBytes = 5 * 1024 * 1024, kEnough = 16;
  const int64_t of_a_tile = kPoints * a.channels * int64_t(sizeof(float));
  a.has_weight_phase =
      packed_floats(a.channels, a.out_channels) * kPoints * int64_t(sizeof(float)) <= kSmallBytes;
  int64_t max_block_tiles =
      a.has_weight_phase ? kPatchBytes / of_a_tile / kTileRows * kTileRows : kMaxTiles;
  max_block_tiles = max_block_tiles < kTileRows   ? kTileRows
                    : max_block_tiles > kMaxTiles ? kMaxTiles
                                                  : max_block_tiles;
  a.blocks = (a.tiles + max_block_tiles - 1) / max_block_tiles;
  a.max_block_tiles = a.blocks > 0 ? (a.tiles + a.blocks - 1) / a.blocks : 0;
  const int64_t panels = panels_of(a.out_channels),
                columns_needed = a.blocks > 0 ? kEnough / a.blocks : 1;
  a.column_blocks = columns_needed < 1 ? 1 : columns_needed < panels ? columns_needed : panels;
  a.has_patch_phase = a.column_blocks > 1;
  a.depth = a.channels / passes_of(a.channels);
  a.width = (a.channels + 15) / 16 * 16;
  a.points_per_row = a.depth < a.channels ? 1 : kStride / a.width;
  const int64_t patch_rows = a.depth < a.channels
                                 ? kPoints * (a.channels / a.depth)
                                 : (kPoints + a.points_per_row - 1) / a.points_per_row;
  a.patch_floats = patch_rows * a.max_block_tiles * kStride;
}

}  // namespace

// ints: the window, group, epilogue. Inputs: x, packed weights, operands of the epilogue.
Status conv_winograd_f32(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  const Window window = read_window(x, y, call.ints);
  auto* a = plan.make<WinogradArgs>();
  a->high = window.axis[1], a->wide = window.axis[2];
  a->channels = x.dim(-1), a->out_channels = y.dim(-1);
  a->tile = kPatch + 1 - a->high.taps;
  const auto tiles = [&](const Axis& axis) {
    const int64_t of_a_tile = a->tile * axis.dilation;
    return (axis.out + of_a_tile - 1) / of_a_tile;
  };
  a->tiles_high = tiles(a->high), a->tiles_wide = tiles(a->wide);
  a->tiles = window.batch * a->dilation_residues() * a->tiles_high * a->tiles_wide;
  cut(*a);
  a->epilogue = read_epilogue(call, 4 * 2 + 1, plan);
  a->is_active = a->epilogue.relu || a->epilogue.high < kInf || a->epilogue.is_swish;
  plan.args = a;
  const int64_t patch_bytes = a->patch_floats * int64_t(sizeof(float));
  a->weight_buffer_floats = a->has_weight_phase ? 0 : kPoints * point_stride(kPassWeights);
  const int64_t own = kPoints * a->max_block_tiles * kPanel + a->weight_buffer_floats;
  plan.local_bytes = own * int64_t(sizeof(float)) + chain_local_bytes(a->epilogue.chain) +
                     (a->has_patch_phase ? 0 : patch_bytes);
  if (a->has_patch_phase) {
    plan.scratch_bytes = a->blocks * patch_bytes;
    plan.add(transform_tiles, a->tiles, a->channels * 8);
  }
  if (a->has_weight_phase) {
    a->weights_at = plan.scratch_bytes / int64_t(sizeof(float));
    plan.scratch_bytes += kPoints * point_weights(*a) * int64_t(sizeof(float));
    plan.add(transform_panels, panels_of(a->out_channels), a->channels * kPanel * 2);
  }
  const int64_t products = a->max_block_tiles * kPoints * a->channels * a->out_channels;
  plan.add(winograd_blocks, a->blocks * a->column_blocks,
           products / (a->column_blocks > 0 ? a->column_blocks : 1) / (SDX_VEC_BYTES / 2));
  if (a->dilation_residues() > 1) add_program<WinogradArgs>(a->epilogue, plan);
  return {};
}

}  // namespace sdx::SDX_ISA
