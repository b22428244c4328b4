// Normalization of rows, by mean and deviation or by their root mean square, with a sum before it.
#include "kernels/normalize/operand.h"
#include "kernels/normalize/rows.h"
#include "kernels/normalize/stats.h"

namespace sdx::SDX_ISA {
namespace {

struct LayerArgs {
  Operand x, scale, bias, skip, skip_bias;
  int64_t n;
  DType y;
  DType saved;               // the type of statistics
  int mean, inverse, total;  // outputs, or -1
  double epsilon;
};

// x + skip + bias, where there is something to add.
template <class C>
const C* summed(const LayerArgs& a, const Data& data, int64_t row, const C* x, C* room) {
  if (!a.skip.is_given()) return x;
  C* sum = room;
  const C* skip = row_of(a.skip, data, row, room + a.n);
  vloop<C>(a.n, [&](int64_t i, auto lanes) {
    store(sum + i, load(x + i, lanes) + load(skip + i, lanes), lanes);
  });
  if (a.skip_bias.is_given()) {
    const C* bias = row_of(a.skip_bias, data, row, room + a.n);
    vloop<C>(a.n, [&](int64_t i, auto lanes) {
      store(sum + i, load(sum + i, lanes) + load(bias + i, lanes), lanes);
    });
  }
  if (a.total >= 0) put_row(a.x.dtype, data.out[a.total], row * a.n, sum, a.n);
  if (a.total >= 0 && a.x.dtype == kDType<C>)
    memcpy(output<C>(data, a.total) + row * a.n, sum, size_t(a.n) * sizeof(C));
  return sum;
}

void save(const LayerArgs& a, const Data& data, int slot, int64_t row, float value) {
  if (slot < 0) return;
  if (a.saved == DType::f32)
    output<float>(data, slot)[row] = value;
  else
    output<BF16>(data, slot)[row] = element<BF16>(value);
}

template <bool kIsCentred, class C>
Status run_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const LayerArgs*>(args);
  const int64_t n = a.n;
  C* room = reinterpret_cast<C*>(data.local);
  for (int64_t row = begin; row < end; ++row) {
    const C* x = row_of(a.x, data, row, room);
    x = summed(a, data, row, x, room);
    const Stats<C> s = kIsCentred ? stats_of(x, n, a.epsilon) : root_mean_square(x, n, a.epsilon);
    save(a, data, a.mean, row, float(s.mean));
    save(a, data, a.inverse, row, float(s.factor));
    const C* scale = row_of(a.scale, data, row, room + n);
    const C* bias = a.bias.is_given() ? row_of(a.bias, data, row, room + 2 * n) : nullptr;
    C* y = place_row(a.y, data.out[0], row * n, room);
    vloop<C>(n, [&](int64_t i, auto lanes) {
      Vec<C> v = load(x + i, lanes);
      v = kIsCentred ? (v - s.mean) * s.factor + s.rest : v * s.factor;
      v *= load(scale + i, lanes);
      if (bias != nullptr) v += load(bias + i, lanes);
      store(y + i, v, lanes);
    });
    put_row(a.y, data.out[0], row * n, y, n);
  }
  return {};
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
  const auto wanted = [&](int64_t slot) { return slot < call.n_out ? int(slot) : -1; };
  a->mean = wanted(call.ints[1]), a->inverse = wanted(call.ints[2]);
  a->total = wanted(call.ints[3]);
  a->saved = a->inverse >= 0 ? call.out[a->inverse].dtype : DType::f32;
  a->epsilon = call.floats[0];
  const bool is_double = x.dtype == DType::f64;
  plan.add(is_double ? run_rows<kIsCentred, double> : run_rows<kIsCentred, float>, x.count(0, axis),
           a->n / 8 + 20);
  plan.local_bytes = 3 * a->n * (is_double ? 8 : 4);
  return {};
}

}  // namespace

Status layer_norm(const Call& call, Plan& plan) { return prepare<true>(call, plan); }
Status rms_norm(const Call& call, Plan& plan) { return prepare<false>(call, plan); }

}  // namespace sdx::SDX_ISA
