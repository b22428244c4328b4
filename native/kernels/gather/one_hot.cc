// OneHot: every output is filled with the off value, and then one element per index is set to the
// on value. An index outside [-depth, depth) sets none, as in ONNX; it is not an error.
#include "kernels/gather/indices.h"
#include "kernels/gather/kernels.h"
#include "kernels/move/copy_bytes.h"

namespace sdx::SDX_ISA::gathering {
namespace {

// An element of any numeric type as an index: fractions truncate; NaN and floats beyond int64
// become INT64_MIN, which is outside every axis.
int64_t index_of(const void* data, DType dtype, int64_t i) {
  const auto whole = [](double x) { return x > -9e18 && x < 9e18 ? int64_t(x) : INT64_MIN; };
  switch (dtype) {
    case DType::i8: return static_cast<const int8_t*>(data)[i];
    case DType::u8: return static_cast<const uint8_t*>(data)[i];
    case DType::i16: return static_cast<const Unaligned<int16_t>*>(data)[i];
    case DType::u16: return static_cast<const Unaligned<uint16_t>*>(data)[i];
    case DType::i32: return static_cast<const Unaligned<int32_t>*>(data)[i];
    case DType::u32: return static_cast<const Unaligned<uint32_t>*>(data)[i];
    case DType::f32: return whole(double(static_cast<const Unaligned<float>*>(data)[i]));
    case DType::f64: return whole(static_cast<const Unaligned<double>*>(data)[i]);
    default: return static_cast<const Unaligned<int64_t>*>(data)[i];
  }
}

struct OneHotArgs {
  int64_t depth, inner, size;
  DType index;
};

// Items are positions of the indices on the axes before the new one; each writes [depth, inner].
Status one_hot_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const OneHotArgs*>(args);
  const std::byte* off = input<std::byte>(data, 2);
  const std::byte* on = off + a.size;
  for (int64_t item = begin; item < end; ++item) {
    std::byte* to = output<std::byte>(data) + item * a.depth * a.inner * a.size;
    visit_element_size(a.size, [&]<class T>() { fill_elements<T>(to, off, a.depth * a.inner); });
    for (int64_t j = 0; j < a.inner; ++j) {
      int64_t at = index_of(data.in[0], a.index, item * a.inner + j);
      if (at != INT64_MIN && normalize_index(at, a.depth))
        memcpy(to + (at * a.inner + j) * a.size, on, size_t(a.size));
    }
  }
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
  return check_addressable(*out);
}

}  // namespace sdx::SDX_ISA::gathering
