// Gather, GatherElements and GatherND. Elements are untyped: all three copy slices, the bytes after
// the indexed axes. Indices are checked where they are used, so the first bad one stops the step.
#include "kernels/gather/indices.h"
#include "kernels/gather/kernels.h"
#include "kernels/move/copy_bytes.h"

namespace sdx::SDX_ISA::gathering {
namespace {

constexpr int64_t kChunk = 32 << 10;  // bytes of a long slice that one item copies, the size of L1

struct GatherArgs {
  int64_t axis_len, count, slice_bytes;  // slice: all axes after the indexed one
  int64_t n_chunks;                      // of a slice
  DType index;
  int axis;
};

// Long slices, as of embedding tables with huge rows: items are chunks of them, so that a few
// slices still keep all threads busy.
Status gather_chunks(const GatherArgs& a, const Data& data, int64_t begin, int64_t end) {
  const Integers index(data.in[1], a.index);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t chunk = item % a.n_chunks, row = item / a.n_chunks;
    const int64_t outer = row / a.count, k = row % a.count;
    int64_t at = index[k];
    if (!normalize_index(at, a.axis_len)) return index_error(index[k], k, a.axis_len, a.axis);
    const int64_t left = a.slice_bytes - chunk * kChunk;
    memcpy(output<std::byte>(data) + row * a.slice_bytes + chunk * kChunk,
           input<std::byte>(data, 0) + (outer * a.axis_len + at) * a.slice_bytes + chunk * kChunk,
           size_t(left < kChunk ? left : kChunk));
  }
  return {};
}

// Items are output slices: the index list, repeated for every position on the axes before it. One
// division at the start; then counters advance.
template <class Copy>
Status gather_slices(const GatherArgs& a, const Data& data, int64_t begin, int64_t end, Copy copy) {
  const Integers index(data.in[1], a.index);
  int64_t outer = begin / a.count, k = begin % a.count;
  const std::byte* from = input<std::byte>(data, 0) + outer * a.axis_len * a.slice_bytes;
  std::byte* to = output<std::byte>(data) + begin * a.slice_bytes;
  for (int64_t item = begin; item < end; ++item, to += a.slice_bytes) {
    int64_t at = index[k];
    if (!normalize_index(at, a.axis_len)) return index_error(index[k], k, a.axis_len, a.axis);
    copy(to, from + at * a.slice_bytes);
    if (++k == a.count) {
      k = 0;
      from += a.axis_len * a.slice_bytes;
    }
  }
  return {};
}

Status gather_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GatherArgs*>(args);
  if (a.n_chunks > 1) return gather_chunks(a, data, begin, end);
  if (a.slice_bytes > 8 || (a.slice_bytes & (a.slice_bytes - 1)) != 0)
    return gather_slices(a, data, begin, end, [&](std::byte* to, const std::byte* from) {
      copy_bytes(to, from, a.slice_bytes);
    });
  // Slices of 1, 2, 4 or 8 bytes become a single load and store.
  return visit_element_size(a.slice_bytes, [&]<class T>() {
    return gather_slices(a, data, begin, end,
                         [](std::byte* to, const std::byte* from) { memcpy(to, from, sizeof(T)); });
  });
}

struct ElementsArgs {
  int rank, axis;
  int64_t dims[kMaxRank];     // of the index and the output
  int64_t strides[kMaxRank];  // of the data
  int64_t axis_len, size;
  DType index;
};

// y[..., j, ...] = x[..., index[..., j, ...], ...]: items are rows along the last axis, whose base
// offset on all axes but the indexed one is computed once.
template <class T, class Index>
Status elements_rows(const ElementsArgs& a, const Data& data, int64_t begin, int64_t end) {
  const auto* index = input<Unaligned<Index>>(data, 1);
  const auto* x = input<Unaligned<T>>(data, 0);
  auto* y = output<Unaligned<T>>(data);
  const int last = a.rank - 1;
  const int64_t n = a.dims[last], step = a.axis == last ? 0 : 1, across = a.strides[a.axis];
  for (int64_t row = begin; row < end; ++row) {
    int64_t rest = row, base = 0;
    for (int i = last - 1; i >= 0; --i) {
      if (i != a.axis) base += rest % a.dims[i] * a.strides[i];
      rest /= a.dims[i];
    }
    for (int64_t j = 0; j < n; ++j) {
      int64_t at = index[row * n + j];
      if (!normalize_index(at, a.axis_len))
        return index_error(index[row * n + j], row * n + j, a.axis_len, a.axis);
      y[row * n + j] = x[base + at * across + j * step];
    }
  }
  return {};
}

Status elements_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ElementsArgs*>(args);
  return visit_element_size(a.size, [&]<class T>() {
    return a.index == DType::i32 ? elements_rows<T, int32_t>(a, data, begin, end)
                                 : elements_rows<T, int64_t>(a, data, begin, end);
  });
}

struct TupleArgs {
  IndexTuples tuples;
  int64_t per_batch, batch_slices, slice_bytes;  // tuples of a batch entry, slices of its data
  DType index;
};

// Items are index tuples, each of which selects one slice.
Status tuple_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TupleArgs*>(args);
  const Integers index(data.in[1], a.index);
  for (int64_t item = begin; item < end; ++item) {
    int64_t at;
    if (Status status = a.tuples.offset(index, item, at); !status.ok()) return status;
    at += item / a.per_batch * a.batch_slices;
    copy_bytes(output<std::byte>(data) + item * a.slice_bytes,
               input<std::byte>(data, 0) + at * a.slice_bytes, a.slice_bytes);
  }
  return {};
}

}  // namespace

// ints: the axis.
Status gather(const Call& call, Plan& plan) {
  const View &in = call.in[0], &index = call.in[1];
  const int axis = int(call.ints[0]);
  auto* a = plan.make<GatherArgs>();
  a->axis = axis;
  a->axis_len = in.dims[axis];
  a->count = index.count();
  a->slice_bytes = in.count(axis + 1, in.rank) * size_of(in.dtype);
  a->n_chunks = a->slice_bytes > 2 * kChunk ? (a->slice_bytes + kChunk - 1) / kChunk : 1;
  a->index = index.dtype;
  plan.args = a;
  const int64_t rows = a->slice_bytes == 0 ? 0 : in.count(0, axis) * a->count;
  plan.add(gather_items, rows * a->n_chunks, a->slice_bytes / a->n_chunks / 16 + 1);
  return {};
}

// ints: the axis.
Status gather_elements(const Call& call, Plan& plan) {
  const View &in = call.in[0], &index = call.in[1];
  auto* a = plan.make<ElementsArgs>();
  a->rank = in.rank;
  a->axis = int(call.ints[0]);
  for (int i = 0; i < in.rank; ++i) {
    a->dims[i] = index.dims[i];
    a->strides[i] = in.count(i + 1, in.rank);
  }
  a->axis_len = in.dims[a->axis];
  a->size = size_of(in.dtype);
  a->index = index.dtype;
  plan.args = a;
  const int64_t rows = index.count() == 0 ? 0 : index.count(0, index.rank - 1);
  plan.add(elements_items, rows, index.dim(-1) + 8);
  return {};
}

// ints: batch_dims, the number of leading axes that data and indices share.
Status gather_nd(const Call& call, Plan& plan) {
  const View &in = call.in[0], &index = call.in[1];
  const int batch = int(call.ints[0]), width = int(index.dim(-1));
  auto* a = plan.make<TupleArgs>();
  a->tuples.set(in, batch, width);
  a->per_batch = index.count(batch, index.rank - 1);
  a->batch_slices = in.count(batch, batch + width);
  a->slice_bytes = in.count(batch + width, in.rank) * size_of(in.dtype);
  a->index = index.dtype;
  plan.args = a;
  const int64_t tuples = call.out[0].count() == 0 ? 0 : index.count(0, index.rank - 1);
  plan.add(tuple_items, tuples, a->slice_bytes / 16 + 2);
  return {};
}

}  // namespace sdx::SDX_ISA::gathering
