// Transposed convolution, as implicit GEMMs without inserted zeros:
//   by phase  each residue of the outputs modulo the strides is a convolution of stride 1 with its
//             own subset of taps (transpose_phases.h)
//   joined    where kernel = stride and nothing is padded, every output has one tap: the outputs
//             of an input pixel are a row of a single matmul, whose columns are all phases
#include "kernels/conv/epilogue.h"
#include "kernels/conv/im2col.h"
#include "kernels/conv/kernels.h"
#include "kernels/conv/pack.h"
#include "kernels/conv/transpose_phases.h"

namespace sdx::SDX_ISA {
namespace {

struct TransposeArgs {
  Window window;  // as the attributes give it
  const ConvPhase* phases;
  int64_t n_phases;
  int64_t channels, out_channels;  // of one group
  int64_t in_channels;
  Split split;  // of the largest phase of one group, or of the joined matmul
  Epilogue epilogue;
};

// Offset of the panels of a phase: phases of a group follow each other.
int64_t packed_at(const TransposeArgs& a, int64_t group, const ConvPhase& phase) {
  const int64_t panels = panels_of(a.out_channels);
  return (group * a.window.taps() + phase.taps_before) * a.channels * panels * kPanel;
}

struct Block {
  int64_t group, first_row, rows, first_panel, last_panel;
};

// Stores rows of `tile` to the outputs of the phase, `stride` pixels apart, and applies what the
// GEMM could not: initial values, the activation after them or Swish, the residual.
void scatter_rows(const TransposeArgs& a, const ConvPhase& phase, const Window& window,
                  const Block& b, const Target& tile, const Data& data) {
  const int64_t out_channel = b.first_panel * kPanel, left = a.out_channels - out_channel;
  const int64_t width = left < tile.ldc ? left : tile.ldc,
                column = b.group * a.out_channels + out_channel;
  Pixel p = pixel_of(window, b.first_row);
  for (int64_t i = 0; i < b.rows; ++i, advance(window, p)) {
    int64_t to = p.image;
    for (int j = 0; j < kSpatial; ++j)
      to = to * a.window.axis[j].out + phase.axis[j].first + p.at[j] * a.window.axis[j].stride;
    float* row = a.epilogue.out_at(data, to, column);
    const float* start = a.epilogue.initial(data, to, column);
    const float* end = a.epilogue.residual(data, to, column);
    vloop(width, [&](int64_t j, auto lanes) {
      f32v sum = load(tile.c + i * tile.ldc + j, lanes);
      if (start != nullptr) sum += load(start + j, lanes);
      if (start != nullptr || a.epilogue.is_swish) activate(a.epilogue, &sum, 1);
      if (end != nullptr) sum += load(end + j, lanes);
      store(row + j, sum, lanes);
    });
  }
}

// One block of a phase: GEMM into a buffer, then scatter.
void phase_block(const TransposeArgs& a, const Data& data, const ConvPhase& phase, const Block& b) {
  Window window;
  window.batch = a.window.batch;
  for (int j = 0; j < kSpatial; ++j) window.axis[j] = phase.axis[j].axis;
  Im2Col im2col = make_im2col(window, a.in_channels, a.channels);
  im2col.first = b.group * a.channels;
  const int64_t ldc = (b.last_panel - b.first_panel) * kPanel;
  float* tile = reinterpret_cast<float*>(data.local + kBlockBytes);
  const Columns weights{input<float>(data, 1) + packed_at(a, b.group, phase), a.out_channels,
                        b.first_panel, b.last_panel};
  TileEpilogue finish = a.epilogue.finish(data, b.group * a.out_channels);
  if (a.epilogue.initial_operand >= 0)
    finish.relu = false, finish.high = kInf;  // after initial values
  gemm_block(data.local, b.rows, im2col.depth(), weights, {tile, ldc}, finish,
             [&](float* to, int64_t row, int64_t rows, int64_t depth, int64_t depths) {
               im2col_rows(im2col, input<float>(data, 0), to, kStride, b.first_row + row, rows,
                           depth, depths);
             });
  scatter_rows(a, phase, window, b, {tile, ldc}, data);
}

// Stores the outputs of one input pixel: a line of them is contiguous in tile and output, unless
// the output has gaps between pixels.
void scatter_pixel(const TransposeArgs& a, const Pixel& p, const float* sums, const Data& data) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  const bool is_whole = a.epilogue.out_row_stride == a.out_channels;
  const int64_t runs = is_whole ? 1 : wide->taps, run = wide->taps * a.out_channels / runs;
  for (int64_t line = 0; line < deep->taps * high->taps; ++line) {
    const int64_t z = p.at[0] * deep->stride + line / high->taps;
    const int64_t y = p.at[1] * high->stride + line % high->taps;
    int64_t to = ((p.image * deep->out + z) * high->out + y) * wide->out + p.at[2] * wide->stride;
    for (int64_t i = 0; i < runs; ++i, ++to, sums += run) {
      float* row = a.epilogue.out_at(data, to, 0);
      const float *start = a.epilogue.initial(data, to, 0), *end = a.epilogue.residual(data, to, 0);
      vloop(run, [&](int64_t j, auto lanes) {
        f32v sum = load(sums + j, lanes);
        if (start != nullptr) sum += load(start + j, lanes);
        if (start != nullptr || a.epilogue.is_swish) activate(a.epilogue, &sum, 1);
        if (end != nullptr) sum += load(end + j, lanes);
        store(row + j, sum, lanes);
      });
    }
  }
}

// Items: blocks of input pixels, the rows of the matmul.
Status joined_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TransposeArgs*>(args);
  const int64_t n = a.n_phases * a.out_channels, panels = panels_of(n), ldc = panels * kPanel;
  auto* bias = reinterpret_cast<float*>(data.local + kBlockBytes);
  float* tile = bias + ldc;
  TileEpilogue finish = a.epilogue.finish(data, 0);
  if (a.epilogue.initial_operand >= 0)
    finish.relu = false, finish.high = kInf;  // after initial values
  if (finish.bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) bias[i] = finish.bias[i % a.out_channels];
    finish.bias = bias;
  }
  Window pixels = a.window;
  for (Axis& axis : pixels.axis) axis.out = axis.in;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = a.split.row(block), rows = a.split.row(block + 1) - first;
    gemm_block(data.local, rows, a.channels, Columns{input<float>(data, 1), n, 0, panels},
               {tile, ldc}, finish,
               [&](float* to, int64_t row, int64_t m, int64_t depth, int64_t depths) {
                 const float* x = input<float>(data, 0) + (first + row) * a.channels + depth;
                 copy_rows(to, x, a.channels, m, depths);
               });
    Pixel p = pixel_of(pixels, first);
    for (int64_t i = 0; i < rows; ++i, advance(pixels, p))
      scatter_pixel(a, p, tile + i * ldc, data);
  }
  return {};
}

// Items: blocks of rows and columns of one phase of one group.
Status phase_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TransposeArgs*>(args);
  const int64_t count = a.split.count();
  for (int64_t i = begin; i < end; ++i) {
    // Phases of a block follow each other: they read the same pixels.
    const int64_t item = i / a.n_phases, row = item % count % a.split.row_blocks;
    const int64_t column = item % count / a.split.row_blocks;
    const ConvPhase& phase = a.phases[i % a.n_phases];
    const int64_t m = a.window.batch * phase.outs();
    Block block;
    block.group = item / count;
    block.first_row = part_begin(m, a.split.row_blocks, row);
    block.rows = part_begin(m, a.split.row_blocks, row + 1) - block.first_row;
    block.first_panel = a.split.panel(column), block.last_panel = a.split.panel(column + 1);
    if (block.rows > 0) phase_block(a, data, phase, block);
  }
  return {};
}

// Column (tap, out_channel) of row c is the weight [c, out_channel, tap].
Status pack_joined(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TransposeArgs*>(args);
  const auto* w = input<std::byte>(data, 0);  // mapped from the model file: any alignment
  const int64_t taps = a.window.taps(), n = taps * a.out_channels;
  for (int64_t i = begin; i < end; ++i)
    for (int64_t c = 0; c < a.channels; ++c)
      for (int64_t j = 0; j < kPanel; ++j) {
        const int64_t column = i * kPanel + j,
                      at = column % a.out_channels * taps + column / a.out_channels;
        float value = 0;
        if (column < n)
          __builtin_memcpy(&value, w + (c * n + at) * int64_t(sizeof value), sizeof value);
        output<float>(data)[(i * a.channels + c) * kPanel + j] = value;
      }
  return {};
}

// Items: panels of each group; a panel of every phase.
Status pack_phases(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TransposeArgs*>(args);
  const int64_t panels = panels_of(a.out_channels), taps = a.window.taps();
  for (int64_t i = begin; i < end; ++i) {
    const int64_t group = i / panels, panel = i % panels;
    const float* w = input<float>(data, 0) + group * a.channels * a.out_channels * taps;
    const Weights weights{w, a.out_channels, a.channels, taps, a.out_channels * taps};
    for (int64_t f = 0; f < a.n_phases; ++f) {
      const ConvPhase& phase = a.phases[f];
      const int64_t depth = phase.taps() * a.channels;
      float* to = output<float>(data) + packed_at(a, group, phase) + panel * depth * kPanel;
      pack_panel(weights, panel, phase.taps(), to,
                 [&](int64_t t) { return phase.tap_of(a.window, t); });
    }
  }
  return {};
}

// Null without memory for the table of phases.
TransposeArgs* make_args(const Window& window, Plan& plan) {
  auto* args = plan.make<TransposeArgs>();
  args->window = window;
  args->n_phases = phase_count(window);
  auto* phases = plan.table<ConvPhase>(size_t(args->n_phases));
  if (phases == nullptr) return nullptr;
  make_phases(window, phases);
  args->phases = phases;
  plan.args = args;
  return args;
}

int64_t bytes_of(int64_t floats) { return floats * int64_t(sizeof(float)); }

void plan_joined(TransposeArgs& a, Plan& plan) {
  const int64_t n = a.n_phases * a.out_channels, columns = panels_of(n) * kPanel;
  a.split = split_matmul(a.window.batch * a.window.ins(), n, a.channels);
  if (a.split.count() == 0) return;
  a.split.work *= a.split.column_blocks;
  a.split.column_blocks = 1;
  const int64_t max_rows = (a.split.m + a.split.row_blocks - 1) / a.split.row_blocks;
  plan.local_bytes = kBlockBytes + bytes_of((max_rows + 1) * columns);
  plan.add(joined_blocks, a.split.count(), a.split.work);
}

void plan_phases(TransposeArgs& a, int64_t group, Plan& plan) {
  int64_t rows = 0, taps = 0;
  for (int64_t i = 0; i < a.n_phases; ++i) {
    const int64_t m = a.window.batch * a.phases[i].outs();
    rows = m > rows ? m : rows;
    taps = a.phases[i].taps() > taps ? a.phases[i].taps() : taps;
  }
  a.split = split_matmul(rows, a.out_channels, taps * a.channels);
  if (a.split.count() == 0) return;
  const int64_t max_rows = (rows + a.split.row_blocks - 1) / a.split.row_blocks;
  const int64_t columns = a.split.column_blocks;
  const int64_t max_panels = (a.split.panels + columns - 1) / columns;
  plan.local_bytes = kBlockBytes + bytes_of(max_rows * max_panels * kPanel);
  plan.add(phase_blocks, group * a.n_phases * a.split.count(), a.split.work);
}

}  // namespace

// ints: the window, group, whether phases are joined, epilogue. Inputs: x, packed weights, operands
// of the epilogue.
Status conv_transpose_f32(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  const int at = 4 * (x.rank - 2);
  const int64_t group = call.ints[at];
  TransposeArgs* a = make_args(read_window(x, y, call.ints), plan);
  if (a == nullptr) return no_table();
  a->in_channels = x.dim(-1);
  a->channels = a->in_channels / group, a->out_channels = y.dim(-1) / group;
  if (call.ints[at + 1] != 0) {
    plan_joined(*a, plan);
  } else {
    plan_phases(*a, group, plan);
  }
  if (a->split.count() == 0) return {};
  a->epilogue = read_epilogue(call, at + 2, plan);
  add_program<TransposeArgs>(a->epilogue, plan);
  return {};
}

// ints: kernel, strides and dilations along three axes, then group and whether phases are joined.
Status conv_transpose_pack(const Call& call, Plan& plan) {
  const View& w = call.in[0];
  Window window;
  for (int i = 0; i < kSpatial; ++i) {
    window.axis[i].taps = call.ints[i];
    window.axis[i].stride = call.ints[kSpatial + i];
    window.axis[i].dilation = call.ints[2 * kSpatial + i];
  }
  const int64_t group = call.ints[3 * kSpatial];
  TransposeArgs* a = make_args(window, plan);
  if (a == nullptr) return no_table();
  a->channels = w.dims[0] / group, a->out_channels = w.dims[1];
  if (call.ints[3 * kSpatial + 1] != 0) {
    plan.add(pack_joined, panels_of(a->out_channels * window.taps()), a->channels * kPanel * 2);
    return {};
  }
  plan.add(pack_phases, group * panels_of(a->out_channels),
           w.count() / (group * panels_of(a->out_channels) + 1));
  return {};
}

}  // namespace sdx::SDX_ISA
