// MatMulInteger, QLinearMatMul and the quantized Gemm: rows of activations times packed weights.
#include "kernels/quantize/gemm_int8.h"
#include "kernels/quantize/kernels.h"
#include "kernels/row_stride.h"

namespace sdx::SDX_ISA::int8 {
namespace {

// Copies rows into the block buffer, padded to whole groups. Padding is zero after the sign flip,
// so it adds nothing to accumulators or row sums.
void gather_rows(const Gemm& p, const Data& data, int64_t job, int64_t row, int64_t n,
                 uint8_t* to) {
  const int64_t k = p.depth;
  const uint8_t* from = input<uint8_t>(data, kX) + job * p.layout.image_bytes + row * k;
  for (int64_t i = 0; i < n; ++i) {
    uint8_t* line = to + i * p.stride;
    copy_bytes(line, from + i * k, k);
    for (int64_t j = k; j < p.shape.n_groups() * kGroup; ++j) line[j] = p.flip;
  }
}

}  // namespace

// ints: k, n, whether the weights are packed, their type. A weight without batch dims is shared by
// all rows; otherwise every batch entry is a job with its own weights, and rows of its own or, if x
// is a matrix, all rows.
Status qmatmul(const Call& call, Plan& plan) {
  auto* p = plan.make<Gemm>();
  const int64_t k = call.ints[0], n = call.ints[1];
  const View &x = call.in[kX], &w = call.in[kW];
  p->shape = {k, n};
  p->depth = k;
  p->w = DType(call.ints[3]);
  const bool is_packed = call.ints[2] != 0;
  const int64_t rows = x.rank == 1 ? 1 : x.count(0, x.rank - 1);
  p->packed_at = is_packed ? -1 : 0;
  p->n_packs = is_packed || w.rank < 3 ? 1 : w.count(0, w.rank - 2);
  p->n_jobs = p->n_packs;
  const bool shares_rows = p->n_packs > 1 && x.rank < w.rank;
  p->m = p->n_jobs == 0 ? 0 : shares_rows ? rows : rows / p->n_jobs;
  p->layout.image_bytes = shares_rows ? 0 : p->m * k;
  p->out_stride = call.out[0].is_contiguous() ? n : row_stride(call.out[0]);
  p->is_grouped = false;
  read_operands(*p, call);
  if (can_read_in_place(k)) {
    p->stride = k;
  } else {
    p->gather = gather_rows;
  }
  return plan_gemm(*p, call, plan);
}

}  // namespace sdx::SDX_ISA::int8
