// Convolutions with few output channels: vectors hold neighbouring outputs of a line, and weights
// are numbers that all of them share.
//
// Element c of tap k of output o lies (o * step + k * spacing) * channels + c floats behind the
// first. Taken apart into step * channels streams, a line has what outputs o, o + 1, ... multiply
// by the same weight side by side.
#include "kernels/conv/epilogue.h"
#include "kernels/conv/rows.h"
#include "kernels/gemm/pack.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int kMostMaps = 4;

struct FewMapsArgs {
  Window window;
  int64_t channels, maps;
  int64_t streams, length;  // of one line, and the floats of a stream
  int64_t lines, depth;     // lines that a window reads, and its elements in each
  int64_t behind;           // elements of a stream behind the last output's that its window reads
  int64_t chunks;           // parts of a line of outputs
  const int64_t* at;        // where the elements of a window lie among the streams of a line
  Epilogue epilogue;
  int64_t sums_at, chain_at;  // in a thread's own memory
};

// Outputs [left, right) of a line.
struct Piece {
  int64_t image, deep, high, left, right;
};

Piece piece_of(const FewMapsArgs& a, int64_t item) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t chunk = item % a.chunks, line = item / a.chunks;
  return {line / high->out / deep->out, line / high->out % deep->out, line % high->out,
          part_begin(wide->out, a.chunks, chunk), part_begin(wide->out, a.chunks, chunk + 1)};
}

// Elements [low, high) of each of P streams, which lie `length` floats apart.
template <int P>
void take_apart(const float* x, int64_t low, int64_t high, float* to, int64_t length) {
  for (int64_t q = low; q < high; ++q)
    for (int r = 0; r < P; ++r) to[r * length + q] = x[q * P + r];
}

// One line, from float `from` on, as streams of n elements; `x` is null for a line of zeros.
void keep_line(const FewMapsArgs& a, const float* x, int64_t from, int64_t n, float* to) {
  const int64_t size = a.window.axis[2].in * a.channels, p = a.streams;
  const auto within = [&](int64_t q) { return q < 0 ? 0 : q > n ? n : q; };
  // Elements of which every stream has one in the line.
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
    case 2: return take_apart<2>(first, low, high, to, a.length);
    case 3: return take_apart<3>(first, low, high, to, a.length);
    default: copy_matrix(first + low * p, 1, p, p, high - low, to + low, a.length);
  }
}

// Every line that the windows of a piece read.
void keep_lines(const FewMapsArgs& a, const Piece& piece, const float* x, float* to) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t n = piece.right - piece.left + a.behind;
  const int64_t from = wide->place(piece.left, 0) * a.channels;
  for (int64_t line = 0; line < a.lines; ++line, to += a.streams * a.length) {
    const int64_t z = deep->place(piece.deep, line / high->taps);
    const int64_t y = high->place(piece.high, line % high->taps);
    const bool is_inside = z >= 0 && z < deep->in && y >= 0 && y < high->in;
    const int64_t number = (piece.image * deep->in + z) * high->in + y;
    keep_line(a, is_inside ? x + number * wide->in * a.channels : nullptr, from, n, to);
  }
}

// Sums of n outputs from `o` on of the piece that begins at pixel `row`.
template <int M, int V>
SDX_INLINE void sum_outs(const FewMapsArgs& a, const Data& data, const float* kept, int64_t row,
                         int64_t o, int64_t n, const Target& to) {
  f32v sum[M][V];
  const float *bias = a.epilogue.bias(data), *w = input<float>(data, 1);
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[m][v] = splat(bias == nullptr ? 0.0f : bias[m]);
  for (int64_t line = 0; line < a.lines; ++line, kept += a.streams * a.length)
    for (int64_t d = 0; d < a.depth; ++d, w += kPanel) {
      const float* x = kept + a.at[d] + o;
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const f32v in = load(x + v * kLanes);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) sum[m][v] += in * w[m];
      }
    }
  const float* start = a.epilogue.start(data, row + o, 0);
  const f32v low = splat(a.epilogue.relu ? 0.0f : -kInf), high = splat(a.epilogue.high);
  float* y = to.c + o * to.ldc;
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
    float outs[V * kLanes];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(outs + v * kLanes, sum[m][v]);
    if (start != nullptr)
      for (int64_t i = 0; i < n; ++i) outs[i] += start[i * M + m];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      store(outs + v * kLanes, at_most(at_least(load(outs + v * kLanes), low), high));
    if (M == 1 && to.ldc == 1) {
      memcpy(y, outs, size_t(n) * sizeof(float));
    } else {
      for (int64_t i = 0; i < n; ++i) y[i * to.ldc + m] = outs[i];
    }
  }
}

template <int M>
Status sum_pieces(const void* args, const Data& data, int64_t begin, int64_t end) {
  constexpr int V = M == 1 ? 8 : M == 2 ? 4 : 3;
  const auto& a = *static_cast<const FewMapsArgs*>(args);
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  float* kept = reinterpret_cast<float*>(data.local);
  for (int64_t item = begin; item < end; ++item) {
    const Piece p = piece_of(a, item);
    const int64_t line = (p.image * deep->out + p.deep) * high->out + p.high;
    const int64_t row = line * wide->out + p.left, n = p.right - p.left;
    keep_lines(a, p, input<float>(data, 0), kept);
    Target to{a.epilogue.place(data, row, 0), a.epilogue.pitch};
    if (a.epilogue.end_slot >= 0)  // which the output may lie on
      to = {reinterpret_cast<float*>(data.local + a.sums_at), M};
    for (int64_t o = 0; o < n; o += V * kLanes)
      sum_outs<M, V>(a, data, kept, row, o, n - o < V * kLanes ? n - o : V * kLanes, to);
    run_epilogue(a.epilogue, data, {row, n, 0, M}, to, data.local + a.chain_at);
  }
  return {};
}

// Pieces whose streams stay in L2, and are some thousand numbers at most.
void cut(FewMapsArgs& a, Plan& plan) {
  constexpr int64_t kKept = 32 * 1024, kWidest = 1024, kNarrowest = 64;
  const Axis& wide = a.window.axis[2];
  a.streams = wide.step * a.channels;
  a.lines = a.window.axis[0].taps * a.window.axis[1].taps;
  a.depth = wide.taps * a.channels;
  a.behind = ((wide.taps - 1) * wide.spacing * a.channels + a.channels - 1) / a.streams;
  int64_t most = kKept / (a.lines * a.streams) - a.behind;
  most = most > kWidest ? kWidest : most < kNarrowest ? kNarrowest : most;
  a.chunks = (wide.out + most - 1) / most;
  constexpr int64_t kBlock = 8 * kLanes;
  const int64_t outs = wide.out < most ? wide.out : most;
  a.length = (outs + kBlock - 1) / kBlock * kBlock + a.behind;
  auto* at = plan.make<int64_t>(size_t(a.depth));
  for (int64_t d = 0; d < a.depth; ++d) {
    const int64_t place = d / a.channels * wide.spacing * a.channels + d % a.channels;
    at[d] = place % a.streams * a.length + place / a.streams;
  }
  a.at = at;
}

PhaseFn pieces_of(int64_t maps) {
  switch (maps) {
    case 1: return sum_pieces<1>;
    case 2: return sum_pieces<2>;
    case 3: return sum_pieces<3>;
    default: return sum_pieces<kMostMaps>;
  }
}

}  // namespace

// ints: the window, group, epilogue. Inputs: x, packed weights, operands of the epilogue.
Status conv_few_maps_f32(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  auto* a = plan.make<FewMapsArgs>();
  a->window = read_window(x, y, call.ints);
  a->channels = x.dim(-1), a->maps = y.dim(-1);
  cut(*a, plan);
  plan.args = a;
  a->epilogue = read_epilogue(call, 4 * (x.rank - 2) + 1, plan);
  const int64_t floats = a->lines * a->streams * a->length;
  a->sums_at = (floats * int64_t(sizeof(float)) + 63) / 64 * 64;
  a->chain_at = a->sums_at;
  if (a->epilogue.end_slot >= 0) a->chain_at += a->maps * a->length * int64_t(sizeof(float));
  a->chain_at = (a->chain_at + 63) / 64 * 64;
  plan.local_bytes = a->chain_at + chain_local_bytes(a->epilogue.chain);
  const Axis *deep = a->window.axis, *high = deep + 1;
  plan.add(pieces_of(a->maps), a->window.batch * deep->out * high->out * a->chunks,
           floats + a->length * a->lines * a->depth * a->maps / kLanes);
  return {};
}

}  // namespace sdx::SDX_ISA
