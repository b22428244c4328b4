// Convolutions of 8-bit numbers, channels last: each output's inputs are gathered into a row.
#include "kernels/qgemm/list.h"
#include "kernels/qgemm/product.h"
#include "kernels/qgemm/window.h"

namespace sdx::SDX_ISA {
namespace {

struct ConvSource {
  Window window;
  int64_t channels, group_channels, n_groups;
};

// Bytes of taps [first, last) along the last axis from position `at`, which may lie outside.
SDX_INLINE void gather_line(const ConvSource& s, const uint8_t* line, int64_t at, uint8_t pad,
                            uint8_t flip, uint8_t* to) {
  const Window& w = s.window;
  const int64_t kernel = w.kernel[w.rank - 1], step = w.dilations[w.rank - 1];
  const int64_t size = w.ins[w.rank - 1], c = s.group_channels;
  if (step == 1 && s.n_groups == 1) {
    const int64_t first = at < 0 ? -at : 0, last = at + kernel > size ? size - at : kernel;
    if (first >= last) {
      memset(to, pad, size_t(kernel * c));
      return;
    }
    if (first > 0) memset(to, pad, size_t(first * c));
    copy_flip(to + first * c, line + (at + first) * c, (last - first) * c, flip);
    if (last < kernel) memset(to + last * c, pad, size_t((kernel - last) * c));
    return;
  }
  for (int64_t tap = 0; tap < kernel; ++tap, at += step, to += c) {
    if (at < 0 || at >= size)
      memset(to, pad, size_t(c));
    else
      copy_flip(to, line + at * s.channels, c, flip);
  }
}

// The taps of one output: all lines of the window, padding filled with the zero point.
SDX_INLINE void gather_row(const ConvSource& s, const uint8_t* image, const int64_t* out,
                           uint8_t pad, uint8_t flip, uint8_t* to) {
  const Window& w = s.window;
  const int last = w.rank - 1;
  const int64_t bytes = w.kernel[last] * s.group_channels;
  int64_t tap[kMaxSpatial] = {};
  for (int64_t i = 0; i < w.n_lines; ++i, to += bytes) {
    int64_t at = 0;
    bool is_inside = true;
    for (int d = 0; d < last; ++d) {
      const int64_t p = out[d] * w.strides[d] - w.front[d] + tap[d] * w.dilations[d];
      is_inside = is_inside && p >= 0 && p < w.ins[d];
      at = at * w.ins[d] + p;
    }
    if (is_inside)
      gather_line(s, image + at * w.ins[last] * s.channels,
                  out[last] * w.strides[last] - w.front[last], pad, flip, to);
    else
      memset(to, pad, size_t(bytes));
    for (int d = last - 1; d >= 0 && ++tap[d] == w.kernel[d]; --d) tap[d] = 0;
  }
}

void gather_conv(const Product& p, const Data& data, int64_t job, int64_t row, int64_t n,
                 uint8_t* to) {
  const auto& s = *static_cast<const ConvSource*>(p.source);
  const Window& w = s.window;
  const int64_t image_bytes = w.n_ins * s.channels;
  const uint8_t* x = input<uint8_t>(data, kX) + job / s.n_groups * image_bytes +
                     job % s.n_groups * s.group_channels;
  const uint8_t zero = data.in[kXZero] == nullptr ? 0 : *input<uint8_t>(data, kXZero);
  int64_t out[kMaxSpatial];
  w.locate(row, out);
  for (int64_t i = 0; i < n; ++i) {
    uint8_t* line = to + i * p.stride;
    gather_row(s, x, out, zero ^ p.flip, p.flip, line);
    for (int64_t j = p.shape.k; j < p.shape.n_groups() * kGroup; ++j) line[j] = 0;
    w.advance(out);
  }
}

// Windows of one tap that meet every input: rows are the pixels themselves.
void gather_pixels(const Product& p, const Data& data, int64_t job, int64_t row, int64_t n,
                   uint8_t* to) {
  const auto& s = *static_cast<const ConvSource*>(p.source);
  const int64_t k = p.shape.k;
  const int64_t pixel = job / s.n_groups * p.m + row;
  const uint8_t* from =
      input<uint8_t>(data, kX) + pixel * s.channels + job % s.n_groups * s.group_channels;
  for (int64_t i = 0; i < n; ++i) {
    uint8_t* line = to + i * p.stride;
    copy_flip(line, from + i * s.channels, k, p.flip);
    for (int64_t j = k; j < p.shape.n_groups() * kGroup; ++j) line[j] = 0;
  }
}

}  // namespace

// ints: type of the weights, groups, maps, then the window (window.h).
Status qconv(const Call& call, Plan& plan) {
  auto* p = plan.make<Product>();
  auto* s = plan.make<ConvSource>();
  const View &x = call.in[kX], &y = call.out[0];
  s->window = make_window(x, y, call.ints + 3);
  s->n_groups = call.ints[1];
  s->channels = x.dim(-1);
  s->group_channels = s->channels / s->n_groups;
  const Window& w = s->window;
  p->w = DType(call.ints[0]);
  p->shape = {w.n_lines * w.kernel[w.rank - 1] * s->group_channels, call.ints[2] / s->n_groups};
  p->n_jobs = x.dims[0] * s->n_groups;
  p->m = w.n_outs;
  p->n_packs = s->n_groups;
  p->is_grouped = true;
  p->out_stride = call.ints[2];
  p->packed_at = -1;
  p->source = s;
  p->gather = w.is_pointwise() ? gather_pixels : gather_conv;
  plan_product(*p, call, plan);
  return {};
}

}  // namespace sdx::SDX_ISA
