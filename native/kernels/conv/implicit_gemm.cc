// Convolution as implicit GEMM: rows of A are windows, gathered by im2col into the local block of
// the micro-kernel (matmul/tile.h), B is the packed weights, columns of C are output channels.
// im2col costs about 3 % of the time at 64 channels. Reaches 72 to 91 % of the FMA limit.
#include "kernels/conv/epilogue.h"
#include "kernels/conv/im2col.h"
#include "kernels/conv/kernels.h"
#include "kernels/conv/pack.h"
#include "kernels/matmul/pack.h"

namespace sdx::SDX_ISA {
namespace {

struct ConvArgs {
  Im2Col im2col;
  Split split;           // of one group
  int64_t out_channels;  // of one group
  bool is_packed;        // else the first phase packs the weights
  Epilogue epilogue;
  int64_t chain_at;  // in a thread's own memory
};

// The `fill` of gemm_block: windows as rows of floats, or of bf16 pairs by way of a few float rows.
SDX_INLINE void fill_windows(const Im2Col& im2col, const float* x, int64_t row, int64_t rows,
                             int64_t depth, int64_t depths, float* to) {
  im2col_rows(im2col, x, to, kStride, row, rows, depth, depths);
}
SDX_INLINE void fill_windows(const Im2Col& im2col, const float* x, int64_t row, int64_t rows,
                             int64_t depth, int64_t depths, Bf16Pair* to) {
  constexpr int64_t kRows = 8, kStep = 2 * kDepth + kLanes;
  const int64_t left = im2col.depth() - 2 * depth, n = left < 2 * depths ? left : 2 * depths;
  float wide[kRows * kStep];
  for (int64_t i = 0; i < rows; i += kRows) {
    const int64_t count = rows - i < kRows ? rows - i : kRows;
    im2col_rows(im2col, x, wide, kStep, row + i, count, 2 * depth, n);
    for (int64_t j = 0; j < count; ++j) copy_pairs(wide + j * kStep, n, to + (i + j) * kStride);
  }
}

// One block of output pixels and channels of a group.
template <class U>
void conv_block(const ConvArgs& a, const Data& data, int64_t group, int64_t item) {
  // Items are ordered by rows first: a thread's range of items is a range of the image, so it reads
  // what it wrote itself in the layer before.
  const int64_t block = item / a.split.column_blocks, columns = item % a.split.column_blocks;
  const int64_t first_row = a.split.row(block), m = a.split.row(block + 1) - first_row;
  const int64_t k = depth_of<U>(a.im2col.depth());
  const U* packed = a.is_packed ? input<U>(data, 1) : reinterpret_cast<const U*>(data.scratch);
  const ColumnsOf<U> weights{packed + group * packed_floats(k, a.out_channels), a.out_channels,
                             a.split.panel(columns), a.split.panel(columns + 1)};
  const int64_t out_channel = group * a.out_channels + weights.first * kPanel;
  Target target{a.epilogue.out_at(data, first_row, out_channel), a.epilogue.out_row_stride};
  if (a.epilogue.residual_operand >=
      0)  // the addend may share the output's bytes: buffer the accumulators
    target = {reinterpret_cast<float*>(data.local + kBlockBytes), kMaxColumns};
  Im2Col im2col = a.im2col;
  im2col.first = group * im2col.n;
  const float* x = input<float>(data, 0);
  TileEpilogue finish = a.epilogue.finish(data, group * a.out_channels);
  finish.start = a.epilogue.initial(data, first_row, out_channel),
  finish.start_stride = a.epilogue.columns;
  gemm_block(data.local, m, k, weights, target, finish,
             [&](U* to, int64_t row, int64_t rows, int64_t depth, int64_t depths) {
               fill_windows(im2col, x, first_row + row, rows, depth, depths, to);
             });
  const int64_t width = (weights.last - weights.first) * kPanel;
  const int64_t left = a.out_channels - weights.first * kPanel;
  run_epilogue(a.epilogue, data, {first_row, m, out_channel, left < width ? left : width}, target,
               data.local + a.chain_at);
}

template <class U>
Status conv_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ConvArgs*>(args);
  const int64_t count = a.split.count();
  for (int64_t i = begin; i < end; ++i) conv_block<U>(a, data, i / count, i % count);
  return {};
}

// Items: panels of each group of weights that are not constant.
Status pack_panels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ConvArgs*>(args);
  const GroupSizes sizes{a.out_channels, a.im2col.n, a.im2col.window.taps()};
  for (int64_t i = begin; i < end; ++i)
    pack_group_panel(sizes, input<float>(data, 1), i, reinterpret_cast<float*>(data.scratch));
  return {};
}

template <class U>
void add_conv(const Call& call, Plan& plan, bool is_packed) {
  const View &x = call.in[0], &y = call.out[0];
  const int at = 4 * (x.rank - 2);
  const int64_t group = call.ints[at];
  auto* args = plan.make<ConvArgs>();
  const Window window = read_window(x, y, call.ints);
  args->im2col = make_im2col(window, x.dim(-1), x.dim(-1) / group);
  args->out_channels = y.dim(-1) / group;
  args->split = split_matmul(window.batch * window.outs(), args->out_channels,
                             depth_of<U>(args->im2col.depth()));
  plan.args = args;
  args->epilogue = read_epilogue(call, at + 1, plan);
  args->chain_at = kBlockBytes;
  if (args->epilogue.residual_operand >= 0)
    args->chain_at += kBlockRows * kMaxColumns * int64_t(sizeof(float));
  plan.local_bytes = args->chain_at + chain_local_bytes(args->epilogue.chain);
  args->is_packed = is_packed;
  if (!is_packed) {
    const int64_t depth = args->im2col.depth(), packed = packed_floats(depth, args->out_channels);
    plan.scratch_bytes = group * packed * int64_t(sizeof(float));
    plan.add(pack_panels, group * panels_of(args->out_channels), depth * kPanel / 2);
  }
  plan.add(conv_blocks<U>, group * args->split.count(), args->split.work);
}

}  // namespace

// ints: the window, group, epilogue. Inputs: x, weights (packed, or as ONNX stores them), operands
// of the epilogue.
Status conv_f32(const Call& call, Plan& plan) {
  add_conv<float>(call, plan, true);
  return {};
}

// The same with both sides rounded to bf16.
Status conv_bf16(const Call& call, Plan& plan) {
  add_conv<Bf16Pair>(call, plan, true);
  return {};
}

Status conv_unpacked_f32(const Call& call, Plan& plan) {
  add_conv<float>(call, plan, false);
  return {};
}

}  // namespace sdx::SDX_ISA
