// LayerNormalization, RMSNormalization and their Skip variants: normalization of rows factor mean
// and standard deviation, or factor the root mean square, after an optional residual sum x + skip +
// bias.
#include "kernels/normalize/kernels.h"
#include "kernels/normalize/operand.h"
#include "kernels/normalize/statistics.h"

namespace sdx::SDX_ISA {
namespace {

// Short rows are normalized in groups: they share the loads of scale and bias, and their reductions
// are independent of each other.
constexpr int kGroup = 4;
constexpr int64_t kGroupBytes = 16 << 10;  // half of L1, for the rows of a group

struct LayerArgs {
  Operand x, scale, bias, skip, skip_bias;
  int64_t n;
  DType y;
  DType saved;               // element type of the statistics outputs
  int mean, inverse, total;  // numbers of outputs, or -1
  double epsilon;
  bool has_groups;
};

// x + skip + bias in `sum`, also written to the output of sums; x itself without a skip.
template <class C>
const C* summed(const LayerArgs& a, const Data& data, int64_t row, const C* x, C* sum, C* spare) {
  if (!a.skip.is_given()) return x;
  const C* skip = row_of(a.skip, data, row, spare);
  vloop<C>(a.n, [&](int64_t i, auto lanes) {
    store(sum + i, load(x + i, lanes) + load(skip + i, lanes), lanes);
  });
  if (a.skip_bias.is_given()) {
    const C* bias = row_of(a.skip_bias, data, row, spare);
    vloop<C>(a.n, [&](int64_t i, auto lanes) {
      store(sum + i, load(sum + i, lanes) + load(bias + i, lanes), lanes);
    });
  }
  if (a.total >= 0) put_row(a.x.dtype, data.out[a.total], row * a.n, sum, a.n);
  if (a.total >= 0 && a.x.dtype == kDType<C>)
    memcpy(output<C>(data, a.total) + row * a.n, sum, size_t(a.n) * sizeof(C));
  return sum;
}

void save(const LayerArgs& a, const Data& data, int number, int64_t row, float value) {
  if (number < 0) return;
  if (a.saved == DType::f32)
    output<float>(data, number)[row] = value;
  else
    output<BF16>(data, number)[row] = element<BF16>(value);
}

// Rows [row, row + kCount). A row's result does not depend on its group, so that splits of the
// range do not change results.
template <bool kIsCentred, int kCount, class C>
void run_group(const LayerArgs& a, const Data& data, int64_t row) {
  const int64_t n = a.n;
  C *scratch = reinterpret_cast<C*>(data.local), *spare = scratch + kCount * n;
  const C* x[kCount];
  C* y[kCount];
  Statistics<C> s[kCount];
  for (int k = 0; k < kCount; ++k) {
    x[k] = row_of(a.x, data, row + k, scratch + k * n);
    x[k] = summed(a, data, row + k, x[k], scratch + k * n, spare);
    y[k] = place_row(a.y, data.out[0], (row + k) * n, scratch + k * n);
    if (!kIsCentred) s[k] = root_mean_square(x[k], n, a.epsilon);
  }
  if (kIsCentred) row_statistics<kCount>(x, n, a.epsilon, s);
  const C* scale = row_of(a.scale, data, row, spare);
  const C* bias = a.bias.is_given() ? row_of(a.bias, data, row, spare + n) : nullptr;
  const auto write = [&]<bool kHasBias>() {
    vloop<C>(n, [&](int64_t i, auto lanes) {
      const Vec<C> factor = load(scale + i, lanes);
      const Vec<C> offset = kHasBias ? load(bias + i, lanes) : Vec<C>{};
      for (int k = 0; k < kCount; ++k) {
        Vec<C> v = load(x[k] + i, lanes);
        v = kIsCentred ? (v - s[k].mean) * s[k].factor + s[k].rest : v * s[k].factor;
        store(y[k] + i, kHasBias ? v * factor + offset : v * factor, lanes);
      }
    });
  };
  bias != nullptr ? write.template operator()<true>() : write.template operator()<false>();
  for (int k = 0; k < kCount; ++k) {
    save(a, data, a.mean, row + k, float(s[k].mean));
    save(a, data, a.inverse, row + k, float(s[k].factor));
    put_row(a.y, data.out[0], (row + k) * n, y[k], n);
  }
}

template <bool kIsCentred, class C>
Status run_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const LayerArgs*>(args);
  int64_t row = begin;
  if (a.has_groups)
    for (; row + kGroup <= end; row += kGroup) run_group<kIsCentred, kGroup, C>(a, data, row);
  for (; row < end; ++row) run_group<kIsCentred, 1, C>(a, data, row);
  return {};
}

// Whether all rows have the same scale or bias (all outer strides are 0): a group shares one.
bool is_shared(const Operand& o) {
  for (int i = 0; i < o.outer.n; ++i)
    if (o.outer.stride[i] != 0) return false;
  return true;
}

template <bool kIsCentred>
Status prepare(const Call& call, Plan& plan) {
  auto* a = plan.make<LayerArgs>();
  plan.args = a;
  const View& x = call.in[0];
  const int axis = int(call.ints[0]);
  a->x = operand(call, 0, axis), a->scale = operand(call, 1, axis);
  a->bias = operand(call, 2, axis), a->skip = operand(call, 3, axis);
  a->skip_bias = operand(call, 4, axis);
  a->n = x.count(axis, x.rank);
  a->y = call.out[0].dtype;
  const auto output_or_none = [&](int64_t number) {
    return number < call.n_out ? int(number) : -1;
  };
  a->mean = output_or_none(call.ints[1]), a->inverse = output_or_none(call.ints[2]);
  a->total = output_or_none(call.ints[3]);
  a->saved = a->inverse >= 0 ? call.out[a->inverse].dtype : DType::f32;
  a->epsilon = call.floats[0];
  const bool is_double = x.dtype == DType::f64;
  plan.add(is_double ? run_rows<kIsCentred, double> : run_rows<kIsCentred, float>, x.count(0, axis),
           a->n / 8 + 20);
  const int64_t bytes = a->n * (is_double ? 8 : 4);
  a->has_groups = kGroup * bytes <= kGroupBytes && is_shared(a->scale) && is_shared(a->bias);
  plan.local_bytes = (a->has_groups ? kGroup + 2 : 3) * bytes;
  return {};
}

}  // namespace

Status layer_norm(const Call& call, Plan& plan) { return prepare<true>(call, plan); }
Status rms_norm(const Call& call, Plan& plan) { return prepare<false>(call, plan); }

}  // namespace sdx::SDX_ISA
