// Gathers the windows of a convolution into rows.
#include "kernels/conv/im2col.h"

namespace sdx::SDX_ISA {
namespace {

// Short runs are the rule in first layers, and a call of memcpy costs more than they do.
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

// Part [begin, end) of a run of taps, in elements, and the first tap of it on each axis.
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

// The run of one output: `line` is the line of the image that it reads, `place` its first pixel.
SDX_INLINE void gather_run(const Im2Col& g, const Run& run, const float* line, int64_t place,
                           float* to) {
  if (place >= 0 && place + g.taps_per_run <= g.window.axis[2].in)
    return copy_run(to, line + place * g.channels + run.begin, run.end - run.begin);
  int64_t low = -place * g.n, high = (g.window.axis[2].in - place) * g.n;
  low = low < run.begin ? run.begin : low > run.end ? run.end : low;
  high = high < low ? low : high > run.end ? run.end : high;
  clear_run(to, low - run.begin);
  if (high > low) copy_run(to + (low - run.begin), line + (place * g.channels + low), high - low);
  clear_run(to + (high - run.begin), run.end - high);
}

// The same for n outputs that read nothing but the image, in whole vectors: what follows a run in
// its row is written later, or never read.
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

// How many outputs from the one that reads at `place` on do not read behind `last`.
SDX_INLINE int64_t count_until(int64_t place, int64_t step, int64_t last, int64_t n) {
  const int64_t count = place > last ? 0 : (last - place) / step + 1;
  return count < n ? count : n;
}

// The runs of n outputs side by side. `room` is how many floats there are from `line` on.
void gather_line(const Im2Col& g, const Run& run, const float* line, int64_t room, int64_t place,
                 int64_t n, float* to, int64_t stride) {
  const int64_t step = g.window.axis[2].stride,
                vectors = (run.end - run.begin + kLanes - 1) / kLanes;
  const int64_t spare = room - run.begin - vectors * kLanes;
  int64_t last = g.window.axis[2].in - g.taps_per_run;
  if (spare < last * g.channels) last = spare < 0 ? -1 : spare / g.channels;
  int64_t i = 0;
  for (; i < n && place < 0; ++i, place += step) gather_run(g, run, line, place, to + i * stride);
  const int64_t inner = count_until(place, step, last, n - i);
  copy_runs(line + place * g.channels + run.begin, step * g.channels, vectors, inner,
            to + i * stride, stride);
  for (i += inner, place += inner * step; i < n; ++i, place += step)
    gather_run(g, run, line, place, to + i * stride);
}

// One run of all rows, a line of outputs after the other.
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
