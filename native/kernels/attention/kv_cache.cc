// KV cache update (kernel `append`): copies new keys and values after the rows of a cache, rotates
// new keys and queries by rotary embedding (RoPE), and computes the spans of batch entries of
// different lengths. If the past shares its bytes with the present (the cache grows in place), only
// new rows are written.
#include "kernels/attention/kernels.h"
#include "kernels/attention/rotate.h"

namespace sdx::SDX_ISA {
namespace {

enum Operand : int {
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kSpans,
  kTotal,
  kQuery,
  kCos,
  kSin,
  kPositions
};

constexpr int64_t kItemRows = 128;  // rows of a cache in one item

// Strides and sizes of a tensor [batch, heads, rows, width].
struct Rows {
  int64_t batch = 0, head = 0, row = 0;  // strides
  int64_t heads = 0, rows = 0, width = 0;
};

struct Range {
  int64_t begin, end;
  // Intersection with [from, to), possibly empty.
  SDX_INLINE Range within(int64_t from, int64_t to) const {
    const int64_t first = begin > from ? begin : from, last = end < to ? end : to;
    return {first, last > first ? last : first};
  }
};

struct AppendArgs {
  Rows appended[2], past[2], present[2], query, rotated;
  bool has_past, has_spans, has_total, is_rotated, has_positions;
  Rotation rotation;
  int64_t n_positions, cos_stride, sin_stride;  // rows of the cos/sin tables, and their strides
  int64_t position_stride;                      // stride of the batch
  int64_t blocks;                               // blocks of rows of one head
};

Rows rows_of(const View& view) {
  if (!view.is_given()) return {};
  return {view.strides[0], view.strides[1], view.strides[2],
          view.dims[1],    view.dims[2],    view.dims[3]};
}

// Row of the cache at which the new rows of a batch entry begin.
int64_t first_of(const AppendArgs& a, const Data& data, int64_t entry) {
  if (!a.has_spans) return a.past[0].rows;
  int32_t first;
  memcpy(&first, input<int32_t>(data, kSpans) + entry * 2, sizeof first);
  return first;
}

// Position whose angles rotate row `row` of a batch entry. With explicit positions a first prompt
// (total length equals the new rows) has one start value that rows count up from.
int64_t rope_position(const AppendArgs& a, const Data& data, int64_t entry, int64_t first,
                      int64_t row) {
  if (!a.has_positions) return first + row;
  int32_t total = -1;
  if (a.has_total) memcpy(&total, data.in[kTotal], sizeof total);
  const bool is_first = total == a.appended[0].rows;
  const auto* positions = input<int64_t>(data, kPositions);
  int64_t position;
  memcpy(&position, is_first ? positions : positions + entry * a.position_stride + row,
         sizeof position);
  return is_first && position < a.n_positions ? position + row : position;
}

// Rotates one row by the angles of a position, which comes from data and is checked.
template <class T>
Status rotate_at(const AppendArgs& a, const Data& data, int64_t position, const T* x, T* y) {
  if (position < 0 || position >= a.n_positions)
    return Status::fail("position %ld is outside [0, %ld)", long(position), long(a.n_positions));
  rotate_row(a.rotation, x, input<T>(data, kCos) + position * a.cos_stride,
             input<T>(data, kSin) + position * a.sin_stride, y);
  return {};
}

// Copies rows of equal width, in one memcpy if neither side has gaps.
template <class T>
void copy_rows(const T* from, int64_t from_row, T* to, int64_t to_row, int64_t rows,
               int64_t width) {
  if (rows <= 0) return;
  const size_t bytes = size_t(width) * sizeof(T);
  if (from_row == width && to_row == width) {
    memcpy(to, from, size_t(rows) * bytes);
    return;
  }
  for (int64_t i = 0; i < rows; ++i) memcpy(to + i * to_row, from + i * from_row, bytes);
}

template <class T>
Status rotate_rows(const AppendArgs& a, const Data& data, int64_t entry, int64_t first,
                   const Rows& from, const T* x, const Rows& to, T* y, Range rows) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t position = rope_position(a, data, entry, first, row);
    if (Status status = rotate_at(a, data, position, x + row * from.row, y + row * to.row);
        !status.ok())
      return status;
  }
  return {};
}

// Fills rows of a cache: past rows (unless it grows in place), new rows, zeros after them.
template <class T>
Status fill_cache(const AppendArgs& a, const Data& data, int which, int64_t entry, int64_t head,
                  Range rows) {
  const Rows &appended = a.appended[which], &past = a.past[which], &present = a.present[which];
  const int64_t first = first_of(a, data, entry), last = first + appended.rows;
  if (first < 0 || first > past.rows || last > present.rows)
    return Status::fail(
        "%ld new rows do not fit after row %ld of a cache: it has %ld rows and a capacity of %ld",
        long(appended.rows), long(first), long(past.rows), long(present.rows));
  const T* x = input<T>(data, which) + entry * appended.batch + head * appended.head;
  T* y = output<T>(data, which) + entry * present.batch + head * present.head;
  const bool is_in_place = a.has_past && data.in[kPastKey + which] == data.out[which];
  if (a.has_past && !is_in_place) {
    const T* old = input<T>(data, kPastKey + which) + entry * past.batch + head * past.head;
    const Range kept = rows.within(0, first);
    copy_rows(old + kept.begin * past.row, past.row, y + kept.begin * present.row, present.row,
              kept.end - kept.begin, present.width);
  }
  const Range made = rows.within(first, last);
  const Range own{made.begin - first, made.end - first};
  if (a.is_rotated && which == kKey) {
    Status status =
        rotate_rows(a, data, entry, first, appended, x, present, y + first * present.row, own);
    if (!status.ok()) return status;
  } else {
    copy_rows(x + own.begin * appended.row, appended.row, y + made.begin * present.row, present.row,
              own.end - own.begin, present.width);
  }
  const Range none = rows.within(is_in_place && past.rows > last ? past.rows : last, present.rows);
  for (int64_t t = none.begin; t < none.end; ++t)
    memset(y + t * present.row, 0, size_t(present.width) * sizeof(T));
  return {};
}

template <class T>
Status rotate_query(const AppendArgs& a, const Data& data, int64_t entry, int64_t head,
                    Range rows) {
  const T* x = input<T>(data, kQuery) + entry * a.query.batch + head * a.query.head;
  T* y = output<T>(data, 2) + entry * a.rotated.batch + head * a.rotated.head;
  return rotate_rows(a, data, entry, first_of(a, data, entry), a.query, x, a.rotated, y, rows);
}

int64_t begin_of(int64_t rows, int64_t blocks, int64_t block) {
  return rows / blocks * block + (block < rows % blocks ? block : rows % blocks);
}

// Items: blocks of rows of heads: those of the keys, then of the values, then of the query.
template <class T>
Status append_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AppendArgs*>(args);
  const int64_t shared = a.appended[0].heads, heads = 2 * shared + a.query.heads;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item % a.blocks, head = item / a.blocks % heads;
    const int64_t entry = item / a.blocks / heads;
    const bool is_query = head >= 2 * shared;
    const int64_t rows = is_query ? a.query.rows : a.present[0].rows;
    const Range part{begin_of(rows, a.blocks, block), begin_of(rows, a.blocks, block + 1)};
    const int which = head < shared ? kKey : kValue;
    const Status status = is_query ? rotate_query<T>(a, data, entry, head - 2 * shared, part)
                                   : fill_cache<T>(a, data, which, entry, head % shared, part);
    if (!status.ok()) return status;
  }
  return {};
}

PhaseFn phase_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return append_blocks<F16>;
    case DType::bf16: return append_blocks<BF16>;
    default: return append_blocks<float>;
  }
}

struct SpansArgs {
  int64_t entries, stride, rows;
  int64_t keys;  // keys, for counts; -1 if lengths less 1 are given
};

// GroupQueryAttention's seqlens_k: lengths less 1. A first prompt may be shorter than its rows.
Status span_of_length(const SpansArgs& a, int64_t length, int64_t total, int32_t* span) {
  if (length < 0 || length >= (total > 1 ? total : 1))
    return Status::fail("seqlens_k %ld is outside [0, %ld)", long(length), long(total));
  const int64_t first = a.rows == total ? 0 : length + 1 - a.rows;
  if (first < 0)
    return Status::fail("seqlens_k %ld is too small for %ld new rows", long(length), long(a.rows));
  span[0] = int32_t(first), span[1] = int32_t(length + 1);
  return {};
}

// Attention's nonpad_kv_seqlen: counts of keys. The last row is at the last of them.
Status span_of_count(const SpansArgs& a, int64_t count, int32_t* span) {
  if (count < 0 || count > a.keys)
    return Status::fail("nonpad_kv_seqlen %ld is outside [0, %ld]", long(count), long(a.keys));
  span[0] = int32_t(count - a.rows), span[1] = int32_t(count);
  return {};
}

Status find_spans(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const SpansArgs*>(args);
  int32_t total = 0;
  if (a.keys < 0) memcpy(&total, data.in[1], sizeof total);
  for (int64_t i = begin; i < end; ++i) {
    int32_t span[2], length;
    int64_t count;
    Status status;
    if (a.keys < 0) {
      memcpy(&length, input<int32_t>(data, 0) + i * a.stride, sizeof length);
      status = span_of_length(a, length, total, span);
    } else {
      memcpy(&count, input<int64_t>(data, 0) + i * a.stride, sizeof count);
      status = span_of_count(a, count, span);
    }
    if (!status.ok()) return status;
    memcpy(output<int32_t>(data) + i * 2, span, sizeof span);
  }
  return {};
}

}  // namespace

Status append(const Call& call, Plan& plan) {
  auto* args = plan.make<AppendArgs>();
  plan.args = args;
  AppendArgs& a = *args;
  for (int i = 0; i < 2; ++i) {
    a.appended[i] = rows_of(call.in[kKey + i]);
    a.past[i] = rows_of(call.in[kPastKey + i]);
    a.present[i] = rows_of(call.out[i]);
  }
  a.has_past = call.in[kPastKey].is_given();
  a.has_spans = call.in[kSpans].is_given();
  a.has_total = call.in[kTotal].is_given();
  a.is_rotated = call.in[kCos].is_given();
  a.has_positions = call.in[kPositions].is_given();
  if (a.is_rotated) {
    const View &cos = call.in[kCos], &sin = call.in[kSin];
    a.query = rows_of(call.in[kQuery]);
    a.rotated = rows_of(call.out[2]);
    a.rotation = {cos.dims[1], a.query.width, call.ints[0] != 0};
    a.n_positions = cos.dims[0], a.cos_stride = cos.strides[0], a.sin_stride = sin.strides[0];
  }
  if (a.has_positions) a.position_stride = call.in[kPositions].strides[0];
  const int64_t batch = call.in[kKey].dims[0], rows = a.present[0].rows;
  a.blocks = rows > kItemRows ? (rows + kItemRows - 1) / kItemRows : 1;
  const int64_t heads = 2 * a.appended[0].heads + a.query.heads;
  plan.add(phase_of(call.in[kKey].dtype), batch * heads * a.blocks,
           rows / a.blocks * a.present[0].width / 16 + 4);
  return {};
}

Status resolve_append(const Call& call, const Data& data, View* out) {
  int32_t total;
  memcpy(&total, data.in[kTotal], sizeof total);
  const View& past = call.in[kPastKey];
  const int64_t before = past.is_given() ? past.dims[2] : 0;
  if (total < 0) return Status::fail("total_sequence_length %ld is negative", long(total));
  for (int i = 0; i < call.n_out; ++i) {
    const View& like = call.in[i < 2 ? kKey + i : kQuery];
    for (int axis = 0; axis < 4; ++axis) out[i].dims[axis] = like.dims[axis];
    if (i < 2) out[i].dims[2] = total > before ? total : before;
  }
  return {};
}

Status spans(const Call& call, Plan& plan) {
  auto* args = plan.make<SpansArgs>();
  const View& keys = call.in[3];
  *args = {call.out[0].dims[0], call.in[0].strides[0], call.in[2].dim(-2),
           keys.is_given() ? keys.dim(-2) : -1};
  plan.args = args;
  plan.add(find_spans, args->entries, 2);
  return {};
}

}  // namespace sdx::SDX_ISA
