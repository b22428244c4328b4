// The kernel `chain`: an elementwise program over operands of any strides.
#include "kernels/elementwise/program.h"

namespace sdx::SDX_ISA {
namespace {

Status division_by_zero(const Instruction& instruction) {
  return Status::fail("integer %s by zero",
                      instruction.op == ChainOp::div ? "division" : "remainder");
}

// Items: tiles within rows. If an operand is not contiguous within a row, items run down a strip of
// columns, so that the other elements of a cache line are used by the next rows while it is in
// cache.
Status within_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const Chain& chain = *static_cast<const Chain*>(args);
  const int64_t strips = (chain.n + chain.tile - 1) / chain.tile;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = chain.has_gather ? item % chain.rows : item / strips;
    const int64_t col = (chain.has_gather ? item / chain.rows : item % strips) * chain.tile;
    const int64_t n = chain.n - col < chain.tile ? chain.n - col : chain.tile;
    std::byte* out = output<std::byte>(data) + (row * chain.out_row_stride + col) * chain.out_size;
    const Instruction* fault = run_tile(chain, data, row, col, n, nullptr, out, data.local);
    if (fault != nullptr) return division_by_zero(*fault);
  }
  return {};
}

// Items: tiles of several whole (short) rows.
Status whole_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const Chain& chain = *static_cast<const Chain*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item * chain.rows_per_tile;
    const int64_t left = chain.rows - row;
    const int64_t count = left < chain.rows_per_tile ? left : chain.rows_per_tile;
    const Instruction* fault = run_rows(chain, data, row, count, item == begin, data.local);
    if (fault != nullptr) return division_by_zero(*fault);
  }
  return {};
}

Status chain(const Call& call, Plan& plan) {
  const Chain* made = make_chain(call, {call.ints, call.floats, 0, false}, plan);
  if (!plan.error.ok()) return plan.error;
  plan.args = made;
  plan.local_bytes = made->local_bytes;
  if (made->rows * made->n == 0) return {};
  // An instruction takes about 1/8 ns per element.
  const int64_t work = made->tile * (1 + made->n_instructions) / 8;
  if (made->rows_per_tile > 0) {
    const int64_t tiles = (made->rows + made->rows_per_tile - 1) / made->rows_per_tile;
    plan.add(whole_rows, tiles, work);
  } else {
    plan.add(within_rows, made->rows * ((made->n + made->tile - 1) / made->tile), work);
  }
  return {};
}

constexpr Kernel kKernels[] = {
    {"chain", Accepts::any, chain},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(elementwise, kKernels)
