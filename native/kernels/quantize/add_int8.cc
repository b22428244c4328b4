// QLinearAdd of 8-bit tensors that broadcast: exact inputs, one float computation per output, and
// requantization.
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/tensor_quantization.h"
#include "simd/bytes.h"

namespace sdx::SDX_ISA::int8 {
namespace {

constexpr int64_t kChunk = 16384;  // elements of an item, roughly

// An operand over the merged axes of the output.
struct Term {
  int operand;
  DType dtype;
  int64_t stride;             // along the rows: 1, or 0 if it has one number per row
  int64_t strides[kMaxRank];  // along the outer axes
};

struct AddArgs {
  Term terms[2];  // if one has a number per row, it is the second
  int n_axes;     // outer axes
  int64_t dims[kMaxRank];
  int64_t rows, n;                 // rows of n elements
  int64_t rows_per_item, columns;  // of an item: several rows, or a part of one
  DType y;
  float low, high;
};

// y = (a - za) * sa / sy + (b - zb) * sb / sy + zy, with the zero points folded into `shift`.
// Signed results are written as unsigned ones, 128 more, whose highest bit is then flipped.
struct Weights {
  f32v scale[2], shift;
  Saturation<uint8_t> to;
  uint8_t flip;
};

SDX_INLINE Weights weights_of(const AddArgs& a, const Data& data) {
  Weights w;
  const Quantization y = quantization_of(data, 6, a.y);
  w.shift = f32v{};
  for (int i = 0; i < 2; ++i) {
    const Quantization x = quantization_of(data, a.terms[i].operand + 1, a.terms[i].dtype);
    w.scale[i] = splat(x.scale / y.scale);
    w.shift -= x.zero * w.scale[i];
  }
  const CodeBounds bounds = bounds_of(a.y, y, a.low, a.high);
  w.flip = a.y == DType::i8 ? 128 : 0;
  w.to = {bounds.low, bounds.high, y.zero + w.flip};
  return w;
}

// n elements of a row; sum_at(i, lanes) are those from the i-th on.
template <class SumAt>
SDX_INLINE void write_sums(const Weights& w, int64_t n, SumAt&& sum_at, uint8_t* to) {
  int64_t first = 0;
  for (; first + SDX_VEC_BYTES <= n; first += SDX_VEC_BYTES) {
    f32v y[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) y[q] = sum_at(first + q * kLanes, Full{});
    store(to + first, deinterleave_rows(saturate_to_bytes(y, w.to)) ^ splat(w.flip));
  }
  const i32v zero = splat(int32_t(w.to.zero));
  vloop(n - first, [&](int64_t i, auto lanes) {
    const f32v clamped = clamp(sum_at(first + i, lanes), splat(w.to.low), splat(w.to.high));
    store_i32(to + first + i, (round_bits(clamped) + zero) ^ int32_t(w.flip), lanes);
  });
}

template <class A, class B>
SDX_INLINE void add_tensors(const Weights& w, const A* a, const B* b, int64_t n, uint8_t* to) {
  write_sums(
      w, n,
      [&](int64_t i, auto lanes) {
        const f32v right = load_int_as_float(b + i, lanes) * w.scale[1] + w.shift;
        return load_int_as_float(a + i, lanes) * w.scale[0] + right;
      },
      to);
}
template <class A, class B>
SDX_INLINE void add_number(const Weights& w, const A* a, B b, int64_t n, uint8_t* to) {
  const f32v right = splat(float(b)) * w.scale[1] + w.shift;
  write_sums(
      w, n,
      [&](int64_t i, auto lanes) { return load_int_as_float(a + i, lanes) * w.scale[0] + right; },
      to);
}

// Where row `row` of an operand begins.
SDX_INLINE int64_t offset_of(const AddArgs& a, const Term& term, int64_t row) {
  int64_t at = 0;
  for (int i = a.n_axes - 1; i >= 0; --i, row /= a.dims[i + 1])
    at += row % a.dims[i] * term.strides[i];
  return at;
}

// Items are blocks of rows, or parts of long ones.
template <class A, class B>
Status add_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AddArgs*>(args);
  const Weights w = weights_of(a, data);
  const int64_t parts = (a.n + a.columns - 1) / a.columns;
  const A* left = input<A>(data, a.terms[0].operand);
  const B* right = input<B>(data, a.terms[1].operand);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item / parts * a.rows_per_item, column = item % parts * a.columns;
    const int64_t last = first + a.rows_per_item < a.rows ? first + a.rows_per_item : a.rows;
    const int64_t n = a.n - column < a.columns ? a.n - column : a.columns;
    for (int64_t row = first; row < last; ++row) {
      const A* x = left + offset_of(a, a.terms[0], row) + column;
      const B* y = right + offset_of(a, a.terms[1], row) + column * a.terms[1].stride;
      uint8_t* to = output<uint8_t>(data) + row * a.n + column;
      a.terms[1].stride == 0 ? add_number(w, x, *y, n, to) : add_tensors(w, x, y, n, to);
    }
  }
  return {};
}

template <class A>
PhaseFn add_to(DType b) {
  return b == DType::u8 ? add_items<A, uint8_t> : add_items<A, int8_t>;
}

// Strides of an operand along the axes of the output; 0 where it is broadcast.
void set_strides(const View& in, const View& out, int64_t* strides) {
  int64_t step = 1;
  for (int i = out.rank - 1; i >= 0; --i) {
    const int axis = i - out.rank + in.rank;
    const int64_t dim = axis < 0 ? 1 : in.dims[axis];
    strides[i] = dim == 1 ? 0 : step;
    step *= dim;
  }
}

// Merges axes that both operands traverse with a single stride. Both are contiguous, so the last
// merged axis has the stride 1 or 0.
void merge_axes(AddArgs& a, const View& out) {
  int last = -1;
  for (int i = 0; i < out.rank; ++i) {
    if (out.dims[i] == 1) continue;
    bool joins = last >= 0;
    for (const Term& term : a.terms)
      joins &= joins && term.strides[last] == term.strides[i] * out.dims[i];
    if (!joins) a.dims[++last] = 1;
    a.dims[last] *= out.dims[i];
    for (Term& term : a.terms) term.strides[last] = term.strides[i];
  }
  a.n = last < 0 ? 1 : a.dims[last];
  a.n_axes = last < 0 ? 0 : last;
  a.rows = 1;
  for (int i = 0; i < a.n_axes; ++i) a.rows *= a.dims[i];
  for (Term& term : a.terms) term.stride = last < 0 ? 1 : term.strides[last];
}

}  // namespace

// Operands: a, its scale and zero point; b, its scale and zero point; scale and zero point of y.
// floats: the bounds of the real output.
Status qadd(const Call& call, Plan& plan) {
  auto* args = plan.make<AddArgs>();
  const View& out = call.out[0];
  for (int i = 0; i < 2; ++i) {
    Term& term = args->terms[i];
    term.operand = 3 * i, term.dtype = call.in[3 * i].dtype;
    set_strides(call.in[3 * i], out, term.strides);
  }
  merge_axes(*args, out);
  if (args->terms[0].stride == 0) {
    const Term first = args->terms[0];
    args->terms[0] = args->terms[1], args->terms[1] = first;
  }
  args->y = out.dtype;
  args->low = float(call.floats[0]), args->high = float(call.floats[1]);
  plan.args = args;
  if (args->rows * args->n == 0) return {};
  const int64_t n = args->n;
  args->columns = n < 2 * kChunk ? n : kChunk;
  args->rows_per_item = n < kChunk ? kChunk / n : 1;
  const int64_t blocks = (args->rows + args->rows_per_item - 1) / args->rows_per_item;
  const int64_t parts = (n + args->columns - 1) / args->columns;
  const DType b = args->terms[1].dtype;
  plan.add(args->terms[0].dtype == DType::u8 ? add_to<uint8_t>(b) : add_to<int8_t>(b),
           blocks * parts, args->rows_per_item * (args->columns / 8 + 4));
  return {};
}

}  // namespace sdx::SDX_ISA::int8
