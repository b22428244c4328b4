// Matmul with n-bit weights (MatMulNBits), and the table of the family. Weights of 2, 4 or 8 bits
// are multiplied as they are stored in the model's file, in either layout; nothing is prepacked.
//
//   matmul_nbits   x, q, scale, zero or nothing, operands of the epilogue
//     ints    K, N, bits, block, whether k is the outer axis of q, whether codes are signed, codes
//             in a row of q, the accuracy level, strides of scales by block and by column, the same
//             of zero points, the program of an epilogue (chain.h)
//     floats  the zero point where none is given, parameters of the program
//
//   matmul_nbits_transposed   dy, q, scale, zero or nothing: the gradient of matmul_nbits by x
//     ints, floats   the same, of n-major weights; no program
//
// Dispatch by rows of x and layout of q (matmul_nbits below):
//   few rows   GEMV (gemv.h): gemv_block16.cc, gemv_n_major.cc, gemv_k_major.cc
//   many rows  gemm_int8.cc at accuracy level 4 (int8 activations), else gemm_float.cc
#include "kernels/nbits/gemv.h"
#include "kernels/nbits/kernels.h"

namespace sdx::SDX_ISA::nbits {
namespace {

constexpr int kLevel = 7, kProgram = 12;  // indices into ints

// Reads the layout. Signed codes become unsigned by flipping their top bit, which adds half of the
// range to codes and zero points alike.
Weights weights_of(const Call& call) {
  const int64_t* i = call.ints;
  Weights w{};
  w.k = i[0], w.n = i[1], w.bits = int(i[2]), w.block = i[3];
  w.n_blocks = w.k == 0 ? 0 : (w.k + w.block - 1) / w.block;
  w.is_k_major = i[4] != 0;
  const bool is_signed = i[5] != 0;
  w.sign_flip = !is_signed ? 0 : w.bits == 2 ? 0xaa : w.bits == 4 ? 0x88 : 0x80;
  w.zero_shift = is_signed ? float(1 << (w.bits - 1)) : 0;
  w.row_stride = i[6];
  w.scale = call.in[kScale].dtype;
  w.scale_at = {i[8], i[9]};
  w.zero_at = {i[10], i[11]};
  if (w.n_blocks <= 1) w.scale_at.block_stride = w.zero_at.block_stride = 0;
  w.zero_default = float(call.floats[0]) + w.zero_shift;
  w.zero = DType::none;
  if (call.in[kZero].is_given()) {
    const DType given = call.in[kZero].dtype;
    w.zero = given == DType::i8 ? DType::u8 : given;
  }
  return w;
}

// Plans the first kernel that can read this layout.
Status matmul_nbits(const Call& call, Plan& plan) {
  auto* p = plan.make<MatMul>();
  plan.args = p;
  p->w = weights_of(call);
  const View& x = call.in[kX];
  p->m = x.count(0, x.rank - 1);
  p->x = x.dtype, p->y = call.out[0].dtype;
  p->chain = chain_prepare(call, kOperands, kProgram, 1, plan);
  plan.local_bytes = chain_local_bytes(p->chain);
  if (p->m == 0 || p->w.n == 0) return {};
  const int x_bytes = activation_bytes(p->w, call.ints[kLevel]);
  if (p->m <= max_gemv_rows(x_bytes) && p->w.k > 0) {
    if (!p->w.is_k_major && plan_gemv_block16(*p, x_bytes, plan)) return {};
    if (p->w.is_k_major ? plan_gemv_k_major(*p, x_bytes, plan)
                        : plan_gemv_n_major(*p, x_bytes, plan))
      return {};
  }
  if (x_bytes != 1 || p->w.k == 0 || !plan_gemm_int8(*p, plan)) plan_gemm_float(*p, plan);
  return {};
}

// dy [m, N] times the weights [N, K] as they are stored. K and N change places, so the rows of
// codes are k-major; the strides of the scales stay those of (block, stored row).
Status matmul_nbits_transposed(const Call& call, Plan& plan) {
  auto* p = plan.make<MatMul>();
  plan.args = p;
  p->w = weights_of(call);
  const int64_t k = p->w.k;
  p->w.k = p->w.n, p->w.n = k;
  p->w.is_k_major = true;
  p->w.column_block = p->w.block;
  const View& dy = call.in[kX];
  p->m = dy.count(0, dy.rank - 1);
  p->x = dy.dtype, p->y = call.out[0].dtype;
  p->chain = nullptr;
  plan.local_bytes = chain_local_bytes(p->chain);
  if (p->m != 0 && p->w.n != 0) plan_gemm_float(*p, plan);
  return {};
}

constexpr Kernel kKernels[] = {
    {"gather_dequantized", Accepts::contiguous, gather_dequantized},
    {"matmul_nbits", Accepts::contiguous, matmul_nbits},
    {"matmul_nbits_transposed", Accepts::contiguous, matmul_nbits_transposed},
};

}  // namespace

// Rounds a row to a half type.
template <class T>
SDX_INLINE void round_row(const float* from, int64_t n, T* to) {
  vloop(n, [&](int64_t j, auto lanes) { store_float(to + j, load(from + j, lanes), lanes); });
}

void finish_row(const MatMul& p, const Data& data, int64_t row, int64_t column, int64_t n,
                const float* acc) {
  std::byte* to = output<std::byte>(data) + (row * p.w.n + column) * size_of(p.y);
  if (p.chain != nullptr) {
    chain_run(*p.chain, data, row, column, n, acc, to, data.local);
  } else if (p.y == DType::f16) {
    round_row(acc, n, reinterpret_cast<F16*>(to));
  } else if (p.y == DType::bf16) {
    round_row(acc, n, reinterpret_cast<BF16*>(to));
  } else {
    memcpy(to, acc, size_t(n) * sizeof(float));
  }
}

void widen_row(const MatMul& p, const Data& data, int64_t row, int64_t begin, int64_t n,
               float* to) {
  const auto copy = [&](const auto* x) {
    vloop(n, [&](int64_t j, auto lanes) {
      store(to + j, load_float(x + row * p.w.k + begin + j, lanes), lanes);
    });
  };
  switch (p.x) {
    case DType::f16: copy(input<F16>(data, kX)); break;
    case DType::bf16: copy(input<BF16>(data, kX)); break;
    default: copy(input<float>(data, kX)); break;
  }
}

}  // namespace sdx::SDX_ISA::nbits

SDX_FAMILY(nbits, nbits::kKernels)
