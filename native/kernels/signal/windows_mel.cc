// Cosine-sum windows (Hann, Hamming, Blackman) and the MelWeightMatrix.
#include "kernels/elements.h"
#include "kernels/signal/kernels.h"
#include "simd/double_math.h"

namespace sdx::SDX_ISA {
namespace {

using Reals = Types<float, double>;

struct WindowArgs {
  int64_t n;
  bool is_periodic;
  double factors[3];
};

template <class T>
Status fill_window(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const WindowArgs*>(args);
  const double step = 6.283185307179586476925 / double(a.is_periodic ? a.n : a.n - 1);
  f64v lane{};
  for (int i = 0; i < kLanesOf<double>; ++i) lane[i] = i;
  for (int64_t i = begin; i < end; i += kLanesOf<double>) {
    const f64v angle = (double(i) + lane) * step;
    const f64v y = a.factors[0] + a.factors[1] * dcos(angle) + a.factors[2] * dcos(2.0 * angle);
    for (int j = 0; j < kLanesOf<double> && i + j < end; ++j) output<T>(data)[i + j] = T(y[j]);
  }
  return {};
}

struct MelArgs {
  int64_t bins, bands;
  DType length_type, rate_type;
  bool has_doubles;  // edges as float64
};

double real_in(const MelArgs& a, const Data& data, int operand) {
  return a.has_doubles ? input<double>(data, operand)[0] : double(input<float>(data, operand)[0]);
}

int64_t whole_in(const Data& data, int operand, DType dtype) {
  return dtype == DType::i32 ? input<int32_t>(data, operand)[0] : input<int64_t>(data, operand)[0];
}

// Band edges, evenly spaced on the mel scale: mel = 2595 log10(1 + f / 700).
struct MelScale {
  double first, step, length, rate;
  int64_t bands;

  // The spectrum bin of edge i; band b is the triangle over edges b, b + 1 and b + 2.
  double bin(int64_t i) const {
    const double mel = first + double(i) * step;
    const double hertz = 700 * (__builtin_pow(10, mel / 2595) - 1);
    return __builtin_floor((length + 1) * hertz / rate);
  }
};

MelScale read_scale(const MelArgs& a, const Data& data) {
  MelScale scale;
  const auto mel = [&](int operand) {
    return 2595 * __builtin_log10(1 + real_in(a, data, operand) / 700);
  };
  scale.bands = a.bands;
  scale.first = mel(3);
  scale.step = (mel(4) - scale.first) / double(a.bands + 2);
  scale.length = double(whole_in(data, 1, a.length_type));
  scale.rate = double(whole_in(data, 2, a.rate_type));
  return scale;
}

// A triangular filter at bin `at`; a band whose edges share a bin weighs only its centre.
double weight(double at, double low, double center, double high) {
  if (at >= center && at < high) return (high - at) / (high - center);
  if (at < low || at > center) return 0;
  return low == center ? double(at == center) : (at - low) / (center - low);
}

// Item: one mel band, a column of the matrix.
template <class T>
Status fill_bands(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const MelArgs*>(args);
  const MelScale scale = read_scale(a, data);
  const double bins = double(a.bins), last = scale.bin(a.bands + 1);
  if (!(scale.rate >= 1))
    return Status::fail("the sample rate must be 1 or more, got %g", scale.rate);
  if (!(scale.bin(0) >= 0 && scale.bin(a.bands) < bins && last <= bins))
    return Status::fail("mel bands end at bin %g, outside the spectrum of %ld bins", last,
                        long(a.bins));
  for (int64_t band = begin; band < end; ++band) {
    const double low = scale.bin(band), center = scale.bin(band + 1), high = scale.bin(band + 2);
    for (int64_t i = 0; i < a.bins; ++i)
      output<T>(data)[i * a.bands + band] = T(weight(double(i), low, center, high));
  }
  return {};
}

}  // namespace

Status cosine_window(const Call& call, Plan& plan) {
  return visit(call.out[0].dtype, Reals{}, [&]<class T>() {
    auto* a = plan.make<WindowArgs>();
    *a = {call.out[0].dims[0], call.ints[0] != 0, {}};
    for (int i = 0; i < 3; ++i) a->factors[i] = call.floats[i];
    plan.args = a;
    plan.add(fill_window<T>, a->n, 40);
    return Status{};
  });
}

Status cosine_window_sizes(const Call& call, const Data& data, View* out) {
  const int64_t n = number_in(call, data, 0);
  if (n < 0) return Status::fail("a window of %ld samples: the size is 0 or more", long(n));
  out->dims[0] = n;
  return {};
}

Status mel_weights(const Call& call, Plan& plan) {
  return visit(call.out[0].dtype, Reals{}, [&]<class T>() {
    auto* a = plan.make<MelArgs>();
    const View& y = call.out[0];
    *a = {y.dims[0], y.dims[1], call.in[1].dtype, call.in[2].dtype, call.in[3].dtype == DType::f64};
    plan.args = a;
    plan.add(fill_bands<T>, a->bands, 100 + 4 * a->bins);
    return Status{};
  });
}

Status mel_weights_sizes(const Call& call, const Data& data, View* out) {
  const int64_t bands = number_in(call, data, 0), length = number_in(call, data, 1);
  if (bands < 0 || length < 0)
    return Status::fail("%ld mel bands of a transform of %ld samples: neither may be negative",
                        long(bands), long(length));
  out->dims[0] = length / 2 + 1, out->dims[1] = bands;
  return {};
}

}  // namespace sdx::SDX_ISA
