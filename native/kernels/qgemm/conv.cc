// Convolutions of 8-bit numbers, channels last: each output's inputs are gathered into a row.
#include "kernels/pitch.h"
#include "kernels/qgemm/list.h"
#include "kernels/qgemm/product.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA::q8 {
namespace {

struct Source {
  Window window;
  int64_t channels, group_channels, n_groups;
};

// How bytes are read: what padding is, what turns a byte into an unsigned one, where x ends.
struct Bytes {
  uint8_t pad, flip;
  const uint8_t* end;
};

// All taps along the last axis, from position `at` of a line, which may lie outside.
SDX_INLINE void gather_line(const Source& s, const uint8_t* line, int64_t at, Bytes bytes,
                            uint8_t* to) {
  const Axis& axis = s.window.axis[kSpatial - 1];
  const int64_t c = s.group_channels;
  if (axis.spacing == 1 && s.n_groups == 1) {
    const int64_t first = at < 0 ? -at : 0;
    const int64_t last = at + axis.taps > axis.in ? axis.in - at : axis.taps;
    if (first >= last) {
      memset(to, bytes.pad, size_t(axis.taps * c));
      return;
    }
    if (first > 0) memset(to, bytes.pad, size_t(first * c));
    copy_run(to + first * c, line + (at + first) * c, (last - first) * c, bytes.flip, bytes.end);
    if (last < axis.taps) memset(to + last * c, bytes.pad, size_t((axis.taps - last) * c));
    return;
  }
  for (int64_t tap = 0; tap < axis.taps; ++tap, at += axis.spacing, to += c) {
    if (at < 0 || at >= axis.in)
      memset(to, bytes.pad, size_t(c));
    else
      copy_run(to, line + at * s.channels, c, bytes.flip, bytes.end);
  }
}

// The taps of one output: all lines of its window, padding filled with the zero point.
SDX_INLINE void gather_pixel(const Source& s, const uint8_t* image, const Pixel& pixel, Bytes bytes,
                             uint8_t* to) {
  const Axis *deep = s.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t line_bytes = wide->taps * s.group_channels;
  const int64_t at = wide->place(pixel.at[2], 0);
  for (int64_t z = 0; z < deep->taps; ++z) {
    const int64_t depth = deep->place(pixel.at[0], z);
    for (int64_t h = 0; h < high->taps; ++h, to += line_bytes) {
      const int64_t height = high->place(pixel.at[1], h);
      if (depth < 0 || depth >= deep->in || height < 0 || height >= high->in) {
        memset(to, bytes.pad, size_t(line_bytes));
        continue;
      }
      const int64_t line = depth * high->in + height;
      gather_line(s, image + line * wide->in * s.channels, at, bytes, to);
    }
  }
}

SDX_INLINE void close_row(const Product& p, uint8_t* row) {
  for (int64_t j = p.shape.k; j < p.shape.n_groups() * kGroup; ++j) row[j] = 0;
}

void gather_windows(const Product& p, const Data& data, int64_t job, int64_t row, int64_t n,
                    uint8_t* to) {
  const auto& s = *static_cast<const Source*>(p.source);
  const Window& w = s.window;
  const int64_t image = job / s.n_groups, group = job % s.n_groups;
  const uint8_t* x =
      input<uint8_t>(data, kX) + image * w.ins() * s.channels + group * s.group_channels;
  const uint8_t zero = data.in[kXZero] == nullptr ? 0 : *input<uint8_t>(data, kXZero);
  const uint8_t* end = input<uint8_t>(data, kX) + w.batch * w.ins() * s.channels;
  const Bytes bytes{uint8_t(zero ^ p.flip), p.flip, end};
  Pixel pixel = pixel_of(w, row);
  for (int64_t i = 0; i < n; ++i) {
    gather_pixel(s, x, pixel, bytes, to + i * p.stride);
    close_row(p, to + i * p.stride);
    for (int d = kSpatial - 1; d >= 0 && ++pixel.at[d] == w.axis[d].out && d > 0; --d)
      pixel.at[d] = 0;
  }
}

// Windows of one tap that meet every input: rows are the pixels themselves.
void gather_pixels(const Product& p, const Data& data, int64_t job, int64_t row, int64_t n,
                   uint8_t* to) {
  const auto& s = *static_cast<const Source*>(p.source);
  const int64_t pixel = job / s.n_groups * p.m + row;
  const uint8_t* from =
      input<uint8_t>(data, kX) + pixel * s.channels + job % s.n_groups * s.group_channels;
  const Window& w = s.window;
  const uint8_t* end = input<uint8_t>(data, kX) + w.batch * w.ins() * s.channels;
  for (int64_t i = 0; i < n; ++i) {
    copy_run(to + i * p.stride, from + i * s.channels, p.shape.k, p.flip, end);
    close_row(p, to + i * p.stride);
  }
}

bool is_pointwise(const Window& w) {
  for (const Axis& axis : w.axis)
    if (axis.taps != 1 || axis.step != 1 || axis.begin != 0 || axis.in != axis.out) return false;
  return true;
}

}  // namespace

// ints: type of the weights, groups, maps, then the window.
Status qconv(const Call& call, Plan& plan) {
  auto* p = plan.make<Product>();
  auto* s = plan.make<Source>();
  const View& x = call.in[kX];
  s->window = read_window(x, call.out[0], call.ints + 3);
  s->n_groups = call.ints[1];
  s->channels = x.dim(-1);
  s->group_channels = s->channels / s->n_groups;
  p->w = DType(call.ints[0]);
  p->shape = {s->window.taps() * s->group_channels, call.ints[2] / s->n_groups};
  p->n_jobs = x.dims[0] * s->n_groups;
  p->m = s->window.outs();
  p->n_packs = s->n_groups;
  p->is_grouped = true;
  p->out_stride = row_pitch(call.out[0]);
  p->packed_at = -1;
  p->source = s;
  p->gather = is_pointwise(s->window) ? gather_pixels : gather_windows;
  plan_product(*p, call, plan);
  return {};
}

}  // namespace sdx::SDX_ISA::q8
