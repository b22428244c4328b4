// ScatterElements, ScatterND and TensorScatter: the data is copied, unless the output is written in
// its place, then the updates are applied in their order. Duplicate indices must combine in that
// order whatever the number of threads, so ranges split only axes that the indices do not choose:
// no two threads write one element, and no atomics are needed.
#include <cstring>

#include "kernels/gather/indices.h"
#include "kernels/gather/kernels.h"
#include "kernels/gather/scatter_reduction.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA::gathering {
namespace {

constexpr int64_t kChunk = 32 << 10;  // bytes that an item copies
constexpr int64_t kColumns = 256;     // elements of a slice that one item of ScatterND writes

struct CopyArgs {
  int64_t bytes;
};

struct ElementsArgs : CopyArgs {
  int rank, axis;
  int64_t dims[kMaxRank];     // of the indices and the updates
  int64_t strides[kMaxRank];  // of the data
  int64_t index_strides[kMaxRank];
  int64_t axis_len;
  DType index, dtype;
  Reduction reduction;
};

struct TupleArgs : CopyArgs {
  IndexTuples tuples;
  int64_t count, columns;
  DType index, dtype;
  Reduction reduction;
};

Status copy_chunks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const int64_t bytes = static_cast<const CopyArgs*>(args)->bytes;
  if (data.out[0] == data.in[0]) return {};  // in place
  const int64_t last = end * kChunk < bytes ? end * kChunk : bytes;
  memcpy(output<std::byte>(data) + begin * kChunk, input<std::byte>(data, 0) + begin * kChunk,
         size_t(last - begin * kChunk));
  return {};
}

// Phase 1 of every kernel here; the barrier after it orders the copy before the updates.
void add_copy(Plan& plan, CopyArgs* args, const View& data) {
  args->bytes = data.count() * size_of(data.dtype);
  plan.args = args;
  plan.add(copy_chunks, (args->bytes + kChunk - 1) / kChunk, kChunk / 16);
}

// Items are positions on all axes but the indexed one and the last, which loop inside: all writes
// along the indexed axis stay in one item.
template <class T, class Op>
Status scatter_rows(const ElementsArgs& a, const Data& data, int64_t begin, int64_t end, Op op) {
  const Integers index(data.in[1], a.index);
  const auto* updates = input<Unaligned<T>>(data, 2);
  auto* y = output<Unaligned<T>>(data);
  const int last = a.rank - 1;
  const int64_t n = a.axis == last ? 1 : a.dims[last];
  for (int64_t item = begin; item < end; ++item) {
    int64_t rest = item, base = 0, index_offset = 0;
    for (int i = last - 1; i >= 0; --i) {
      if (i == a.axis) continue;
      const int64_t at = rest % a.dims[i];
      rest /= a.dims[i];
      base += at * a.strides[i];
      index_offset += at * a.index_strides[i];
    }
    for (int64_t k = 0; k < a.dims[a.axis]; ++k) {
      const int64_t line = index_offset + k * a.index_strides[a.axis];
      for (int64_t j = 0; j < n; ++j) {
        int64_t at = index[line + j];
        if (!normalize_index(at, a.axis_len))
          return index_error(index[line + j], line + j, a.axis_len, a.axis);
        auto& target = y[base + at * a.strides[a.axis] + j];
        target = op(T(target), T(updates[line + j]));
      }
    }
  }
  return {};
}

Status elements_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ElementsArgs*>(args);
  return visit_reduction(a.reduction, a.dtype, [&]<class T>(auto op) {
    return scatter_rows<T>(a, data, begin, end, op);
  });
}

template <class T, class Op>
SDX_INLINE void combine(Unaligned<T>* targets, const Unaligned<T>* updates, int64_t n, Op op) {
  if (n == 1) {
    *targets = op(T(*targets), T(*updates));
  } else if constexpr (std::is_same_v<Op, ReplaceOp>) {
    memcpy(targets, updates, size_t(n) * sizeof(T));
  } else {
    T* to = reinterpret_cast<T*>(targets);
    const T* from = reinterpret_cast<const T*>(updates);
    vloop<T>(n, [&](int64_t i, auto lanes) {
      store(to + i, op(load(to + i, lanes), load(from + i, lanes)), lanes);
    });
  }
}

// Items are column blocks of a slice; each applies all tuples in order, so that duplicates combine
// deterministically. Slices no wider than kColumns therefore run on one thread.
template <class T, class Op>
Status scatter_columns(const TupleArgs& a, const Data& data, int64_t begin, int64_t end, Op op) {
  const Integers index(data.in[1], a.index);
  const auto* updates = input<Unaligned<T>>(data, 2);
  auto* y = output<Unaligned<T>>(data);
  const int64_t first = begin * kColumns;
  const int64_t last = end * kColumns < a.columns ? end * kColumns : a.columns;
  for (int64_t k = 0; k < a.count; ++k) {
    int64_t at;
    if (Status status = a.tuples.offset(index, k, at); !status.ok()) return status;
    combine<T>(y + at * a.columns + first, updates + k * a.columns + first, last - first, op);
  }
  return {};
}

Status columns_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TupleArgs*>(args);
  return visit_reduction(a.reduction, a.dtype, [&]<class T>(auto op) {
    return scatter_columns<T>(a, data, begin, end, op);
  });
}

// TensorScatter: writes the rows of an update into a key/value cache at an offset per batch entry.
struct CacheArgs : CopyArgs {
  int64_t batch_outer;  // rows before the axis within one batch entry
  int64_t axis_len, count, slice_bytes;
  bool is_circular, has_starts;
};

// Items are positions on the axes before the sequence axis.
Status cache_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const CacheArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t start =
        a.has_starts ? input<Unaligned<int64_t>>(data, 2)[item / a.batch_outer] : 0;
    if (!a.is_circular && (start < 0 || start > a.axis_len - a.count))
      return Status::fail("%ld entries from %ld on do not fit into %ld", long(a.count), long(start),
                          long(a.axis_len));
    const std::byte* from = input<std::byte>(data, 1) + item * a.count * a.slice_bytes;
    std::byte* to = output<std::byte>(data) + item * a.axis_len * a.slice_bytes;
    for (int64_t k = 0; k < a.count; ++k) {
      int64_t at = start % a.axis_len + k;
      if (at < 0) at += a.axis_len;
      if (at >= a.axis_len) at -= a.axis_len;
      memcpy(to + at * a.slice_bytes, from + k * a.slice_bytes, size_t(a.slice_bytes));
    }
  }
  return {};
}

}  // namespace

// ints: the axis and the reduction.
Status scatter_elements(const Call& call, Plan& plan) {
  const View &in = call.in[0], &index = call.in[1];
  auto* a = plan.make<ElementsArgs>();
  a->rank = in.rank;
  a->axis = int(call.ints[0]);
  a->reduction = Reduction(call.ints[1]);
  a->axis_len = in.dims[a->axis];
  a->index = index.dtype;
  a->dtype = in.dtype;
  int64_t items = 1;
  for (int i = 0; i < in.rank; ++i) {
    a->dims[i] = index.dims[i];
    a->strides[i] = in.count(i + 1, in.rank);
    a->index_strides[i] = index.count(i + 1, index.rank);
    if (i != a->axis && i != in.rank - 1) items *= index.dims[i];
  }
  add_copy(plan, a, in);
  if (index.count() > 0) plan.add(elements_items, items, 2 * index.count() / items + 8);
  return {};
}

// ints: the reduction.
Status scatter_nd(const Call& call, Plan& plan) {
  const View &in = call.in[0], &index = call.in[1];
  auto* a = plan.make<TupleArgs>();
  const int width = int(index.dim(-1));
  a->tuples.set(in, 0, width);
  a->count = index.count(0, index.rank - 1);
  a->columns = in.count(width, in.rank);
  a->reduction = Reduction(call.ints[0]);
  a->index = index.dtype;
  a->dtype = in.dtype;
  add_copy(plan, a, in);
  const int64_t wide = a->columns < kColumns ? a->columns : kColumns;
  if (a->count > 0)
    plan.add(columns_items, (a->columns + kColumns - 1) / kColumns, a->count * (wide / 4 + 2));
  return {};
}

// ints: the axis, and whether indices wrap around. Operands: cache, update, write offsets.
Status tensor_scatter(const Call& call, Plan& plan) {
  const View &in = call.in[0], &update = call.in[1];
  const int axis = int(call.ints[0]);
  auto* a = plan.make<CacheArgs>();
  a->batch_outer = in.count(1, axis);
  a->axis_len = in.dims[axis];
  a->count = update.dims[axis];
  a->slice_bytes = in.count(axis + 1, in.rank) * size_of(in.dtype);
  a->is_circular = call.ints[1] != 0;
  a->has_starts = is_given(call, 2);
  add_copy(plan, a, in);
  if (update.count() > 0)
    plan.add(cache_items, in.count(0, axis), a->count * a->slice_bytes / 16 + 4);
  return {};
}

}  // namespace sdx::SDX_ISA::gathering
