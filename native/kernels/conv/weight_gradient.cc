// The gradient of a convolution with respect to its weights, as a GEMM over channels-last images:
//   dw[(t, c), o] = sum over pixels p of im2col(x)[p, (t, c)] * dy[p, o]
// Both sides have the pixels outermost, so the GEMM is A^T B (matmul/transposed_tile.h), and im2col
// is that of the convolution itself. Where dw is small, pixels are cut into parts (split-K) with
// partial sums, which a second phase adds and brings into ONNX's order.
#include "kernels/conv/im2col.h"
#include "kernels/conv/kernels.h"
#include "kernels/matmul/pack.h"
#include "kernels/matmul/transposed_tile.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kPixels = kBlockRows;  // pixels of a pass
constexpr int64_t kMaxPanels = kMaxColumns / kPanel;

struct WeightGradientArgs {
  Im2Col im2col;
  int64_t group, out_channels;  // the output channels of one group
  int64_t row_blocks, column_blocks, parts;

  SDX_INLINE int64_t rows() const { return im2col.depth(); }
  SDX_INLINE int64_t panels() const { return panels_of(out_channels); }
  SDX_INLINE int64_t pixels() const { return im2col.window.batch * im2col.window.outs(); }
  // The partial sums of one part of one panel of a group, as [row][32].
  SDX_INLINE float* sums(const Data& data, int64_t group_of, int64_t part, int64_t panel) const {
    const int64_t number = (group_of * parts + part) * panels() + panel;
    return reinterpret_cast<float*>(data.scratch) + number * rows() * kPanel;
  }
};

// Output channels of panels [first, last) of n pixels, as [panel][pixel][32].
void copy_panels(const WeightGradientArgs& a, const float* dy, int64_t first, int64_t last,
                 int64_t n, float* to) {
  const int64_t step = a.group * a.out_channels;
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t left = a.out_channels - panel * kPanel;
    const float* from = dy + panel * kPanel;
    for (int64_t i = 0; i < n; ++i, from += step, to += kPanel) {
      if (left >= kPanel) {
        memcpy(to, from, kPanel * sizeof(float));
      } else {
        memset(to, 0, kPanel * sizeof(float));
        memcpy(to, from, size_t(left) * sizeof(float));
      }
    }
  }
}

// Item: one part of the pixels for a block of rows (t, c) and a block of panels of one group.
void gradient_block(const WeightGradientArgs& a, const Data& data, int64_t item) {
  const int64_t block = item % a.row_blocks, columns = item / a.row_blocks % a.column_blocks;
  item /= a.row_blocks * a.column_blocks;
  const int64_t part = item % a.parts, group = item / a.parts;
  const int64_t row = part_begin(a.rows(), a.row_blocks, block);
  const int64_t m = part_begin(a.rows(), a.row_blocks, block + 1) - row;
  const int64_t low = part_begin(a.panels(), a.column_blocks, columns);
  const int64_t high = part_begin(a.panels(), a.column_blocks, columns + 1);
  const int64_t begin = part_begin(a.pixels(), a.parts, part);
  const int64_t end = part_begin(a.pixels(), a.parts, part + 1);
  float* windows = reinterpret_cast<float*>(data.local);
  float* grads = windows + kPixels * kStride;
  Im2Col im2col = a.im2col;
  im2col.first = group * im2col.n;
  const float* dy = input<float>(data, 1) + group * a.out_channels;
  for (int64_t pixel = begin; pixel == begin || pixel < end; pixel += kPixels) {
    const int64_t n = end - pixel < kPixels ? end - pixel : kPixels;  // 0 of an empty batch
    if (n > 0) im2col_rows(im2col, input<float>(data, 0), windows, kStride, pixel, n, row, m);
    copy_panels(a, dy + pixel * a.group * a.out_channels, low, high, n, grads);
    for (int64_t panel = low; panel < high; ++panel) {
      const int64_t width = a.out_channels - panel * kPanel;
      gemm_transposed(m, n, {windows, kStride}, {grads + (panel - low) * n * kPanel, kPanel},
                      width < kPanel ? width : kPanel,
                      {a.sums(data, group, part, panel) + row * kPanel, kPanel}, pixel > begin);
    }
  }
}

Status gradient_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WeightGradientArgs*>(args);
  for (int64_t i = begin; i < end; ++i) gradient_block(a, data, i);
  return {};
}

// Channels whose taps are added up and transposed at a time.
SDX_INLINE int64_t channel_step(int64_t taps) { return taps < kDepth ? kDepth / taps : 1; }

// Items: panels of each group.
Status add_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WeightGradientArgs*>(args);
  const int64_t taps = a.im2col.window.taps(), channels = a.im2col.n, step = channel_step(taps);
  float* total = reinterpret_cast<float*>(data.local);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t group = item / a.panels(), panel = item % a.panels();
    const int64_t left = a.out_channels - panel * kPanel;
    float* dw = output<float>(data) + (group * a.out_channels + panel * kPanel) * a.rows();
    for (int64_t low = 0; low < channels; low += step) {
      const int64_t n = channels - low < step ? channels - low : step;
      for (int64_t i = 0; i < n * taps; ++i) {
        const int64_t row = i % taps * channels + low + i / taps;
        for (int64_t j = 0; j < kPanel; j += kLanes) {
          f32v sum = load(a.sums(data, group, 0, panel) + row * kPanel + j);
          for (int64_t part = 1; part < a.parts; ++part)
            sum += load(a.sums(data, group, part, panel) + row * kPanel + j);
          store(total + i * kPanel + j, sum);
        }
      }
      copy_transposed(total, kPanel, left < kPanel ? left : kPanel, n * taps, dw + low * taps,
                      a.rows());
    }
  }
  return {};
}

// Cuts the pixels into parts if rows and panels alone give few items. The partial sums of all parts
// should stay in L2.
int64_t parts_of(const WeightGradientArgs& a) {
  constexpr int64_t kItems = 16, kMaxSums = 1 << 20;
  const int64_t items = a.group * a.row_blocks * a.column_blocks;
  const int64_t by_size = kMaxSums / (a.group * a.rows() * a.panels() * kPanel + 1);
  const int64_t by_pixels = a.pixels() / (4 * kPixels);
  int64_t parts = (kItems + items - 1) / items;
  parts = parts < by_size ? parts : by_size;
  parts = parts < by_pixels ? parts : by_pixels;
  return parts > 1 ? parts : 1;
}

}  // namespace

// ints: the window, group. Inputs: x [N, *spatial, C], dy [N, *spatial, O]; output: dw as ONNX
// stores weights.
Status conv_weight_gradient_f32(const Call& call, Plan& plan) {
  const View &x = call.in[0], &dy = call.in[1];
  auto* a = plan.make<WeightGradientArgs>();
  a->group = call.ints[4 * (x.rank - 2)];
  a->im2col = make_im2col(read_window(x, dy, call.ints), x.dim(-1), x.dim(-1) / a->group);
  a->out_channels = dy.dim(-1) / a->group;
  plan.args = a;
  if (a->rows() == 0 || a->out_channels == 0) return {};
  a->row_blocks = (a->rows() + kDepth - 1) / kDepth;
  a->column_blocks = (a->panels() + kMaxPanels - 1) / kMaxPanels;
  a->parts = parts_of(*a);
  const int64_t floats = a->parts * a->group * a->rows() * a->panels() * kPanel;
  plan.scratch_bytes = floats * int64_t(sizeof(float));
  const int64_t taps = a->im2col.window.taps();
  const int64_t block = kPixels * (kStride + kMaxColumns), total = channel_step(taps) * taps;
  plan.local_bytes = (block > total * kPanel ? block : total * kPanel) * int64_t(sizeof(float));
  const int64_t items = a->group * a->parts * a->row_blocks * a->column_blocks;
  const int64_t products = a->pixels() * a->rows() * a->panels() * kPanel * a->group;
  plan.add(gradient_blocks, items, products / items / (SDX_VEC_BYTES / 2));
  plan.add(add_parts, a->group * a->panels(), a->parts * a->rows() * kPanel / 2);
  return {};
}

}  // namespace sdx::SDX_ISA
