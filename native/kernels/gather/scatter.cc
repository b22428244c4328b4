// Writing at indices: a copy of the data, then the updates in their order. Ranges split what the
// indices do not choose, so that two threads never write one element.
#include <cstring>

#include "kernels/gather/places.h"
#include "kernels/gather/reduce.h"
#include "kernels/gather/rows.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA::gathering {
namespace {

constexpr int64_t kChunk = 32 << 10;  // bytes that an item copies
constexpr int64_t kColumns = 256;     // elements behind a tuple of indices that an item writes

struct CopyArgs {
  int64_t bytes;
};

struct ElementsArgs : CopyArgs {
  int rank, axis;
  int64_t dims[kMaxRank];     // of the indices and the updates
  int64_t strides[kMaxRank];  // of the data
  int64_t own[kMaxRank];      // of the indices
  int64_t axis_len;
  DType index, dtype;
  Reduction reduction;
};

struct TupleArgs : CopyArgs {
  Tuples tuples;
  int64_t count, columns;
  DType index, dtype;
  Reduction reduction;
};

Status copy_chunks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const int64_t bytes = static_cast<const CopyArgs*>(args)->bytes;
  const int64_t last = end * kChunk < bytes ? end * kChunk : bytes;
  memcpy(output<std::byte>(data) + begin * kChunk, input<std::byte>(data, 0) + begin * kChunk,
         size_t(last - begin * kChunk));
  return {};
}

void add_copy(Plan& plan, CopyArgs* args, const View& data) {
  args->bytes = data.count() * size_of(data.dtype);
  plan.args = args;
  plan.add(copy_chunks, (args->bytes + kChunk - 1) / kChunk, kChunk / 16);
}

// Items are places on all axes but the indexed one and the last; both are walked inside.
template <class T, class Op>
Status elements(const ElementsArgs& a, const Data& data, int64_t begin, int64_t end, Op op) {
  const Integers index(data.in[1], a.index);
  const auto* updates = input<Loose<T>>(data, 2);
  auto* y = output<Loose<T>>(data);
  const int last = a.rank - 1;
  const int64_t n = a.axis == last ? 1 : a.dims[last];
  for (int64_t item = begin; item < end; ++item) {
    int64_t rest = item, base = 0, own = 0;
    for (int i = last - 1; i >= 0; --i) {
      if (i == a.axis) continue;
      const int64_t at = rest % a.dims[i];
      rest /= a.dims[i];
      base += at * a.strides[i];
      own += at * a.own[i];
    }
    for (int64_t k = 0; k < a.dims[a.axis]; ++k) {
      const int64_t line = own + k * a.own[a.axis];
      for (int64_t j = 0; j < n; ++j) {
        int64_t at = index[line + j];
        if (!place(at, a.axis_len)) return outside(index[line + j], line + j, a.axis_len, a.axis);
        auto& cell = y[base + at * a.strides[a.axis] + j];
        cell = op(T(cell), T(updates[line + j]));
      }
    }
  }
  return {};
}

Status elements_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ElementsArgs*>(args);
  return visit_reduction(a.reduction, a.dtype,
                         [&]<class T>(auto op) { return elements<T>(a, data, begin, end, op); });
}

template <class T, class Op>
SDX_INLINE void merge(Loose<T>* cells, const Loose<T>* news, int64_t n, Op op) {
  if (n == 1) {
    *cells = op(T(*cells), T(*news));
  } else if constexpr (std::is_same_v<Op, ReplaceOp>) {
    memcpy(cells, news, size_t(n) * sizeof(T));
  } else {
    T* to = reinterpret_cast<T*>(cells);
    const T* from = reinterpret_cast<const T*>(news);
    vloop<T>(n, [&](int64_t i, auto lanes) {
      store(to + i, op(load(to + i, lanes), load(from + i, lanes)), lanes);
    });
  }
}

// Items are blocks of columns behind the indexed axes; each walks all tuples.
template <class T, class Op>
Status blocks(const TupleArgs& a, const Data& data, int64_t begin, int64_t end, Op op) {
  const Integers index(data.in[1], a.index);
  const auto* updates = input<Loose<T>>(data, 2);
  auto* y = output<Loose<T>>(data);
  const int64_t first = begin * kColumns;
  const int64_t last = end * kColumns < a.columns ? end * kColumns : a.columns;
  for (int64_t k = 0; k < a.count; ++k) {
    int64_t at;
    if (Status status = a.tuples.offset(index, k, at); !status.ok()) return status;
    merge<T>(y + at * a.columns + first, updates + k * a.columns + first, last - first, op);
  }
  return {};
}

Status blocks_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TupleArgs*>(args);
  return visit_reduction(a.reduction, a.dtype,
                         [&]<class T>(auto op) { return blocks<T>(a, data, begin, end, op); });
}

struct CacheArgs : CopyArgs {
  int64_t batch_outer;  // rows before the axis within one entry of the batch
  int64_t axis_len, count, unit;
  bool is_circular, has_starts;
};

// Items are rows before the axis.
Status cache_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const CacheArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t start = a.has_starts ? input<Loose<int64_t>>(data, 2)[item / a.batch_outer] : 0;
    if (!a.is_circular && (start < 0 || start > a.axis_len - a.count))
      return Status::fail("%ld entries from %ld on do not fit into %ld", long(a.count), long(start),
                          long(a.axis_len));
    const std::byte* from = input<std::byte>(data, 1) + item * a.count * a.unit;
    std::byte* to = output<std::byte>(data) + item * a.axis_len * a.unit;
    for (int64_t k = 0; k < a.count; ++k) {
      int64_t at = start % a.axis_len + k;
      if (at < 0) at += a.axis_len;
      if (at >= a.axis_len) at -= a.axis_len;
      memcpy(to + at * a.unit, from + k * a.unit, size_t(a.unit));
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
    a->own[i] = index.count(i + 1, index.rank);
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
    plan.add(blocks_items, (a->columns + kColumns - 1) / kColumns, a->count * (wide / 4 + 2));
  return {};
}

// ints: the axis, and whether places go round. Operands: cache, update, where each entry starts.
Status tensor_scatter(const Call& call, Plan& plan) {
  const View &in = call.in[0], &update = call.in[1];
  const int axis = int(call.ints[0]);
  auto* a = plan.make<CacheArgs>();
  a->batch_outer = in.count(1, axis);
  a->axis_len = in.dims[axis];
  a->count = update.dims[axis];
  a->unit = in.count(axis + 1, in.rank) * size_of(in.dtype);
  a->is_circular = call.ints[1] != 0;
  a->has_starts = is_given(call, 2);
  add_copy(plan, a, in);
  if (update.count() > 0) plan.add(cache_items, in.count(0, axis), a->count * a->unit / 16 + 4);
  return {};
}

}  // namespace sdx::SDX_ISA::gathering
