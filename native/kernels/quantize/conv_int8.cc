// Convolutions of 8-bit channels-last images as matrix products (im2col), in three variants:
// pointwise ones multiply the pixels in place; wide images are read in place line by line, from a
// copy with padding if need be; all others gather windows into rows.
#include "kernels/quantize/gemm_int8.h"
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/padded_int8.h"
#include "kernels/row_stride.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA::int8 {
namespace {

struct ConvSource {
  Window window;
  int64_t channels, group_channels, n_groups;
};

// The padding value (the zero point of x) and the end of x, which loads must not pass.
struct InputBytes {
  uint8_t pad;
  const uint8_t* end;
};

// All taps along the last axis from position `at` of a line, which may be outside the image.
// Without dilation or groups the taps of a line are contiguous: one copy.
SDX_INLINE void gather_line(const ConvSource& s, const uint8_t* line, int64_t at, InputBytes bytes,
                            uint8_t* to) {
  const Axis& axis = s.window.axis[kSpatial - 1];
  const int64_t c = s.group_channels;
  if (axis.dilation == 1 && s.n_groups == 1) {
    const int64_t first = at < 0 ? -at : 0;
    const int64_t last = at + axis.taps > axis.in ? axis.in - at : axis.taps;
    if (first >= last) {
      memset(to, bytes.pad, size_t(axis.taps * c));
      return;
    }
    if (first > 0) memset(to, bytes.pad, size_t(first * c));
    copy_run(to + first * c, line + (at + first) * c, (last - first) * c, bytes.end);
    if (last < axis.taps) memset(to + last * c, bytes.pad, size_t((axis.taps - last) * c));
    return;
  }
  for (int64_t tap = 0; tap < axis.taps; ++tap, at += axis.dilation, to += c) {
    if (at < 0 || at >= axis.in)
      memset(to, bytes.pad, size_t(c));
    else
      copy_run(to, line + at * s.channels, c, bytes.end);
  }
}

SDX_INLINE int64_t line_bytes(const ConvSource& s) {
  return s.window.axis[kSpatial - 1].taps * s.group_channels;
}
SDX_INLINE int64_t round_to_groups(int64_t bytes) { return (bytes + kGroup - 1) / kGroup * kGroup; }

// The window of one output pixel: its lines, each padded to whole groups with bytes that are 0
// after the sign flip.
SDX_INLINE void gather_pixel(const ConvSource& s, const uint8_t* image, const Pixel& pixel,
                             InputBytes bytes, uint8_t flip, uint8_t* to) {
  const Axis *deep = s.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t n = line_bytes(s), padded_bytes = round_to_groups(n);
  const int64_t at = wide->input_index(pixel.at[2], 0);
  for (int64_t z = 0; z < deep->taps; ++z) {
    const int64_t depth = deep->input_index(pixel.at[0], z);
    for (int64_t h = 0; h < high->taps; ++h, to += padded_bytes) {
      const int64_t height = high->input_index(pixel.at[1], h);
      if (depth < 0 || depth >= deep->in || height < 0 || height >= high->in) {
        memset(to, bytes.pad, size_t(n));
      } else {
        const int64_t line = depth * high->in + height;
        gather_line(s, image + line * wide->in * s.channels, at, bytes, to);
      }
      for (int64_t i = n; i < padded_bytes; ++i) to[i] = flip;
    }
  }
}

// im2col of output pixels [row, row + n) of a job (an image, or one group of it).
void gather_windows(const Gemm& p, const Data& data, int64_t job, int64_t row, int64_t n,
                    uint8_t* to) {
  const auto& s = *static_cast<const ConvSource*>(p.source);
  const Window& w = s.window;
  const int64_t image = job / s.n_groups, group = job % s.n_groups;
  const uint8_t* x =
      input<uint8_t>(data, kX) + image * w.ins() * s.channels + group * s.group_channels;
  const uint8_t* end = input<uint8_t>(data, kX) + w.batch * w.ins() * s.channels;
  const InputBytes bytes{padding(data), end};
  Pixel pixel = pixel_of(w, row);
  for (int64_t i = 0; i < n; ++i) {
    gather_pixel(s, x, pixel, bytes, p.flip, to + i * p.stride);
    for (int d = kSpatial - 1; d >= 0 && ++pixel.at[d] == w.axis[d].out && d > 0; --d)
      pixel.at[d] = 0;
  }
}

// Whether every window is one pixel, in order: a 1x1 convolution without stride or padding.
bool is_pointwise(const Window& w) {
  for (const Axis& axis : w.axis)
    if (axis.taps != 1 || axis.stride != 1 || axis.begin != 0 || axis.in != axis.out) return false;
  return true;
}

// Phase that copies images with their padding. Item: one line.
Status pad_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const Gemm*>(args);
  const auto& s = *static_cast<const ConvSource*>(p.source);
  const int64_t pitch = reach_of(s.window.axis[2]) * s.channels;
  auto* to = reinterpret_cast<uint8_t*>(data.scratch + p.layout.at);
  for (int64_t i = begin; i < end; ++i)
    copy_padded_line(s.window, s.channels, data, i, to + i * pitch);
  return {};
}

// Whether output lines can be jobs of their own: a row of the product is then a window read in
// place, and no im2col is needed. Where the taps of a line are apart, each must be whole groups.
// Output lines shorter than two tiles would leave tiles unfilled. A padded copy larger than the
// windows does not pay: strides and dilations alone could make it larger than the memory.
bool reads_lines(const ConvSource& s) {
  const Axis *deep = s.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t windows = s.window.outs() * s.window.taps();
  if (reach_of(*high) * reach_of(*wide) > s.window.ins() + windows) return false;
  const bool is_flat = deep->in == 1 && deep->out == 1 && deep->taps == 1 && deep->begin == 0;
  const bool has_runs = wide->dilation == 1 || s.channels % kGroup == 0;
  return is_flat && s.n_groups == 1 && has_runs && wide->out >= 2 * kTileRows;
}

// Sets up the line variant; images are copied with padding unless windows stay inside and lines are
// whole groups.
void plan_lines(Gemm& p, const ConvSource& s, Plan& plan) {
  const Axis &high = s.window.axis[1], &wide = s.window.axis[2];
  const bool is_padded = !stays_inside(high) || !stays_inside(wide) || line_bytes(s) % kGroup != 0;
  const int64_t width = is_padded ? reach_of(wide) : wide.in;
  const int64_t height = is_padded ? reach_of(high) : high.in;
  const int64_t pitch = width * s.channels;
  p.n_jobs = s.window.batch * high.out;
  p.m = wide.out;
  p.stride = wide.stride * s.channels;
  Runs runs{high.taps, high.dilation * pitch};
  if (wide.dilation != 1) runs.n_runs = wide.taps, runs.run_stride = wide.dilation * s.channels;
  p.layout = {runs, high.out, high.stride * pitch, height * pitch, -1};
  if (!is_padded) return;
  p.layout.at = 0;
  plan.scratch_bytes = (s.window.batch * height * pitch + kGroup + 63) / 64 * 64;
  plan.add(pad_lines, s.window.batch * height, pitch / 32);
}

}  // namespace

// ints: type of the weights, groups, output channels, then the window.
Status qconv(const Call& call, Plan& plan) {
  auto* p = plan.make<Gemm>();
  auto* s = plan.make<ConvSource>();
  const View& x = call.in[kX];
  s->window = read_window(x, call.out[0], call.ints + 3);
  s->n_groups = call.ints[1];
  s->channels = x.dim(-1);
  s->group_channels = s->channels / s->n_groups;
  p->w = DType(call.ints[0]);
  const int64_t n_lines = s->window.axis[0].taps * s->window.axis[1].taps;
  p->shape = {n_lines * round_to_groups(line_bytes(*s)), call.ints[2] / s->n_groups};
  p->depth = n_lines * line_bytes(*s);
  p->n_jobs = x.dims[0] * s->n_groups;
  p->m = s->window.outs();
  p->n_packs = s->n_groups;
  p->is_grouped = true;
  p->out_stride = row_stride(call.out[0]);
  p->packed_at = -1;
  p->source = s;
  read_operands(*p, call);
  if (is_pointwise(s->window) && can_read_in_place(s->channels) &&
      s->group_channels % kGroup == 0) {
    p->stride = s->channels;
    p->layout.jobs = s->n_groups;
    p->layout.job_bytes = s->group_channels;
    p->layout.image_bytes = p->m * s->channels;
  } else if (reads_lines(*s)) {
    plan_lines(*p, *s, plan);
  } else {
    p->gather = gather_windows;
  }
  return plan_gemm(*p, call, plan);
}

}  // namespace sdx::SDX_ISA::int8
