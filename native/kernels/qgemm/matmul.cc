// Matrix products of 8-bit numbers.
#include "kernels/pitch.h"
#include "kernels/qgemm/list.h"
#include "kernels/qgemm/product.h"

namespace sdx::SDX_ISA::q8 {
namespace {

void gather_rows(const Product& p, const Data& data, int64_t job, int64_t row, int64_t n,
                 uint8_t* to) {
  const int64_t k = p.depth;
  const uint8_t* from = input<uint8_t>(data, kX) + (job * p.m + row) * k;
  for (int64_t i = 0; i < n; ++i) {
    uint8_t* line = to + i * p.stride;
    copy_bytes(line, from + i * k, k);
    for (int64_t j = k; j < p.shape.n_groups() * kGroup; ++j) line[j] = p.flip;
  }
}

// ints: k, n, whether the weights come packed, their type. Without leading dims of their own the
// weights serve all rows; else there is a product for each.
Status qmatmul(const Call& call, Plan& plan) {
  auto* p = plan.make<Product>();
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
  p->m = p->n_jobs == 0 ? 0 : rows / p->n_jobs;
  p->out_stride = call.out[0].is_contiguous() ? n : row_pitch(call.out[0]);
  p->is_grouped = false;
  read_operands(*p, call);
  if (lies_well(*p, k)) {
    p->stride = k;
    p->place.image_bytes = p->m * k;
  } else {
    p->gather = gather_rows;
  }
  return plan_product(*p, call, plan);
}

constexpr Kernel kRows[] = {
    {"qadd", Accepts::contiguous, qadd},
    {"qconv", Accepts::contiguous, qconv},
    {"qdepthwise", Accepts::contiguous, qdepthwise},
    {"qdepthwise_pack", Accepts::contiguous, qdepthwise_pack},
    {"qgemm_pack", Accepts::contiguous, qgemm_pack},
    {"qmatmul", Accepts::contiguous, qmatmul},
    {"qmean", Accepts::contiguous, qmean},
};

}  // namespace
}  // namespace sdx::SDX_ISA::q8

SDX_FAMILY(qgemm, q8::kRows)
