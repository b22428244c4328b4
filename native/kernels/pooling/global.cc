// Global pooling of channels-last images, in two phases: blocks of kBlockPixels pixels are reduced
// into partial results, then the partial results of an image. The split is fixed, so that the sums
// do not depend on the number of threads.
#include "kernels/pooling/kernels.h"
#include "kernels/pooling/reduction.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kBlockPixels = 256;  // pixels of an item of phase 1
// Independent accumulators, each of every fourth pixel: they hide the latency of an addition, and
// shorter sums have smaller rounding errors.
constexpr int kAccumulators = 4;

struct GlobalArgs {
  int64_t pixels, channels, blocks;
  int64_t p;
};

template <class Reduction, class Lanes>
SDX_INLINE f32v reduce_pixels(const Reduction& reduction, const float* x, int64_t stride, int64_t n,
                              Lanes lanes) {
  f32v totals[kAccumulators];
  for (f32v& f : totals) f = reduction.start();
  int64_t i = 0;
  for (; i + kAccumulators <= n; i += kAccumulators)
    for (int j = 0; j < kAccumulators; ++j)
      totals[j] = reduction.step(totals[j], load(x + (i + j) * stride, lanes));
  for (; i < n; ++i) totals[0] = reduction.step(totals[0], load(x + i * stride, lanes));
  return reduction.join(reduction.join(totals[0], totals[1]), reduction.join(totals[2], totals[3]));
}

// Phase 1, item: one block of pixels, all channels, into its row of the scratch memory.
template <class Reduction>
SDX_INLINE void reduce_block(const GlobalArgs& a, const Reduction& reduction, const Data& data,
                             int64_t item) {
  const int64_t image = item / a.blocks, first = item % a.blocks * kBlockPixels;
  const int64_t left = a.pixels - first, n = left < kBlockPixels ? left : kBlockPixels;
  const float* x = input<float>(data, 0) + (image * a.pixels + first) * a.channels;
  float* to = reinterpret_cast<float*>(data.scratch) + item * a.channels;
  vloop(a.channels, [&](int64_t c, auto lanes) {
    store(to + c, reduce_pixels(reduction, x + c, a.channels, n, lanes), lanes);
  });
}

// Phase 2, item: all channels of an image from the partial results of its blocks.
template <class Reduction>
SDX_INLINE void reduce_image(const GlobalArgs& a, const Reduction& reduction, const Data& data,
                             int64_t image) {
  const float* partials =
      reinterpret_cast<const float*>(data.scratch) + image * a.blocks * a.channels;
  float* y = output<float>(data) + image * a.channels;
  vloop(a.channels, [&](int64_t c, auto lanes) {
    f32v totals = reduction.start();
    for (int64_t i = 0; i < a.blocks; ++i)
      totals = reduction.join(totals, load(partials + i * a.channels + c, lanes));
    store(y + c, reduction.finish(totals, float(a.pixels)), lanes);
  });
}

template <class Reduction>
SDX_INLINE Reduction reduction_of(const GlobalArgs& a) {
  if constexpr (requires(Reduction f) { f.p; }) {
    return Reduction{a.p};
  } else {
    return Reduction{};
  }
}

template <class Reduction>
Status reduce_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GlobalArgs*>(args);
  for (int64_t i = begin; i < end; ++i) reduce_block(a, reduction_of<Reduction>(a), data, i);
  return {};
}

template <class Reduction>
Status reduce_images(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GlobalArgs*>(args);
  for (int64_t i = begin; i < end; ++i) reduce_image(a, reduction_of<Reduction>(a), data, i);
  return {};
}

template <class Reduction>
void add_global(const Call& call, Plan& plan) {
  const View& x = call.in[0];
  auto* args = plan.make<GlobalArgs>();
  const int64_t batch = x.dims[0];
  args->pixels = x.count(1, x.rank - 1);
  args->channels = x.dim(-1);
  args->blocks = (args->pixels + kBlockPixels - 1) / kBlockPixels;
  args->p = call.n_ints > 0 ? call.ints[0] : 1;
  plan.args = args;
  plan.scratch_bytes = batch * args->blocks * args->channels * int64_t(sizeof(float));
  plan.add(reduce_blocks<Reduction>, batch * args->blocks,
           args->channels * kBlockPixels / kLanes / 2);
  plan.add(reduce_images<Reduction>, batch, args->channels * (args->blocks + 1) / kLanes);
}

}  // namespace

Status global_max_pool_f32(const Call& call, Plan& plan) {
  add_global<MaxReduction<float>>(call, plan);
  return {};
}

Status global_average_pool_f32(const Call& call, Plan& plan) {
  add_global<MeanReduction>(call, plan);
  return {};
}

// ints: p.
Status global_lp_pool_f32(const Call& call, Plan& plan) {
  add_global<NormReduction>(call, plan);
  return {};
}

}  // namespace sdx::SDX_ISA
