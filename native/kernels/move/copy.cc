// One or several tensors of any strides into one without gaps.
#include "kernels/move/rows.h"
#include "kernels/move/strided.h"

namespace sdx::SDX_ISA {
namespace {

Status copy_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  run_move(*static_cast<const Move*>(args), data.in[0], data.out[0], begin, end);
  return {};
}

struct ConcatArgs {
  int n = 0;
  const Move* parts = nullptr;
  const int64_t* first = nullptr;  // item of each part, and of the end
};

Status concat_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ConcatArgs*>(args);
  for (int i = 0; i < a.n; ++i) {
    const int64_t from = begin > a.first[i] ? begin : a.first[i];
    const int64_t to = end < a.first[i + 1] ? end : a.first[i + 1];
    if (from < to)
      run_move(a.parts[i], data.in[i], data.out[0], from - a.first[i], to - a.first[i]);
  }
  return {};
}

}  // namespace

Status copy(const Call& call, Plan& plan) {
  auto* move = plan.make<Move>();
  move_of(call.in[0], *move);
  plan.args = move;
  const int64_t items = plan_move(*move);
  plan.add(copy_items, items, move_work(*move));
  return {};
}

// ints: the axis.
Status concat(const Call& call, Plan& plan) {
  const View& out = call.out[0];
  const int axis = int(call.ints[0]);
  const int64_t size = size_of(out.dtype);
  auto* args = plan.make<ConcatArgs>();
  auto* parts = plan.make<Move>(size_t(call.n_in));
  auto* first = plan.make<int64_t>(size_t(call.n_in) + 1);
  int64_t offset = 0, work = 0;
  for (int i = 0; i < call.n_in; ++i) {
    const View& in = call.in[i];
    Move& part = parts[i];
    part.unit = size;
    part.to_offset = offset * out.strides[axis] * size;
    for (int d = 0; d < out.rank; ++d)
      part.axis(in.dims[d], in.strides[d] * size, out.strides[d] * size);
    offset += in.dims[axis];
    const int64_t items = plan_move(part);
    first[i + 1] = first[i] + items;
    work += items * move_work(part);
  }
  *args = {call.n_in, parts, first};
  plan.args = args;
  const int64_t items = first[call.n_in];
  plan.add(concat_items, items, items == 0 ? 1 : work / items);
  return {};
}

}  // namespace sdx::SDX_ISA
