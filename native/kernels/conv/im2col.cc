// im2col: gathers the windows of a convolution into rows, run by run (a run is the contiguous part
// of a window's line). Runs are the outer loop and output pixels the inner one: the geometry of a
// run is computed once per block, and interior pixels are copied in whole vectors without any
// bounds check.
#include "kernels/conv/im2col.h"

namespace sdx::SDX_ISA {
namespace {

// Copies n floats. First layers have runs of 3 to 21 floats, for which a call of memcpy costs more
// than the copy; a last overlapping vector avoids a scalar tail.
SDX_INLINE void copy_run(float* to, const float* from, int64_t n) {
  if (n >= kLanes) {
    for (int64_t i = 0; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
    store(to + n - kLanes, load(from + n - kLanes));
    return;
  }
  typedef float Four __attribute__((vector_size(16)));
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    Four four;
    memcpy(&four, from + i, sizeof four);
    memcpy(to + i, &four, sizeof four);
  }
  for (; i < n; ++i) to[i] = from[i];
}

SDX_INLINE void clear_run(float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = 0;
}

// Elements [begin, end) of a run, and the tap on each axis at which it starts.
struct Run {
  int64_t tap[kSpatial];
  int64_t begin, end;
};

Run run_at(const Im2Col& g, int64_t number, int64_t depth, int64_t depths) {
  const int64_t size = g.taps_per_run * g.n, start = number * size;
  const int64_t in_line = g.window.axis[2].taps / g.taps_per_run;
  const int64_t line = number / in_line, lines = g.window.axis[1].taps;
  Run run{{line / lines, line % lines, number % in_line}, 0, size};
  if (depth > start) run.begin = depth - start;
  if (depth + depths < start + size) run.end = depth + depths - start;
  return run;
}

// The run of one output near the border: `line` is the image line that it reads, `pixel` the index
// of its first pixel, which may be in the padding.
SDX_INLINE void gather_run(const Im2Col& g, const Run& run, const float* line, int64_t pixel,
                           float* to) {
  if (pixel >= 0 && pixel + g.taps_per_run <= g.window.axis[2].in)
    return copy_run(to, line + pixel * g.channels + run.begin, run.end - run.begin);
  int64_t low = -pixel * g.n, high = (g.window.axis[2].in - pixel) * g.n;
  low = low < run.begin ? run.begin : low > run.end ? run.end : low;
  high = high < low ? low : high > run.end ? run.end : high;
  clear_run(to, low - run.begin);
  if (high > low) copy_run(to + (low - run.begin), line + (pixel * g.channels + low), high - low);
  clear_run(to + (high - run.begin), run.end - high);
}

// Runs of n interior outputs, in whole vectors: what is written after a run in its row is
// overwritten by the next run or never read.
template <int V>
SDX_INLINE void copy_runs(const float* from, int64_t step, int64_t vectors, int64_t n, float* to,
                          int64_t stride) {
  for (int64_t i = 0; i < n; ++i, from += step, to += stride)
    for (int64_t v = 0; v < (V > 0 ? V : vectors); ++v)
      store(to + v * kLanes, load(from + v * kLanes));
}

void copy_runs(const float* from, int64_t step, int64_t vectors, int64_t n, float* to,
               int64_t stride) {
  switch (vectors) {
    case 1: return copy_runs<1>(from, step, vectors, n, to, stride);
    case 2: return copy_runs<2>(from, step, vectors, n, to, stride);
    case 4: return copy_runs<4>(from, step, vectors, n, to, stride);
    default: return copy_runs<0>(from, step, vectors, n, to, stride);
  }
}

// Number of outputs, from the one that reads at `pixel` on, that do not read past `last`.
SDX_INLINE int64_t count_until(int64_t pixel, int64_t step, int64_t last, int64_t n) {
  const int64_t count = pixel > last ? 0 : (last - pixel) / step + 1;
  return count < n ? count : n;
}

// Runs of n neighbouring outputs: border, interior, border. `available` is the number of floats
// from `line` to the end of the image, past which whole vectors must not read.
void gather_line(const Im2Col& g, const Run& run, const float* line, int64_t available,
                 int64_t pixel, int64_t n, float* to, int64_t stride) {
  const int64_t step = g.window.axis[2].stride,
                vectors = (run.end - run.begin + kLanes - 1) / kLanes;
  const int64_t spare = available - run.begin - vectors * kLanes;
  int64_t last = g.window.axis[2].in - g.taps_per_run;
  if (spare < last * g.channels) last = spare < 0 ? -1 : spare / g.channels;
  int64_t i = 0;
  for (; i < n && pixel < 0; ++i, pixel += step) gather_run(g, run, line, pixel, to + i * stride);
  const int64_t inner = count_until(pixel, step, last, n - i);
  copy_runs(line + pixel * g.channels + run.begin, step * g.channels, vectors, inner,
            to + i * stride, stride);
  for (i += inner, pixel += inner * step; i < n; ++i, pixel += step)
    gather_run(g, run, line, pixel, to + i * stride);
}

// One run for all rows of a block, output line by output line.
void gather_column(const Im2Col& g, const Run& run, const float* x, float* to, int64_t stride,
                   int64_t row, int64_t rows) {
  const Axis *deep = g.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t size = g.window.batch * g.window.ins() * g.channels;
  Pixel p = pixel_of(g.window, row);
  while (rows > 0) {
    const int64_t left = wide->out - p.at[2], n = left < rows ? left : rows;
    const int64_t z = deep->input_index(p.at[0], run.tap[0]),
                  y = high->input_index(p.at[1], run.tap[1]);
    if (z < 0 || z >= deep->in || y < 0 || y >= high->in) {
      for (int64_t i = 0; i < n; ++i) clear_run(to + i * stride, run.end - run.begin);
    } else {
      const int64_t number = (p.image * deep->in + z) * high->in + y;
      const int64_t at = number * wide->in * g.channels + g.first;
      gather_line(g, run, x + at, size - at, wide->input_index(p.at[2], run.tap[2]), n, to, stride);
    }
    to += n * stride;
    rows -= n;
    p.at[2] = 0;
    if (++p.at[1] == high->out) p.at[1] = 0, ++p.at[0];
    if (p.at[0] == deep->out) p.at[0] = 0, ++p.image;
  }
}

}  // namespace

void im2col_rows(const Im2Col& im2col, const float* x, float* to, int64_t stride, int64_t row,
                 int64_t rows, int64_t depth, int64_t depths) {
  const int64_t size = im2col.taps_per_run * im2col.n;
  if (size == 0 || depths == 0) return;
  const int64_t last = (depth + depths - 1) / size;
  for (int64_t number = depth / size; number <= last; ++number) {
    const Run run = run_at(im2col, number, depth, depths);
    gather_column(im2col, run, x, to + (number * size + run.begin - depth), stride, row, rows);
  }
}

}  // namespace sdx::SDX_ISA
