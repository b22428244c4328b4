// OneHot, Compress and NonZero: places made from values, and values picked by conditions.
#include "kernels/gather/places.h"
#include "kernels/gather/rows.h"
#include "kernels/move/runs.h"

namespace sdx::SDX_ISA::gathering {
namespace {

// A number as an index: fractions are cut off, what no index can be is below all of them.
int64_t index_of(const void* data, DType dtype, int64_t i) {
  const auto whole = [](double x) { return x > -9e18 && x < 9e18 ? int64_t(x) : INT64_MIN; };
  switch (dtype) {
    case DType::i8: return static_cast<const int8_t*>(data)[i];
    case DType::u8: return static_cast<const uint8_t*>(data)[i];
    case DType::i16: return static_cast<const Loose<int16_t>*>(data)[i];
    case DType::u16: return static_cast<const Loose<uint16_t>*>(data)[i];
    case DType::i32: return static_cast<const Loose<int32_t>*>(data)[i];
    case DType::u32: return static_cast<const Loose<uint32_t>*>(data)[i];
    case DType::f32: return whole(double(static_cast<const Loose<float>*>(data)[i]));
    case DType::f64: return whole(static_cast<const Loose<double>*>(data)[i]);
    default: return static_cast<const Loose<int64_t>*>(data)[i];
  }
}

struct OneHotArgs {
  int64_t depth, inner, size;
  DType index;
};

// Items are places of the indices before the new axis.
Status one_hot_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const OneHotArgs*>(args);
  const std::byte* off = input<std::byte>(data, 2);
  const std::byte* on = off + a.size;
  for (int64_t item = begin; item < end; ++item) {
    std::byte* to = output<std::byte>(data) + item * a.depth * a.inner * a.size;
    visit_word(a.size, [&]<class T>() { fill_words<T>(to, off, a.depth * a.inner); });
    for (int64_t j = 0; j < a.inner; ++j) {
      int64_t at = index_of(data.in[0], a.index, item * a.inner + j);
      if (at != INT64_MIN && place(at, a.depth))
        memcpy(to + (at * a.inner + j) * a.size, on, size_t(a.size));
    }
  }
  return {};
}

struct CompressArgs {
  int64_t axis_len, kept, unit;
};

// Items are what lies before the axis.
Status compress_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const CompressArgs*>(args);
  const auto* is_kept = input<uint8_t>(data, 1);
  for (int64_t item = begin; item < end; ++item) {
    const std::byte* from = input<std::byte>(data, 0) + item * a.axis_len * a.unit;
    std::byte* to = output<std::byte>(data) + item * a.kept * a.unit;
    for (int64_t k = 0, left = a.kept; left > 0; ++k) {
      if (is_kept[k] == 0) continue;
      copy_bytes(to, from + k * a.unit, a.unit);
      to += a.unit;
      --left;
    }
  }
  return {};
}

// The axis of Compress counts all elements if none is given (ints: -1).
int64_t compressed_len(const Call& call) {
  return call.ints[0] < 0 ? call.in[0].count() : call.in[0].dims[call.ints[0]];
}

// Calls f(i) for every element that is not 0. Floats are compared: -0 is 0, and NaN is not.
template <class F>
void visit_nonzero(const void* data, DType dtype, int64_t n, F f) {
  const auto scan = [&]<class T>() {
    const auto* x = static_cast<const Loose<T>*>(data);
    for (int64_t i = 0; i < n; ++i)
      if (x[i] != 0) f(i);
  };
  switch (dtype) {
    case DType::f32: return scan.template operator()<float>();
    case DType::f64: return scan.template operator()<double>();
    default: visit_word(size_of(dtype), [&]<class T>() { scan.template operator()<T>(); });
  }
}

struct NonzeroArgs {
  View in;
  int64_t found;
};

Status nonzero_items(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const NonzeroArgs*>(args);
  int64_t k = 0;
  visit_nonzero(data.in[0], a.in.dtype, a.in.count(), [&](int64_t i) {
    for (int axis = a.in.rank - 1; axis >= 0; --axis) {
      output<int64_t>(data)[axis * a.found + k] = i % a.in.dims[axis];
      i /= a.in.dims[axis];
    }
    ++k;
  });
  return {};
}

}  // namespace

// ints: the new axis. Operands: indices, depth, the values off and on.
Status one_hot(const Call& call, Plan& plan) {
  const View &index = call.in[0], &out = call.out[0];
  const int axis = int(call.ints[0]);
  auto* a = plan.make<OneHotArgs>();
  *a = {out.dims[axis], index.count(axis, index.rank), size_of(out.dtype), index.dtype};
  plan.args = a;
  const int64_t items = out.count() == 0 ? 0 : index.count(0, axis);
  plan.add(one_hot_items, items, a->depth * a->inner * a->size / 16 + 2);
  return {};
}

Status resolve_one_hot(const Call& call, const Data& data, View* out) {
  const int axis = int(call.ints[0]);
  const int64_t depth = index_of(data.in[1], call.in[1].dtype, 0);
  if (depth < 0) return Status::fail("the depth %ld is negative", long(depth));
  for (int i = 0; i < out->rank; ++i)
    out->dims[i] = i < axis ? call.in[0].dims[i] : i == axis ? depth : call.in[0].dims[i - 1];
  return addressable(*out);
}

// ints: the axis, or -1 for all elements in a row. Operands: data, condition.
Status compress(const Call& call, Plan& plan) {
  const View &in = call.in[0], &out = call.out[0];
  const int axis = int(call.ints[0]);
  auto* a = plan.make<CompressArgs>();
  const int64_t size = size_of(in.dtype);
  a->axis_len = compressed_len(call);
  a->kept = out.dims[axis < 0 ? 0 : axis];
  a->unit = axis < 0 ? size : in.count(axis + 1, in.rank) * size;
  plan.args = a;
  const int64_t items = out.count() == 0 ? 0 : axis < 0 ? 1 : in.count(0, axis);
  plan.add(compress_items, items, a->axis_len * (a->unit / 16 + 1));
  return {};
}

Status resolve_compress(const Call& call, const Data& data, View* out) {
  const int axis = int(call.ints[0]);
  const int64_t len = compressed_len(call), given = call.in[1].count();
  int64_t kept = 0;
  for (int64_t i = 0; i < (given < len ? given : len); ++i) kept += input<uint8_t>(data, 1)[i] != 0;
  for (int i = 0; i < out->rank; ++i) out->dims[i] = call.in[0].dims[i];
  out->dims[axis < 0 ? 0 : axis] = kept;
  return {};
}

Status nonzero(const Call& call, Plan& plan) {
  auto* a = plan.make<NonzeroArgs>();
  *a = {call.in[0], call.out[0].dims[1]};
  plan.args = a;
  plan.add(nonzero_items, call.out[0].count() == 0 ? 0 : 1, call.in[0].count());
  return {};
}

Status resolve_nonzero(const Call& call, const Data& data, View* out) {
  int64_t found = 0;
  visit_nonzero(data.in[0], call.in[0].dtype, call.in[0].count(), [&](int64_t) { ++found; });
  out->dims[0] = call.in[0].rank;
  out->dims[1] = found;
  return {};
}

}  // namespace sdx::SDX_ISA::gathering
