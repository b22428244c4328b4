// GatherBlockQuantized, and DequantizeLinear of n-bit tables: a table of 2-, 4- or 8-bit codes with
// block scales is gathered, and only the gathered codes become floats, (code - zero) * scale. The
// table stays quantized in memory, which is the point of quantized embeddings.
#include "kernels/gather/indices.h"
#include "kernels/nbits/kernels.h"
#include "kernels/nbits/weights.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA::nbits {
namespace {

enum TableOperand : int { kTable, kIndices, kTableScales, kTableZeros };

constexpr int64_t kChunk = 1024;  // elements of a row in one item: 4 KiB of floats on the stack
constexpr int kNoAxis = -1;       // no index: the whole table is dequantized in order

// The element at coordinates c has the scale number sum(c[i] / blocks[i] * strides[i]).
struct TableArgs {
  int rank, axis, bits;
  bool is_signed, fills;  // fills: an index outside the axis gives zeros instead of an error
  int64_t count;          // of the index
  int64_t n, n_chunks;
  int64_t dims[kMaxRank], blocks[kMaxRank], strides[kMaxRank], zero_strides[kMaxRank];
  int64_t element_strides[kMaxRank];  // elements between neighbours along an axis of the table
  DType index, scale;
  bool has_zero;
  float zero_default;
};

// Offsets of an element in the table, its scales and its zero points, in elements of each.
struct Offsets {
  int64_t element = 0, scale = 0, zero = 0;
  bool is_inside = true;

  SDX_INLINE void move(const TableArgs& a, int axis, int64_t c) {
    const int64_t block = a.blocks[axis] == 1 ? c : c / a.blocks[axis];
    element += c * a.element_strides[axis];
    scale += block * a.strides[axis];
    zero += block * a.zero_strides[axis];
  }
};

// Advances along the indexed axis by index number k.
Status advance_by_index(const TableArgs& a, const Data& data, int64_t k, Offsets& to) {
  const Integers index(data.in[kIndices], a.index);
  int64_t at = index[k];
  to.is_inside = normalize_index(at, a.dims[a.axis]);
  if (to.is_inside) {
    to.move(a, a.axis, at);
  } else if (!a.fills) {
    return index_error(index[k], k, a.dims[a.axis], a.axis);
  }
  return {};
}

// The offsets at which output row `row` (along the last axis) begins.
Status locate_row(const TableArgs& a, const Data& data, int64_t row, Offsets& to) {
  for (int i = a.rank - 2; i >= 0; --i) {
    const int64_t size = i == a.axis ? a.count : a.dims[i], c = row % size;
    row /= size;
    if (i != a.axis) {
      to.move(a, i, c);
    } else if (Status status = advance_by_index(a, data, c, to); !status.ok()) {
      return status;
    }
  }
  return {};
}

// One code. Fields are packed low bits first; (v ^ half) - half extends the sign of a b-bit field.
SDX_INLINE int code_at(const TableArgs& a, const void* packed, int64_t at) {
  const int64_t bit = at * a.bits;
  const int v = static_cast<const uint8_t*>(packed)[bit >> 3] >> (bit & 7) & ((1 << a.bits) - 1);
  const int half = 1 << (a.bits - 1);
  return a.is_signed ? (v ^ half) - half : v;
}

// Codes [begin, begin + n) as floats: single codes up to a byte boundary, then whole bytes, then
// the rest.
template <int kBits>
void widen_codes(const TableArgs& a, const uint8_t* packed, int64_t begin, int64_t n, float* to) {
  constexpr int kPerByte = 8 / kBits;
  const int half = a.is_signed ? 1 << (kBits - 1) : 0;
  int64_t i = 0;
  for (; i < n && (begin + i) % kPerByte != 0; ++i) to[i] = float(code_at(a, packed, begin + i));
  const uint8_t* bytes = packed + (begin + i) / kPerByte;
  for (; i + kPerByte <= n; i += kPerByte, ++bytes)
    for (int j = 0; j < kPerByte; ++j)
      to[i + j] = float(((*bytes >> (j * kBits) & ((1 << kBits) - 1)) ^ half) - half);
  for (; i < n; ++i) to[i] = float(code_at(a, packed, begin + i));
}

SDX_INLINE float scale_at(const TableArgs& a, const Data& data, int64_t at) {
  return float_at(a.scale, data.in[kTableScales], at);
}

SDX_INLINE float zero_at(const TableArgs& a, const Data& data, int64_t at) {
  return a.has_zero ? float(code_at(a, data.in[kTableZeros], at)) : a.zero_default;
}

// Elements [from, from + n) of a row, in blocks along it that share one scale and zero point.
template <class Y>
void dequantize_chunk(const TableArgs& a, const Data& data, const Offsets& row, int64_t from,
                      int64_t n, Y* y) {
  const int last = a.rank - 1;
  const int64_t block = a.strides[last] == 0 ? a.dims[last] : a.blocks[last];
  float codes[kChunk];
  const auto* packed = input<uint8_t>(data, kTable);
  (a.bits == 8   ? widen_codes<8>
   : a.bits == 4 ? widen_codes<4>
                 : widen_codes<2>)(a, packed, row.element + from, n, codes);
  int64_t number = from / block;
  for (int64_t i = 0; i < n; ++number) {
    const int64_t block_end = (number + 1) * block - from;
    const int64_t end = block_end < n ? block_end : n;
    const float scale = scale_at(a, data, row.scale + number * a.strides[last]);
    const float zero = zero_at(a, data, row.zero + number * a.zero_strides[last]);
    vloop(end - i, [&](int64_t j, auto lanes) {
      store_float(y + i + j, (load(codes + i + j, lanes) - zero) * scale, lanes);
    });
    i = end;
  }
}

// Items are chunks of output rows; all codes of a row are contiguous in the table.
template <class Y>
Status row_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TableArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / a.n_chunks, from = item % a.n_chunks * kChunk;
    const int64_t n = a.n - from < kChunk ? a.n - from : kChunk;
    Offsets at;
    if (Status status = locate_row(a, data, row, at); !status.ok()) return status;
    Y* y = output<Y>(data) + row * a.n + from;
    if (at.is_inside)
      dequantize_chunk(a, data, at, from, n, y);
    else
      memset(y, 0, size_t(n) * sizeof(Y));
  }
  return {};
}

// The indexed axis is the last: neighbours in the output are not neighbours in the table, so every
// element is looked up by itself.
template <class Y>
Status element_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TableArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    Offsets at;
    if (Status status = locate_row(a, data, item / a.count, at); !status.ok()) return status;
    if (Status status = advance_by_index(a, data, item % a.count, at); !status.ok()) return status;
    f32v y{};
    if (at.is_inside)
      y += (float(code_at(a, data.in[kTable], at.element)) - zero_at(a, data, at.zero)) *
           scale_at(a, data, at.scale);
    store_float(output<Y>(data) + item, y, Part{1});
  }
  return {};
}

template <class Y>
void add_phase(const TableArgs& a, int64_t n_out, Plan& plan) {
  if (a.axis == a.rank - 1)
    plan.add(element_items<Y>, n_out, 10);
  else
    plan.add(row_items<Y>, n_out == 0 ? 0 : n_out / a.n * a.n_chunks,
             (a.n < kChunk ? a.n : kChunk) / 2);
}

}  // namespace

// Operands: the packed table, the indices (none: all of it is read), scales, zero points.
// ints: axis, bits, signed, fills, rank, then by axis: sizes, block sizes, strides of scales and of
// zero points. floats: the zero point where no operand has it.
Status gather_dequantized(const Call& call, Plan& plan) {
  auto* a = plan.make<TableArgs>();
  const int64_t* ints = call.ints;
  a->axis = int(ints[0]), a->bits = int(ints[1]), a->is_signed = ints[2], a->fills = ints[3];
  a->rank = int(ints[4]);
  const int64_t* by_axis = ints + 5;
  int64_t step = 1;
  for (int i = a->rank - 1; i >= 0; --i) {
    a->dims[i] = by_axis[i];
    a->blocks[i] = by_axis[a->rank + i];
    a->strides[i] = by_axis[2 * a->rank + i];
    a->zero_strides[i] = by_axis[3 * a->rank + i];
    a->element_strides[i] = step;
    step *= a->dims[i];
  }
  const View &index = call.in[kIndices], &y = call.out[0];
  a->count = a->axis == kNoAxis ? 0 : index.count();
  a->n = a->dims[a->rank - 1];
  a->n_chunks = (a->n + kChunk - 1) / kChunk;
  a->index = a->axis == kNoAxis ? DType::none : index.dtype;
  a->scale = call.in[kTableScales].dtype;
  a->has_zero = call.in[kTableZeros].is_given();
  a->zero_default = float(call.floats[0]);
  plan.args = a;
  y.dtype == DType::f32   ? add_phase<float>(*a, y.count(), plan)
  : y.dtype == DType::f16 ? add_phase<F16>(*a, y.count(), plan)
                          : add_phase<BF16>(*a, y.count(), plan);
  return {};
}

}  // namespace sdx::SDX_ISA::nbits
