// BatchNormalization (statistics are operands) and GroupNormalization or InstanceNormalization
// (statistics of a group of channels), each with one scale and bias per channel.
#include "kernels/normalize/kernels.h"
#include "kernels/normalize/operand.h"
#include "kernels/normalize/statistics.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kBlock = 4096;  // elements that are converted at a time: 16 KiB, half of L1

struct BatchArgs {
  AxisView axis;
  int64_t blocks;  // of columns
  DType dtypes[5];
  double epsilon;
};

template <class C>
C scalar_at(DType dtype, const void* x, int64_t i) {
  switch (dtype) {
    case DType::f32: return C(static_cast<const float*>(x)[i]);
    case DType::f64: return C(static_cast<const double*>(x)[i]);
    case DType::f16: return number<C>(static_cast<const F16*>(x)[i]);
    default: return number<C>(static_cast<const BF16*>(x)[i]);
  }
}

// Phase 1 of batch_norm, one item: per channel factor = scale / sqrt(variance + epsilon), mean and
// bias, converted into three arrays of scratch memory. Phase 2 then needs no division.
template <class C>
Status prepare_factors(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const BatchArgs*>(args);
  C* to = reinterpret_cast<C*>(data.scratch);
  const int64_t n = a.axis.n;
  for (int64_t i = 0; i < n; ++i) {
    const C variance = scalar_at<C>(a.dtypes[4], data.in[4], i);
    to[i] = scalar_at<C>(a.dtypes[1], data.in[1], i) / __builtin_sqrt(variance + C(a.epsilon));
    to[n + i] = scalar_at<C>(a.dtypes[3], data.in[3], i);
    to[2 * n + i] = scalar_at<C>(a.dtypes[2], data.in[2], i);
  }
  return {};
}

// Channels-last: items are pixels, whose channels are contiguous.
template <class T>
Status batch_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const BatchArgs*>(args);
  using C = Wide<T>;
  const int64_t n = a.axis.n;
  const C* factor = reinterpret_cast<const C*>(data.scratch);
  C buffer[kBlock];
  for (int64_t row = begin; row < end; ++row) {
    const Offsets at = offsets_of(a.axis.outer, a.axis.outer.n, row);
    for (int64_t i = 0; i < n; i += kBlock) {
      const int64_t count = n - i < kBlock ? n - i : kBlock;
      const C* x = read_elements<C>(input<T>(data, 0) + at.in + i * a.axis.stride, a.axis.stride,
                                    count, buffer);
      T* to = output<T>(data) + at.out + i;
      C* y = result_buffer<C>(to, buffer);
      const C* f = factor + i;
      vloop<C>(count, [&](int64_t j, auto lanes) {
        const Vec<C> centred = load(x + j, lanes) - load(f + n + j, lanes);
        store(y + j, centred * load(f + j, lanes) + load(f + 2 * n + j, lanes), lanes);
      });
      write_elements(to, y, count);
    }
  }
  return {};
}

// Channels-first: items are blocks of one channel, whose factor is a scalar.
template <class T>
Status batch_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const BatchArgs*>(args);
  using C = Wide<T>;
  const int64_t n = a.axis.n;
  const C* factor = reinterpret_cast<const C*>(data.scratch);
  C buffer[kBlock];
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / a.blocks, channel = row % n, first = item % a.blocks * kBlock;
    const int64_t rest = a.axis.columns - first, count = rest < kBlock ? rest : kBlock;
    const Offsets at = offsets_of(a.axis.outer, a.axis.outer.n, row / n);
    const T* from = input<T>(data, 0) + at.in + channel * a.axis.stride;
    const C* x =
        read_elements<C>(from + first * a.axis.column_stride, a.axis.column_stride, count, buffer);
    T* to = output<T>(data) + at.out + channel * a.axis.out_stride + first;
    C* y = result_buffer<C>(to, buffer);
    const C f = factor[channel], mean = factor[n + channel], bias = factor[2 * n + channel];
    vloop<C>(count, [&](int64_t j, auto lanes) {
      store(y + j, (load(x + j, lanes) - mean) * f + bias, lanes);
    });
    write_elements(to, y, count);
  }
  return {};
}

struct GroupArgs {
  int64_t groups, channels, inner;  // channels of a group; elements of a channel
  double epsilon;
};

// Items are groups of one batch entry. Scale and bias fold into the normalization per channel:
// ((x - mean) * factor + rest) * scale + bias = (x - mean) * (factor * scale) + (bias + rest *
// scale).
template <class T>
Status group_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GroupArgs*>(args);
  using C = Wide<T>;
  const int64_t n = a.channels * a.inner;
  C* scratch = reinterpret_cast<C*>(data.local);
  for (int64_t row = begin; row < end; ++row) {
    const C* x = read_elements<C>(input<T>(data, 0) + row * n, 1, n, scratch);
    Statistics<C> s;
    row_statistics<1>(&x, n, a.epsilon, &s);
    T* to = output<T>(data) + row * n;
    C* y = result_buffer<C>(to, scratch);
    for (int64_t c = 0; c < a.channels; ++c) {
      const int64_t channel = row % a.groups * a.channels + c, at = c * a.inner;
      const C scale = number<C>(input<T>(data, 1)[channel]), factor = s.factor * scale;
      const C bias = number<C>(input<T>(data, 2)[channel]) + s.rest * scale;
      vloop<C>(a.inner, [&](int64_t i, auto lanes) {
        store(y + at + i, (load(x + at + i, lanes) - s.mean) * factor + bias, lanes);
      });
    }
    write_elements(to, y, n);
  }
  return {};
}

}  // namespace

Status batch_norm(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Floats{}, [&]<class T>() {
    using C = Wide<T>;
    auto* a = plan.make<BatchArgs>();
    plan.args = a;
    // An input of rank 1 has no channel axis and one channel: prepend an axis of size 1.
    View x = call.in[0], y = call.out[0];
    int axis = int(call.ints[0]);
    if (axis < 0) {
      x.dims[1] = x.dims[0], x.strides[1] = x.strides[0];
      x.rank = 2, x.dims[0] = 1, axis = 0;
      y = x;
      y.set_contiguous_strides();
    }
    a->axis = view_along(x, y, axis);
    for (int i = 0; i < 5; ++i) a->dtypes[i] = call.in[i].dtype;
    a->epsilon = call.floats[0];
    const int64_t n = a->axis.n, columns = a->axis.columns;
    plan.scratch_bytes = 3 * n * int64_t(sizeof(C));
    plan.add(prepare_factors<C>, 1, n * 5);
    a->blocks = (columns + kBlock - 1) / kBlock;
    if (columns == 1)
      plan.add(batch_rows<T>, a->axis.n_outer, n / 8 + 5);
    else
      plan.add(batch_columns<T>, a->axis.n_outer * n * a->blocks,
               (columns < kBlock ? columns : kBlock) / 8 + 5);
    return Status{};
  });
}

Status group_norm(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Floats{}, [&]<class T>() {
    auto* a = plan.make<GroupArgs>();
    plan.args = a;
    const View& x = call.in[0];
    a->groups = call.ints[0] > 0 ? call.ints[0] : x.dims[1];
    a->channels = a->groups ? x.dims[1] / a->groups : 0;
    a->inner = x.count(2, x.rank);
    a->epsilon = call.floats[0];
    const int64_t n = a->channels * a->inner;
    plan.add(group_rows<T>, x.dims[0] * a->groups, n / 4 + 20);
    if (!std::is_same_v<T, Wide<T>>) plan.local_bytes = n * int64_t(sizeof(Wide<T>));
    return Status{};
  });
}

}  // namespace sdx::SDX_ISA
