// Pools of whole images, with the channels last: pieces of an image first, then all of them.
#include "kernels/pool/fold.h"
#include "kernels/pool/rows.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kPiece = 256;  // pixels folded in one go
constexpr int kWays = 4;         // folds side by side, of every fourth pixel: shorter sums err less

struct GlobalArgs {
  int64_t pixels, channels, pieces;
  int64_t p;
};

template <class Fold, class Lanes>
SDX_INLINE f32v fold_pixels(const Fold& fold, const float* x, int64_t stride, int64_t n,
                            Lanes lanes) {
  f32v found[kWays];
  for (f32v& f : found) f = fold.start();
  int64_t i = 0;
  for (; i + kWays <= n; i += kWays)
    for (int j = 0; j < kWays; ++j)
      found[j] = fold.take(found[j], load(x + (i + j) * stride, lanes));
  for (; i < n; ++i) found[0] = fold.take(found[0], load(x + i * stride, lanes));
  return fold.join(fold.join(found[0], found[1]), fold.join(found[2], found[3]));
}

// Item: all channels of a piece of an image, into its row of the scratch memory.
template <class Fold>
SDX_INLINE void fold_piece(const GlobalArgs& a, const Fold& fold, const Data& data, int64_t item) {
  const int64_t image = item / a.pieces, first = item % a.pieces * kPiece;
  const int64_t left = a.pixels - first, n = left < kPiece ? left : kPiece;
  const float* x = input<float>(data, 0) + (image * a.pixels + first) * a.channels;
  float* to = reinterpret_cast<float*>(data.scratch) + item * a.channels;
  vloop(a.channels, [&](int64_t c, auto lanes) {
    store(to + c, fold_pixels(fold, x + c, a.channels, n, lanes), lanes);
  });
}

// Item: all channels of an image from its pieces.
template <class Fold>
SDX_INLINE void fold_image(const GlobalArgs& a, const Fold& fold, const Data& data, int64_t image) {
  const float* parts = reinterpret_cast<const float*>(data.scratch) + image * a.pieces * a.channels;
  float* y = output<float>(data) + image * a.channels;
  vloop(a.channels, [&](int64_t c, auto lanes) {
    f32v found = fold.start();
    for (int64_t i = 0; i < a.pieces; ++i)
      found = fold.join(found, load(parts + i * a.channels + c, lanes));
    store(y + c, fold.finish(found, float(a.pixels)), lanes);
  });
}

template <class Fold>
SDX_INLINE Fold fold_of(const GlobalArgs& a) {
  if constexpr (requires(Fold f) { f.p; }) {
    return Fold{a.p};
  } else {
    return Fold{};
  }
}

template <class Fold>
Status fold_pieces(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GlobalArgs*>(args);
  for (int64_t i = begin; i < end; ++i) fold_piece(a, fold_of<Fold>(a), data, i);
  return {};
}

template <class Fold>
Status fold_images(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GlobalArgs*>(args);
  for (int64_t i = begin; i < end; ++i) fold_image(a, fold_of<Fold>(a), data, i);
  return {};
}

template <class Fold>
void add_global(const Call& call, Plan& plan) {
  const View& x = call.in[0];
  auto* args = plan.make<GlobalArgs>();
  const int64_t batch = x.dims[0];
  args->pixels = x.count(1, x.rank - 1);
  args->channels = x.dim(-1);
  args->pieces = (args->pixels + kPiece - 1) / kPiece;
  args->p = call.n_ints > 0 ? call.ints[0] : 1;
  plan.args = args;
  plan.scratch_bytes = batch * args->pieces * args->channels * int64_t(sizeof(float));
  plan.add(fold_pieces<Fold>, batch * args->pieces, args->channels * kPiece / kLanes / 2);
  plan.add(fold_images<Fold>, batch, args->channels * (args->pieces + 1) / kLanes);
}

}  // namespace

Status global_max_pool_f32(const Call& call, Plan& plan) {
  add_global<MaxFold<float>>(call, plan);
  return {};
}

Status global_average_pool_f32(const Call& call, Plan& plan) {
  add_global<MeanFold>(call, plan);
  return {};
}

// ints: p.
Status global_lp_pool_f32(const Call& call, Plan& plan) {
  add_global<NormFold>(call, plan);
  return {};
}

}  // namespace sdx::SDX_ISA
