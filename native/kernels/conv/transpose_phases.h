// Phases of a transposed convolution: outputs with the same remainder modulo the strides read the
// same subset of taps, at input pixels that move by one from output to output. Each phase is an
// ordinary convolution of stride 1, so no multiplication by inserted zeros happens.
#pragma once

#include "kernels/window.h"

namespace sdx::SDX_ISA {

// One axis of a phase: outputs first, first + stride, ...; taps last_tap, last_tap - every, ...
struct PhaseAxis {
  Axis axis;
  int64_t first;
  int64_t last_tap, every;
};

// Taps k with k * dilation = rest (mod stride). They repeat with a period `every` of at most stride
// taps, so two periods are searched and the rest counted. `given` is the window by its attributes.
SDX_INLINE PhaseAxis phase_axis(const Axis& given, int64_t rest) {
  const int64_t stride = given.stride, pad = -given.begin;
  PhaseAxis p;
  p.first = ((rest - pad) % stride + stride) % stride;
  int64_t n = 0, low = 0;
  p.last_tap = 0, p.every = 1;
  for (int64_t k = 0; k < given.taps && k < 2 * stride; ++k) {
    if (k * given.dilation % stride != rest) continue;
    if (++n == 1) low = k;
    if (n == 2) p.every = k - low;
  }
  if (n > 1) n = (given.taps - 1 - low) / p.every + 1;
  p.last_tap = low + (n - 1) * p.every;
  const int64_t reach = n > 0 ? (p.last_tap * given.dilation - rest) / stride : 0;
  p.axis.in = given.in;
  p.axis.out = p.first < given.out ? (given.out - 1 - p.first) / stride + 1 : 0;
  p.axis.taps = n;
  p.axis.stride = 1;
  p.axis.begin = (p.first + pad) / stride - reach;
  p.axis.dilation = n > 1 ? p.every * given.dilation / stride : 1;
  return p;
}

struct ConvPhase {
  PhaseAxis axis[kSpatial];
  int64_t taps_before;  // taps of the phases before it: offset of its packed weights

  SDX_INLINE int64_t taps() const {
    return axis[0].axis.taps * axis[1].axis.taps * axis[2].axis.taps;
  }
  SDX_INLINE int64_t outs() const { return axis[0].axis.out * axis[1].axis.out * axis[2].axis.out; }

  // Index in the kernel of tap t of the phase.
  SDX_INLINE int64_t tap_of(const Window& given, int64_t t) const {
    int64_t number = 0, scale = 1;
    for (int i = kSpatial - 1; i >= 0; --i) {
      const PhaseAxis& a = axis[i];
      number += (a.last_tap - (t % a.axis.taps) * a.every) * scale;
      t /= a.axis.taps;
      scale *= given.axis[i].taps;
    }
    return number;
  }
};

SDX_INLINE int64_t phase_count(const Window& given) {
  return given.axis[0].stride * given.axis[1].stride * given.axis[2].stride;
}

// Fills phases[0 ... phase_count).
SDX_INLINE void make_phases(const Window& given, ConvPhase* phases) {
  int64_t before = 0;
  for (int64_t i = 0; i < phase_count(given); ++i) {
    int64_t rest = i;
    for (int j = kSpatial - 1; j >= 0; --j) {
      phases[i].axis[j] = phase_axis(given.axis[j], rest % given.axis[j].stride);
      rest /= given.axis[j].stride;
    }
    phases[i].taps_before = before;
    before += phases[i].taps();
  }
}

}  // namespace sdx::SDX_ISA
