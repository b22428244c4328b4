// RotaryEmbedding (RoPE) as a kernel of its own; attention with a KV cache rotates in kv_cache.cc.
#include "kernels/attention/kernels.h"
#include "kernels/attention/rotate.h"

namespace sdx::SDX_ISA {
namespace {

enum Operand : int { kX, kCos, kSin, kPositions };

struct Strides {
  int64_t batch, head, row;
};

// Strides are in elements.
struct RotaryArgs {
  int64_t heads, rows;
  Strides x, y;
  Rotation rotation;
  bool has_positions;
  int64_t n_positions;                   // rows of the cos/sin tables
  Strides cos, sin;                      // head: stride between positions
  int64_t position_batch, position_row;  // strides; both 0 if rows count up from one start value
  bool is_counted;
};

// x is [batch, heads, rows, width], or [batch, rows, heads * width] with three axes.
Strides strides_of(const View& view, int64_t heads) {
  if (view.rank == 4) return {view.strides[0], view.strides[1], view.strides[2]};
  return {view.strides[0], view.dims[2] / heads, view.strides[1]};
}

// Items: rows of the batch; all heads of a row share its angles.
template <class T>
Status rotary_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const RotaryArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t entry = item / a.rows, row = item % a.rows;
    const T *cos = input<T>(data, kCos), *sin = input<T>(data, kSin);
    if (a.has_positions) {
      int64_t position;
      memcpy(&position,
             input<int64_t>(data, kPositions) + entry * a.position_batch + row * a.position_row,
             sizeof position);
      if (a.is_counted && position < a.n_positions) position += row;
      if (position < 0 || position >= a.n_positions)
        return Status::fail("position %ld is outside [0, %ld)", long(position),
                            long(a.n_positions));
      cos += position * a.cos.head, sin += position * a.sin.head;
    } else {
      cos += entry * a.cos.batch + row * a.cos.row, sin += entry * a.sin.batch + row * a.sin.row;
    }
    const T* x = input<T>(data, kX) + entry * a.x.batch + row * a.x.row;
    T* y = output<T>(data) + entry * a.y.batch + row * a.y.row;
    for (int64_t head = 0; head < a.heads; ++head)
      rotate_row(a.rotation, x + head * a.x.head, cos, sin, y + head * a.y.head);
  }
  return {};
}

PhaseFn phase_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return rotary_rows<F16>;
    case DType::bf16: return rotary_rows<BF16>;
    default: return rotary_rows<float>;
  }
}

}  // namespace

// cos and sin are tables by position, or, without positions, one row for each row of x.
Status rotary(const Call& call, Plan& plan) {
  auto* args = plan.make<RotaryArgs>();
  plan.args = args;
  RotaryArgs& a = *args;
  const View &x = call.in[kX], &cos = call.in[kCos], &sin = call.in[kSin];
  const View& positions = call.in[kPositions];
  const bool is_packed = x.rank == 3;
  if (x.count() == 0) {  // then there may be no heads either
    plan.add(phase_of(x.dtype), 0, 1);
    return {};
  }
  a.heads = is_packed ? call.ints[0] : x.dims[1];
  a.rows = x.dims[is_packed ? 1 : 2];
  const int64_t width = is_packed ? x.dims[2] / a.heads : x.dims[3];
  a.x = strides_of(x, a.heads), a.y = strides_of(call.out[0], a.heads);
  a.rotation = {cos.dim(-1), width, call.ints[1] != 0};
  a.has_positions = positions.is_given();
  if (a.has_positions) {
    a.n_positions = cos.dims[0], a.cos.head = cos.strides[0], a.sin.head = sin.strides[0];
    a.is_counted = positions.rank < 2;
    if (!a.is_counted) a.position_batch = positions.strides[0], a.position_row = 1;
  } else {
    a.cos = {cos.strides[0], 0, cos.strides[1]}, a.sin = {sin.strides[0], 0, sin.strides[1]};
  }
  plan.add(phase_of(x.dtype), x.dims[0] * a.rows, a.heads * width / 8 + 2);
  return {};
}

}  // namespace sdx::SDX_ISA
