// The gradient of a 3 x 3 or 5 x 5 convolution of stride 1 by its weights, by Winograd
// (winograd.h). The forward pass of one tile is A^T ((G w G^T) * (B^T x B)) A; its adjoint in w is
//   dw = G^T (sum over tiles of (B^T x B) * (A dy A^T)) G,
// with 36 multiplications per tile and pair of channels in place of 144 or 100. The sums are one
// GEMM A^T B per point over all tiles (matmul/transposed_tile.h), and only they are transformed
// back.
//
// Few channels: threads transform and multiply parts of the tiles, a chunk at a time that stays in
// L2, into partial sums; a second phase adds these. With more channels the sums of a part would
// not stay in L2: there, rounds alternate, even ones transform a chunk of tiles, which bounds
// the scratch memory, and odd ones multiply it. Chosen by weight_gradient of providers/cpu/conv.py.
#include "kernels/conv/kernels.h"
#include "kernels/conv/winograd.h"
#include "kernels/conv/winograd_patch.h"
#include "kernels/matmul/pack.h"
#include "kernels/matmul/transposed_tile.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kUnit = 16;      // channels; blocks of channels have whole units
constexpr int64_t kMaxUnits = 4;   // of a block
constexpr int64_t kChannels = 16;  // channels whose sums are transformed back at a time
constexpr int64_t kPad = 16;       // floats after each point, so that points are in different sets

struct WinogradGradientArgs {
  Axis high, wide;
  int64_t channels, out_channels;
  int64_t tile;                           // outputs of a tile along each axis: 4 or 2
  int64_t tiles_high, tiles_wide, tiles;  // tiles of an image, and of all images
  int64_t chunks, max_chunk_tiles;        // chunks of tiles, and the most tiles in one
  int64_t units, blocks;                  // of the channels
  int64_t parts;                          // of the tiles, with partial sums; 0: none

  SDX_INLINE int64_t panels() const { return panels_of(out_channels); }
  SDX_INLINE int64_t items() const { return blocks * panels(); }
  SDX_INLINE int64_t first_channel(int64_t block) const {
    return part_begin(units, blocks, block) * kUnit;
  }
  // Floats from one point to the next of patches, gradients and sums.
  SDX_INLINE int64_t patch_stride() const { return units * kUnit * max_chunk_tiles + kPad; }
  SDX_INLINE int64_t grad_stride() const { return panels() * kPanel * max_chunk_tiles + kPad; }
  SDX_INLINE int64_t sum_stride() const {
    return (units + blocks - 1) / blocks * kUnit * kPanel + kPad;
  }
  SDX_INLINE int64_t sum_floats() const { return kPoints * sum_stride(); }
  SDX_INLINE int64_t chunk_floats() const { return kPoints * (patch_stride() + grad_stride()); }
};

// A d along one axis, from T outputs: the transpose of the output transform of winograd.cc.
template <int T>
SDX_INLINE void transform_gradient(const f32v (&d)[T], f32v (&to)[kPatch]) {
  constexpr float a = float(kA), b = float(kB), a3 = float(kA / 2), b3 = float(kB * 2);
  f32v even_a = d[0], even_b = d[0], odd_a = a * d[1], odd_b = b * d[1];
  if constexpr (T == 4) {
    even_a += 0.5f * d[2], even_b += 2.0f * d[2];
    odd_a += a3 * d[3], odd_b += b3 * d[3];
  }
  to[0] = d[0];
  to[1] = even_a + odd_a;
  to[2] = even_a - odd_a;
  to[3] = even_b + odd_b;
  to[4] = even_b - odd_b;
  to[5] = d[T - 1];
}

// G^T m along one axis, to K taps: the transpose of the weight transform of winograd_weights.cc.
template <int K>
SDX_INLINE void transform_sums(const f32v (&m)[kPatch], f32v (&to)[K]) {
  const f32v even[] = {m[1] + m[2], m[3] + m[4]}, odd[] = {m[1] - m[2], m[3] - m[4]};
#pragma GCC unroll 5
  for (int i = 0; i < K; ++i) {
    const f32v(&part)[2] = i % 2 == 0 ? even : odd;
    to[i] = weight_factor(0, i) * part[0] + weight_factor(1, i) * part[1];
  }
  to[0] += m[0];
  to[K - 1] += m[kPatch - 1];
}

// First output of a tile.
struct Tile {
  int64_t image, top, left;
};

SDX_INLINE Tile tile_of(const WinogradGradientArgs& a, int64_t number) {
  const int64_t line = number / a.tiles_wide % a.tiles_high;
  return {number / a.tiles_wide / a.tiles_high, line * a.tile, number % a.tiles_wide * a.tile};
}

// B^T x B of all channels of a tile, which is number `row` of its chunk. Patches of a point are
// [block of channels][tile][channel].
void transform_image(const WinogradGradientArgs& a, const float* x, const Tile& tile, int64_t row,
                     float* patches) {
  int64_t at[kPoints], to_at[kPoints];
  bool is_inside = true;
  for (int64_t i = 0; i < kPoints; ++i) {
    const int64_t y = tile.top + a.high.begin + i / kPatch;
    const int64_t z = tile.left + a.wide.begin + i % kPatch;
    const bool is_pixel = y >= 0 && y < a.high.in && z >= 0 && z < a.wide.in;
    at[i] = is_pixel ? ((tile.image * a.high.in + y) * a.wide.in + z) * a.channels : -1;
    is_inside = is_inside && is_pixel;
    to_at[i] = i * a.patch_stride();
  }
  for (int64_t block = 0; block < a.blocks; ++block) {
    const int64_t first = a.first_channel(block), width = a.first_channel(block + 1) - first;
    const int64_t left = a.channels - first;
    float* to = patches + first * a.max_chunk_tiles + row * width;
    vloop(left < width ? left : width, [&](int64_t c, auto lanes) {
      if (is_inside) {
        transform_patch<true>(x + first + c, at, lanes, to + c, to_at);
      } else {
        transform_patch<false>(x + first + c, at, lanes, to + c, to_at);
      }
    });
  }
}

// A dy A^T for one vector of output channels; `at` has the offsets of the tile's outputs, -1 past
// the border.
template <int T, class Lanes>
SDX_INLINE void transform_outputs(const float* dy, const int64_t* at, Lanes lanes, float* to,
                                  int64_t stride) {
  f32v half[T][kPatch];
#pragma GCC unroll 4
  for (int i = 0; i < T; ++i) {
    f32v line[T];
#pragma GCC unroll 4
    for (int j = 0; j < T; ++j) {
      const int64_t from = at[i * T + j];
      line[j] = from >= 0 ? load(dy + from, lanes) : f32v{};
    }
    transform_gradient<T>(line, half[i]);
  }
#pragma GCC unroll 6
  for (int j = 0; j < kPatch; ++j) {
    f32v column[T], whole[kPatch];
#pragma GCC unroll 4
    for (int i = 0; i < T; ++i) column[i] = half[i][j];
    transform_gradient<T>(column, whole);
#pragma GCC unroll 6
    for (int i = 0; i < kPatch; ++i) store(to + (i * kPatch + j) * stride, whole[i]);
  }
}

// A dy A^T of all output channels of a tile. Gradients of a point are [panel][tile][32].
template <int T>
void transform_tile(const WinogradGradientArgs& a, const float* dy, const Tile& tile, int64_t row,
                    float* grads) {
  int64_t at[T * T];
  for (int64_t i = 0; i < T * T; ++i) {
    const int64_t y = tile.top + i / T, z = tile.left + i % T;
    const bool is_output = y < a.high.out && z < a.wide.out;
    at[i] = is_output ? ((tile.image * a.high.out + y) * a.wide.out + z) * a.out_channels : -1;
  }
  for (int64_t panel = 0; panel < a.panels(); ++panel) {
    const int64_t first = panel * kPanel, left = a.out_channels - first;
    float* to = grads + (panel * a.max_chunk_tiles + row) * kPanel;
    vloop(left < kPanel ? left : kPanel, [&](int64_t j, auto lanes) {
      transform_outputs<T>(dy + first + j, at, lanes, to + j, a.grad_stride());
    });
  }
}

// The transformed patches and gradients of n tiles.
struct Chunk {
  float *patches, *grads;
  int64_t n;
};

SDX_INLINE Chunk chunk_at(const WinogradGradientArgs& a, std::byte* memory, int64_t n) {
  float* patches = reinterpret_cast<float*>(memory);
  return {patches, patches + kPoints * a.patch_stride(), n};
}

// Rows [begin, end) of a chunk, whose first tile has number `first`.
void transform_rows(const WinogradGradientArgs& a, const Data& data, const Chunk& chunk,
                    int64_t first, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const Tile tile = tile_of(a, first + row);
    transform_image(a, input<float>(data, 0), tile, row, chunk.patches);
    (a.tile == 4 ? transform_tile<4> : transform_tile<2>)(a, input<float>(data, 1), tile, row,
                                                          chunk.grads);
  }
}

// The accumulators of all points for item (block of channels, panel), [point][channel][32].
void multiply_chunk(const WinogradGradientArgs& a, const Chunk& chunk, int64_t item, float* sums,
                    bool add) {
  const int64_t block = item % a.blocks, panel = item / a.blocks;
  const int64_t first = a.first_channel(block), width = a.first_channel(block + 1) - first;
  const int64_t left = a.channels - first, m = left < width ? left : width;
  const int64_t columns = a.out_channels - panel * kPanel, passes = passes_of(chunk.n);
  const float* patches = chunk.patches + first * a.max_chunk_tiles;
  const float* grads = chunk.grads + panel * a.max_chunk_tiles * kPanel;
  for (int64_t p = 0; p < kPoints; ++p)
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t row = part_begin(chunk.n, passes, pass);
      gemm_transposed(m, part_begin(chunk.n, passes, pass + 1) - row,
                      {patches + p * a.patch_stride() + row * width, width},
                      {grads + p * a.grad_stride() + row * kPanel, kPanel},
                      columns < kPanel ? columns : kPanel, {sums + p * a.sum_stride(), kPanel},
                      add || pass > 0);
    }
}

// G^T m G of n channels and a panel: the taps of each channel, [channel][tap][32].
template <int K>
void transform_back(const float* sums, int64_t stride, int64_t n, float* to) {
  for (int64_t at = 0; at < n * kPanel; at += kLanes) {
    f32v half[K][kPatch];
#pragma GCC unroll 6
    for (int j = 0; j < kPatch; ++j) {
      f32v column[kPatch], taps[K];
#pragma GCC unroll 6
      for (int i = 0; i < kPatch; ++i) column[i] = load(sums + (i * kPatch + j) * stride + at);
      transform_sums<K>(column, taps);
#pragma GCC unroll 5
      for (int i = 0; i < K; ++i) half[i][j] = taps[i];
    }
#pragma GCC unroll 5
    for (int i = 0; i < K; ++i) {
      f32v taps[K];
      transform_sums<K>(half[i], taps);
#pragma GCC unroll 5
      for (int j = 0; j < K; ++j)
        store(to + (at / kPanel * K * K + i * K + j) * kPanel + at % kPanel, taps[j]);
    }
  }
}

template <int K>
void write_weights(const WinogradGradientArgs& a, const float* sums, int64_t item, float* dw) {
  constexpr int64_t kTaps = K * K;
  const int64_t block = item % a.blocks, panel = item / a.blocks;
  float taps[kChannels * kTaps * kPanel];
  const int64_t first = a.first_channel(block), end = a.first_channel(block + 1);
  const int64_t last = end < a.channels ? end : a.channels, out_channel = panel * kPanel;
  const int64_t left = a.out_channels - out_channel, depth = a.channels * kTaps;
  for (int64_t c = first; c < last; c += kChannels) {
    const int64_t n = last - c < kChannels ? last - c : kChannels;
    transform_back<K>(sums + (c - first) * kPanel, a.sum_stride(), n, taps);
    copy_transposed(taps, kPanel, left < kPanel ? left : kPanel, n * kTaps,
                    dw + out_channel * depth + c * kTaps, depth);
  }
}

void write_item(const WinogradGradientArgs& a, const Data& data, const float* sums, int64_t item) {
  (a.tile == 4 ? write_weights<3> : write_weights<5>)(a, sums, item, output<float>(data));
}

// Items: parts of a chunk's tiles in even rounds; blocks of channels times panels in odd ones.
Status gradient_rounds(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WinogradGradientArgs*>(args);
  const int64_t number = data.round / 2, first = part_begin(a.tiles, a.chunks, number);
  const Chunk chunk = chunk_at(a, data.scratch, part_begin(a.tiles, a.chunks, number + 1) - first);
  if (data.round % 2 == 0) {
    transform_rows(a, data, chunk, first, part_begin(chunk.n, a.items(), begin),
                   part_begin(chunk.n, a.items(), end));
    return {};
  }
  for (int64_t item = begin; item < end; ++item) {
    // Accumulators are kept from chunk to chunk.
    float* sums = reinterpret_cast<float*>(data.local);
    if (a.chunks > 1)
      sums = reinterpret_cast<float*>(data.scratch) + a.chunk_floats() + item * a.sum_floats();
    multiply_chunk(a, chunk, item, sums, number > 0);
    if (number + 1 == a.chunks) write_item(a, data, sums, item);
  }
  return {};
}

// Items: parts of the tiles.
Status sum_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WinogradGradientArgs*>(args);
  for (int64_t part = begin; part < end; ++part) {
    const int64_t first = part_begin(a.tiles, a.parts, part);
    const int64_t last = part_begin(a.tiles, a.parts, part + 1);
    float* sums = reinterpret_cast<float*>(data.scratch) + part * a.items() * a.sum_floats();
    for (int64_t tile = first; tile < last; tile += a.max_chunk_tiles) {
      const int64_t n = last - tile < a.max_chunk_tiles ? last - tile : a.max_chunk_tiles;
      const Chunk chunk = chunk_at(a, data.local, n);
      transform_rows(a, data, chunk, tile, 0, n);
      for (int64_t item = 0; item < a.items(); ++item)
        multiply_chunk(a, chunk, item, sums + item * a.sum_floats(), tile > first);
    }
  }
  return {};
}

// Items: blocks of channels times panels.
Status add_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WinogradGradientArgs*>(args);
  const int64_t step = a.items() * a.sum_floats();
  for (int64_t item = begin; item < end; ++item) {
    float* sums = reinterpret_cast<float*>(data.scratch) + item * a.sum_floats();
    for (int64_t i = 0; i < a.sum_floats(); i += kLanes) {
      f32v total = load(sums + i);
      for (int64_t part = 1; part < a.parts; ++part) total += load(sums + part * step + i);
      store(sums + i, total);
    }
    write_item(a, data, sums, item);
  }
  return {};
}

// Chooses blocks of channels, fewer units each if there would be few items, and chunks of tiles.
void cut(WinogradGradientArgs& a) {
  constexpr int64_t kItems = 8, kMinUnits = 2, kScratchFloats = 8 << 20;
  a.units = (a.channels + kUnit - 1) / kUnit;
  a.blocks = (a.units + kMaxUnits - 1) / kMaxUnits;
  while (a.items() < kItems && a.units / (a.blocks + 1) >= kMinUnits) ++a.blocks;
  constexpr int64_t kFewSums = 192 << 10, kFewTiles = 32, kMaxParts = 16;  // sums that stay in L2
  a.parts = a.tiles / (4 * kFewTiles);
  if (a.parts > 1 && a.items() * a.sum_floats() <= kFewSums) {
    a.parts = a.parts < kMaxParts ? a.parts : kMaxParts;
    a.chunks = 1, a.max_chunk_tiles = kFewTiles;
    return;
  }
  a.parts = 0;
  int64_t max_chunk_tiles = kScratchFloats / (kPoints * (a.units * kUnit + a.panels() * kPanel));
  max_chunk_tiles = max_chunk_tiles < kDepth ? kDepth : max_chunk_tiles;
  a.chunks = a.tiles > max_chunk_tiles ? (a.tiles + max_chunk_tiles - 1) / max_chunk_tiles : 1;
  a.max_chunk_tiles = (a.tiles + a.chunks - 1) / a.chunks;
}

}  // namespace

// ints: the window, group (1). Inputs: x [N, H, W, C], dy [N, H, W, O]; output: dw as ONNX stores
// weights.
Status conv_winograd_gradient_f32(const Call& call, Plan& plan) {
  const View &x = call.in[0], &dy = call.in[1];
  const Window window = read_window(x, dy, call.ints);
  auto* a = plan.make<WinogradGradientArgs>();
  a->high = window.axis[1], a->wide = window.axis[2];
  a->channels = x.dim(-1), a->out_channels = dy.dim(-1);
  a->tile = kPatch + 1 - a->high.taps;
  a->tiles_high = (a->high.out + a->tile - 1) / a->tile;
  a->tiles_wide = (a->wide.out + a->tile - 1) / a->tile;
  a->tiles = window.batch * a->tiles_high * a->tiles_wide;
  cut(*a);
  plan.args = a;
  const int64_t float_bytes = int64_t(sizeof(float)), items = a->items();
  const int64_t tile_work = kPoints * a->units * kUnit * a->panels() * kPanel / (SDX_VEC_BYTES / 2);
  if (items == 0) return {};
  if (a->parts > 0) {
    plan.scratch_bytes = a->parts * items * a->sum_floats() * float_bytes;
    plan.local_bytes = a->chunk_floats() * float_bytes;
    plan.add(sum_parts, a->parts, a->tiles / a->parts * tile_work);
    plan.add(add_parts, items, a->parts * a->sum_floats() / kLanes);
    return {};
  }
  plan.scratch_bytes = a->chunk_floats() * float_bytes;
  if (a->chunks > 1)
    plan.scratch_bytes += items * a->sum_floats() * float_bytes;
  else
    plan.local_bytes = a->sum_floats() * float_bytes;
  plan.add(gradient_rounds, items, a->max_chunk_tiles * tile_work / items, 2 * a->chunks);
  return {};
}

}  // namespace sdx::SDX_ISA
