#include "kernels/sample/interleaved.h"

#include "simd/transpose.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kPixels = 256;  // of an item

// Transposes 16 rows of 16 floats.
SDX_INLINE void transpose_group(const float* from, int64_t from_stride, float* to,
                                int64_t to_stride) {
  for (int i = 0; i < kGroup; i += kLanes)
    for (int j = 0; j < kGroup; j += kLanes)
      transpose_square<uint32_t, SDX_VEC_BYTES>(
          reinterpret_cast<const std::byte*>(from + i * from_stride + j), from_stride * 4,
          reinterpret_cast<std::byte*>(to + j * to_stride + i), to_stride * 4);
}

// Items: blocks of the pixels of a group.
Status interleave(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Interleaved*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item % a.blocks, which = item / a.blocks, group = which % a.groups;
    const int64_t first = block * kPixels, unit = which / a.groups;
    const int64_t last = first + kPixels < a.plane ? first + kPixels : a.plane;
    const float* x = input<float>(data, 0) + (unit * a.channels + group * kGroup) * a.plane;
    auto* y = const_cast<float*>(a.pixels(data, unit, group));
    const int64_t live = a.live_channels(group);
    int64_t i = first;
    for (; live == kGroup && i + kGroup <= last; i += kGroup)
      transpose_group(x + i, a.plane, y + i * kGroup, kGroup);
    for (; i < last; ++i)
      for (int64_t c = 0; c < kGroup; ++c) y[i * kGroup + c] = c < live ? x[c * a.plane + i] : 0;
    if (last == a.plane) memset(y + a.plane * kGroup, 0, kGroup * sizeof(float));
  }
  return {};
}

}  // namespace

void add_interleaved(int64_t units, int64_t channels, int64_t plane, Interleaved& images,
                     Plan& plan) {
  images = {units, channels, plane, (channels + kGroup - 1) / kGroup,
            (plane + kPixels - 1) / kPixels};
  plan.scratch_bytes = units * images.groups * (plane + 1) * kGroup * int64_t(sizeof(float));
  plan.add(interleave, units * images.groups * images.blocks, kPixels * kGroup / 4);
}

void point_outside(const TapTable& taps, int64_t plane) {
  for (int t = 0; t < taps.n_taps; ++t) {
    int32_t* at = taps.at + t * taps.pitch;
    float* weight = taps.weight + t * taps.pitch;
    for (int64_t p = 0; p < taps.n; ++p) {
      weight[p] = at[p] < 0 ? 0 : weight[p];
      at[p] = at[p] < 0 ? int32_t(plane) : at[p];
    }
  }
}

void sum_group(const TapTable& taps, const float* pixels, int64_t live, const float* mask, float* y,
               int64_t stride) {
  constexpr int kVectors = kGroup / kLanes;
  alignas(64) float sums[kGroup * kGroup], transposed[kGroup * kGroup];
  for (int64_t first = 0; first < taps.n; first += kGroup) {
    const int64_t n = taps.n - first < kGroup ? taps.n - first : kGroup;
    for (int64_t p = first; p < first + n; ++p) {
      f32v sum[kVectors] = {};
      for (int t = 0; t < taps.n_taps; ++t) {
        const float weight = taps.weight[t * taps.pitch + p];
        const float* x = pixels + int64_t(taps.at[t * taps.pitch + p]) * kGroup;
        for (int v = 0; v < kVectors; ++v) sum[v] += weight * load(x + v * kLanes);
      }
      const float scale = mask ? mask[p] : 1.0f;
      for (int v = 0; v < kVectors; ++v)
        store(sums + (p - first) * kGroup + v * kLanes, mask ? sum[v] * scale : sum[v]);
    }
    if (n == kGroup && live == kGroup) {
      transpose_group(sums, kGroup, y + first, stride);
    } else {
      transpose_group(sums, kGroup, transposed, kGroup);
      for (int64_t c = 0; c < live; ++c)
        memcpy(y + c * stride + first, transposed + c * kGroup, size_t(n) * sizeof(float));
    }
  }
}

}  // namespace sdx::SDX_ISA
